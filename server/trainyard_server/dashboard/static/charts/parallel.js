// Parallel coordinates of trials, or of jobs that are compared, as SVG: an axis for each parameter and one for the metric,
// a line for each trial. Dragging along an axis selects a range of it, and so do the fields below.
import { byId, svg } from "../base/dom.js";
import { formatted } from "./curves.js";
import { RangeFields, isWithin, placeOf, rangeBetween, titleOf, worstFirst } from "./study_axes.js";

const HEIGHT = 300;
const TOP = 38;
const BOTTOM = 250;
const NONE = 276; // where lines of trials without the parameter go
const LEAST = 108; // between two axes
const EDGE = 62;
const CLICK = 0.02;

/**
 * Content of the chart.
 * @typedef {object} Content
 * @property {object[]} axes those of the parameters, and that of the metric last @property {object[]} trials with a `number`,
 * and a `name` where they are jobs @property {string} goal MAXIMIZE, MINIMIZE or "" @property {number|null} best its number
 */
export class Parallel {
  #element = byId("parallel");
  #ranges = new Map();
  #fields = new RangeFields(byId("ranges"), this.#ranges, () => this.#again());
  #onSelect;
  #content = null;
  #drag = null;
  #size = new ResizeObserver(() => this.#content && this.#draw());

  /** @param {(selected: object[], areSome: boolean) => void} onSelect gets the trials that are within the ranges, and whether
   * there are ranges */
  constructor(onSelect) {
    this.#onSelect = onSelect;
    this.#element.addEventListener("pointerdown", (event) => this.#begin(event));
    this.#element.addEventListener("pointermove", (event) => this.#move(event));
    this.#element.addEventListener("pointerup", (event) => this.#end(event));
    this.#element.addEventListener("pointercancel", () => (this.#drag = null));
    this.#size.observe(this.#element.parentElement);
    byId("clear-ranges").addEventListener("click", () => {
      this.#ranges.clear();
      this.#changed();
      this.#element.parentElement.focus();
    });
  }

  /** @param {Content} content */
  show(content) {
    this.#content = content;
    this.#fields.show(content.axes);
    this.#again();
  }

  #changed() {
    this.#fields.write();
    this.#again();
  }

  #again() {
    byId("clear-ranges").hidden = this.#ranges.size === 0;
    this.#draw();
    this.#onSelect(this.#selected(), this.#ranges.size > 0);
  }

  #selected() {
    const { axes, trials } = this.#content;
    return trials.filter((trial) => isWithin(axes, this.#ranges, trial));
  }

  #draw() {
    const { axes, best, goal, trials } = this.#content;
    const selected = new Set(this.#selected().map((trial) => trial.number));
    const ranked = worstFirst(trials, goal);
    const ranks = new Map(ranked.map((trial, index) => [trial.number, (index + 1) / ranked.length]));
    const width = Math.max(this.#element.parentElement.clientWidth, 2 * EDGE + LEAST * (axes.length - 1));
    const x = (index) => EDGE + (axes.length > 1 ? (index * (width - 2 * EDGE)) / (axes.length - 1) : 0);
    const image = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img" });
    const within = selected.size === trials.length ? "" : `, ${selected.size.toLocaleString("en")} of them selected`;
    image.setAttribute("aria-label", `${trials.length.toLocaleString("en")} ${trials.some((trial) => trial.name) ? "jobs" : "trials"} over ${axes.map((axis) => axis.label).join(", ")}${within}. The table has the values.`);
    const ordered = [...trials.filter((trial) => !ranks.has(trial.number)), ...ranked].sort((a, b) => Number(selected.has(a.number)) - Number(selected.has(b.number)) || Number(a.number === best) - Number(b.number === best));
    for (const trial of ordered) {
      const points = axes.map((axis, index) => `${x(index).toFixed(1)} ${yOf(placeOf(axis, axis.of(trial))).toFixed(1)}`);
      const rank = ranks.get(trial.number);
      const kind = trial.number === best ? "best" : rank === undefined ? "unknown" : `rank-${Math.min(4, Math.floor(rank * 5))}`;
      const line = svg("path", { d: `M${points.join("L")}`, class: selected.has(trial.number) ? kind : "off" });
      line.append(svg("title", {}, titleOf(axes, trial)));
      image.append(line);
    }
    axes.forEach((axis, index) => image.append(this.#axis(axis, index, x(index))));
    this.#element.replaceChildren(image);
  }

  #axis(axis, index, x) {
    const group = svg("g", { class: "axis", "data-axis": String(index), "aria-hidden": "true" });
    group.append(svg("line", { x1: x, x2: x, y1: TOP, y2: BOTTOM }));
    group.append(svg("text", { x, y: 14, class: "name" }, cut(axis.label, 18)));
    const ticks = axis.values ? some(axis.values).map((value) => [placeOf(axis, value), cut(value, 14)]) : [0, 0.5, 1].map((place) => [place, ends(axis, place)]);
    for (const [place, text] of ticks) group.append(svg("text", { x: x + 6, y: yOf(place) + 3.5, class: "tick" }, text));
    if (this.#content.trials.some((trial) => axis.of(trial) === null)) group.append(svg("text", { x: x + 6, y: NONE + 3.5, class: "tick none" }, "none"));
    const range = this.#ranges.get(axis.key);
    for (const [from, to] of range ? spansOf(axis, range) : []) {
      group.append(svg("rect", { x: x - 6, width: 12, y: yOf(to), height: Math.max(3, yOf(from) - yOf(to)), class: "brush" }));
    }
    group.append(svg("rect", { x: x - 14, width: 28, y: TOP - 12, height: BOTTOM - TOP + 24, class: "handle" }));
    return group;
  }

  #begin(event) {
    const group = event.target.closest?.(".axis");
    if (!group || event.button !== 0) return;
    event.preventDefault();
    this.#element.setPointerCapture(event.pointerId);
    const start = this.#place(event);
    this.#drag = { axis: this.#content.axes[Number(group.dataset.axis)], start };
  }

  #move(event) {
    if (!this.#drag) return;
    const place = this.#place(event);
    if (Math.abs(place - this.#drag.start) < CLICK) return;
    this.#ranges.set(this.#drag.axis.key, rangeBetween(this.#drag.axis, this.#drag.start, place));
    this.#changed();
  }

  #end(event) {
    if (!this.#drag) return;
    const { axis, start } = this.#drag;
    this.#drag = null;
    const range = this.#ranges.get(axis.key);
    const isClick = Math.abs(this.#place(event) - start) < CLICK;
    if (isClick || range?.values?.size === 0) this.#ranges.delete(axis.key);
    this.#changed();
  }

  #place(event) {
    const box = this.#element.querySelector("svg").getBoundingClientRect();
    const y = ((event.clientY - box.top) / box.height) * HEIGHT;
    return Math.min(Math.max((BOTTOM - y) / (BOTTOM - TOP), 0), 1);
  }
}

function yOf(place) {
  return place === null ? NONE : BOTTOM - place * (BOTTOM - TOP);
}

function spansOf(axis, range) {
  if (!range.values) return [[range.low === null ? 0 : clamped(axis, range.low), range.high === null ? 1 : clamped(axis, range.high)]];
  const half = 0.5 / axis.values.length;
  return [...range.values].map((value) => [placeOf(axis, value) - half, placeOf(axis, value) + half]);
}

function clamped(axis, value) {
  const place = axis.log && value <= 0 ? 0 : placeOf(axis, value);
  return Math.min(Math.max(place, 0), 1);
}

function ends(axis, place) {
  if (axis.low === axis.high) return place === 0.5 ? formatted(axis.low) : "";
  const value = axis.log ? axis.low * (axis.high / axis.low) ** place : axis.low + place * (axis.high - axis.low);
  return axis.whole && !Number.isInteger(value) ? "" : formatted(Number(value.toPrecision(3)));
}

function some(values) {
  const step = Math.ceil(values.length / 8);
  return values.filter((_, index) => index % step === 0);
}

/** A text of that many characters at most. */
function cut(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
