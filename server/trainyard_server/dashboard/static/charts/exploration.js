// Parameters and metrics of trials, or of jobs that are compared: parallel coordinates, ranges and a scatter. The ranges
// that are chosen hold for all of them.
import { Chart } from "./charts.js";
import { el } from "../base/dom.js";
import { Parallel } from "./parallel.js";
import { RangeFields, isWithin, metricOf, titleOf } from "./study_axes.js";

const byId = (id) => document.getElementById(id);

/**
 * What is explored.
 * @typedef {object} Content
 * @property {object[]} axes those of the parameters, and that of the metric last @property {object[]} choices further ones
 * of the scatter @property {string} x the key of its X axis at first @property {object[]} trials with a `number`, and a `name`
 * where they are jobs @property {string} goal MAXIMIZE, MINIMIZE or "" @property {number|null} best its number
 */
export class Exploration {
  #ranges = new Map();
  #scatter = new Chart(byId("scatter-chart"));
  #onSelect;
  #content = null;
  #parallel = new Parallel(byId("parallel"), this.#ranges, () => {
    this.#fields.write();
    this.#again();
  });
  #fields = new RangeFields(byId("ranges"), this.#ranges, () => this.#again());

  /** @param {(selected: object[], areSome: boolean) => void} onSelect gets the trials that are within the ranges, and whether
   * there are ranges */
  constructor(onSelect) {
    this.#onSelect = onSelect;
    byId("clear-ranges").addEventListener("click", () => {
      this.#ranges.clear();
      this.#fields.write();
      this.#again();
      byId("parallel").parentElement.focus();
    });
    for (const id of ["scatter-x", "scatter-y"]) byId(id).addEventListener("change", () => this.#again());
  }

  /** @param {Content} content */
  show(content) {
    this.#content = content;
    const { axes, best, goal, trials } = content;
    this.#fields.show(axes);
    const selected = trials.filter((trial) => isWithin(axes, this.#ranges, trial));
    const numbers = new Set(selected.map((trial) => trial.number));
    const ranked = worstFirst(trials, goal);
    const ranks = new Map(ranked.map((trial, index) => [trial.number, (index + 1) / ranked.length]));
    byId("clear-ranges").hidden = this.#ranges.size === 0;
    this.#parallel.show(axes, [...trials.filter((trial) => !ranks.has(trial.number)), ...ranked], numbers, ranks, best);
    this.#showScatter(numbers, ranks);
    this.#onSelect(selected, this.#ranges.size > 0);
  }

  #again() {
    if (this.#content) this.show(this.#content);
  }

  #showScatter(selected, ranks) {
    const { axes, best, choices, trials, x: first } = this.#content;
    const all = [...choices, ...axes];
    options(byId("scatter-x"), all, first);
    options(byId("scatter-y"), all, "");
    const [x, y] = ["scatter-x", "scatter-y"].map((id) => all.find(({ key }) => key === byId(id).value));
    const shown = [...new Set([x, y, axes.at(-1)])];
    const both = trials.filter((trial) => x.of(trial) !== null && y.of(trial) !== null);
    const marks = (some, more) => ({
      x: some.map((trial) => placeOn(x, trial)), y: some.map((trial) => placeOn(y, trial)), points: true, colour: 0, textOf: (at) => titleOf(shown, some[at]), ...more,
    });
    const inside = both.filter((trial) => selected.has(trial.number) && trial.number !== best);
    showEmpty("scatter-chart", both.length === 0);
    this.#scatter.show({
      lines: [
        marks(both.filter((trial) => !selected.has(trial.number)), { colour: 7, opacity: 0.3 }),
        marks(inside, { shades: inside.map((trial) => ranks.get(trial.number) ?? 0) }),
        marks(both.filter((trial) => trial.number === best && selected.has(trial.number)), { colour: 1, symbol: "diamond" }),
      ],
      x: axisOf(x),
      y: axisOf(y),
    });
    byId("scatter-chart").setAttribute("aria-label", `${y.label} over ${x.label} of ${both.length.toLocaleString("en")} points, the better the darker. The table has the values.`);
  }
}

/** The trials with a metric. */
export function worstFirst(trials, goal) {
  const sign = goal === "MAXIMIZE" ? 1 : -1;
  return trials.filter((trial) => metricOf(trial) !== null).sort((a, b) => sign * (metricOf(a) - metricOf(b)) || b.number - a.number);
}

/** Shows a sentence in place of a chart without points. */
export function showEmpty(id, isEmpty) {
  byId(id).hidden = isEmpty;
  byId(`${id}-empty`).hidden = !isEmpty;
}

/** The value of a trial on an axis; of a list its place. */
function placeOn(axis, trial) {
  return axis.values ? axis.values.indexOf(axis.of(trial)) : axis.of(trial);
}

function axisOf({ key, label, values, log }) {
  return { title: label, order: values, log, key };
}

function options(select, choices, chosen) {
  if (select.options.length === choices.length) return;
  select.replaceChildren(...choices.map(({ key, label }) => el("option", { value: key }, label)));
  select.value = chosen;
}
