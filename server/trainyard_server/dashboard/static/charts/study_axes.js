// Axes of a study: its parameters and its metric, with their scales; and which trials are within chosen ranges.
import { el } from "../base/dom.js";
import { formatted } from "./curves.js";

const FEW = 12; // values of a list that are shown one by one

/** The value that counts: none of a trial that failed. */
export function metricOf(trial) {
  return trial.state === "FAILED" ? null : trial.value;
}

/**
 * @typedef {object} Axis
 * @property {string} key "" for the metric @property {string} label @property {boolean} log @property {boolean} whole
 * @property {string[]|null} values of a list, else null @property {number} low @property {number} high
 * @property {(trial: object) => number|string|null} of its value for a trial
 */

/** @returns {Axis[]} those of the parameters, and that of the metric last */
export function axesOf(study) {
  const axes = study.parameters.map((one) => {
    const text = (trial) => trial.parameters[one.name] ?? null;
    const listed = one.values.length > 0 && (one.type === "CATEGORICAL" || one.values.length <= FEW);
    if (listed) return { key: one.name, label: one.name, values: one.values, log: false, whole: false, low: 0, high: 1, of: text };
    const numbers = one.values.map(Number);
    return {
      key: one.name,
      label: one.name,
      values: null,
      log: one.scale === "UNIT_LOG_SCALE",
      whole: one.type === "INTEGER",
      low: one.low ?? Math.min(...numbers),
      high: one.high ?? Math.max(...numbers),
      of: (trial) => (text(trial) === null ? null : Number(text(trial))),
    };
  });
  const measured = study.trials.map(metricOf).filter((value) => value !== null);
  const low = measured.reduce((a, b) => Math.min(a, b), Infinity);
  const high = measured.reduce((a, b) => Math.max(a, b), -Infinity);
  const range = measured.length ? { low, high } : { low: 0, high: 1 };
  return [...axes, { key: "", label: study.metric_tag, values: null, log: false, whole: false, ...range, of: metricOf }];
}

/** The trials with a metric. */
export function worstFirst(trials, goal) {
  const sign = goal === "MAXIMIZE" ? 1 : -1;
  return trials.filter((trial) => metricOf(trial) !== null).sort((a, b) => sign * (metricOf(a) - metricOf(b)) || b.number - a.number);
}

/** Place of a value on its axis, from 0 to 1; null for a trial that has none. */
export function placeOf(axis, value) {
  if (value === null) return null;
  if (axis.values) {
    const index = axis.values.indexOf(value);
    return index < 0 ? null : (index + 0.5) / axis.values.length;
  }
  if (axis.high === axis.low) return 0.5;
  if (axis.log) return Math.log(value / axis.low) / Math.log(axis.high / axis.low);
  return (value - axis.low) / (axis.high - axis.low);
}

/** The number at a place of an axis that is no list. */
export function numberAt(axis, place) {
  const at = Math.min(Math.max(place, 0), 1);
  return axis.log ? axis.low * (axis.high / axis.low) ** at : axis.low + at * (axis.high - axis.low);
}

/** The range between two places: `{low, high}` of numbers, `{values}` of a list. */
export function rangeBetween(axis, first, second) {
  const [from, to] = first < second ? [first, second] : [second, first];
  if (axis.values) return { values: new Set(axis.values.filter((value) => placeOf(axis, value) >= from && placeOf(axis, value) <= to)) };
  return { low: from <= 0 ? null : numberAt(axis, from), high: to >= 1 ? null : numberAt(axis, to) };
}

/** Whether a trial is within every range. @param {Map<string, object>} ranges by the axis's key */
export function isWithin(axes, ranges, trial) {
  return axes.every((axis) => {
    const range = ranges.get(axis.key);
    if (!range) return true;
    const value = axis.of(trial);
    if (value === null) return false;
    if (range.values) return range.values.has(value);
    return (range.low === null || value >= range.low) && (range.high === null || value <= range.high);
  });
}

/** The values of a trial in words; axes on which it has none are left out. */
export function titleOf(axes, trial) {
  const values = axes.map((axis) => [axis.label, axis.of(trial)]).filter(([, value]) => value !== null);
  return `${trial.name ?? `Trial ${trial.number}`}: ${values.map(([name, value]) => `${name} ${typeof value === "number" ? formatted(value) : value}`).join(", ")}`;
}

/** Fields for the ranges, for the keyboard: two numbers, or a box for each value. */
export class RangeFields {
  #form;
  #axes = [];
  #ranges;
  #onChange;

  /** @param {HTMLFormElement} form @param {Map<string, object>} ranges which it changes @param {() => void} onChange */
  constructor(form, ranges, onChange) {
    this.#form = form;
    this.#ranges = ranges;
    this.#onChange = onChange;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", (event) => this.#read(event.target.closest("fieldset")));
  }

  /** Makes the fields anew when there are other axes. The ends of the metric's move while trials run. */
  show(axes) {
    const same = axes.length === this.#axes.length && axes.every((axis, index) => axis.key === this.#axes[index].key);
    this.#axes = axes;
    if (!same) {
      this.#form.replaceChildren(...axes.map((axis, index) => field(axis, index)));
      this.write();
    }
    axes.forEach((axis, index) => {
      const ends = this.#form.children[index].querySelectorAll("input:not([type=checkbox])");
      ends.forEach((input, end) => (input.placeholder = formatted(end ? axis.high : axis.low)));
    });
  }

  /** Fills the fields from the ranges. */
  write() {
    this.#axes.forEach((axis, index) => {
      const range = this.#ranges.get(axis.key);
      const inputs = this.#form.children[index].querySelectorAll("input");
      if (axis.values) for (const input of inputs) input.checked = range?.values.has(input.value) ?? false;
      else [inputs[0].value, inputs[1].value] = [range?.low, range?.high].map((value) => (value ?? null) === null ? "" : String(Number(value.toPrecision(4))));
    });
  }

  #read(set) {
    const axis = this.#axes[[...this.#form.children].indexOf(set)];
    const inputs = [...set.querySelectorAll("input")];
    if (axis.values) {
      const values = new Set(inputs.filter((input) => input.checked).map((input) => input.value));
      this.#set(axis, values.size ? { values } : null);
      return;
    }
    const [low, high] = inputs.map((input) => (input.value.trim() === "" ? null : Number(input.value)));
    inputs.forEach((input, index) => input.setAttribute("aria-invalid", String(Number.isNaN([low, high][index]))));
    if (Number.isNaN(low) || Number.isNaN(high)) return;
    this.#set(axis, low === null && high === null ? null : { low, high });
  }

  #set(axis, range) {
    if (range) this.#ranges.set(axis.key, range);
    else this.#ranges.delete(axis.key);
    this.#onChange();
  }
}

function field(axis, index) {
  const legend = el("legend", {}, axis.label);
  if (axis.values) {
    const boxes = axis.values.map((value) => el("label", {}, el("input", { type: "checkbox", value }), value));
    return el("fieldset", {}, legend, el("div", { class: "boxes" }, ...boxes));
  }
  const input = (word) => {
    const id = `range-${index}-${word}`;
    return [el("label", { for: id }, word), el("input", { id, inputmode: "decimal", autocomplete: "off", size: 8 })];
  };
  return el("fieldset", {}, legend, el("div", { class: "ends" }, ...input("from"), ...input("to")));
}
