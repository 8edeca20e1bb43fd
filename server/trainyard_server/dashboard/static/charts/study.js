// Page of a study: charts and the table of its trials, from the API. The ranges that are chosen hold for all of them.
import { call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { Chart } from "./charts.js";
import { formatted } from "./curves.js";
import { el } from "../base/dom.js";
import { Parallel } from "./parallel.js";
import { RangeFields, axesOf, isWithin, metricOf, titleOf } from "./study_axes.js";
import { TrialsTable } from "./study_table.js";

const AGAIN_MS = 1000;
const CURVES = 6; // jobs in one comparison of curves
const NUMBER = "\ttrial"; // key of the trials' numbers, which no parameter has

const { project, job } = document.getElementById("job").dataset;
const byId = (id) => document.getElementById(id);
const ranges = new Map();
const parallel = new Parallel(byId("parallel"), ranges, () => {
  fields.write();
  show();
});
const fields = new RangeFields(byId("ranges"), ranges, show);
const table = new TrialsTable(byId("trials"), byId("trials-pages"));
const bestChart = new Chart(byId("best-chart"));
const scatterChart = new Chart(byId("scatter-chart"));
let study = null;
let version = "";
let loading = false;

document.addEventListener("trainyard:parts", load);
byId("clear-ranges").addEventListener("click", () => {
  ranges.clear();
  fields.write();
  show();
  byId("parallel").parentElement.focus();
});
for (const id of ["scatter-x", "scatter-y"]) byId(id).addEventListener("change", show);
load();

// One request at a time, and one a second: a study of many trials changes often.
async function load() {
  const newest = byId("now").dataset.version;
  if (loading || newest === version) return;
  loading = true;
  try {
    study = await call("GET", `/trainyard/v1/${jobPath(project, job)}/study`);
    version = newest;
    show();
  } catch (error) {
    note(error.message, "bad");
  }
  setTimeout(() => {
    loading = false;
    load();
  }, AGAIN_MS);
}

function show() {
  if (!study) return;
  const axes = axesOf(study);
  fields.show(axes);
  const selected = study.trials.filter((trial) => isWithin(axes, ranges, trial));
  const numbers = new Set(selected.map((trial) => trial.number));
  const ranked = worstFirst(study.trials);
  const ranks = new Map(ranked.map((trial, index) => [trial.number, (index + 1) / ranked.length]));
  const hidden = study.count - study.trials.length;
  byId("study-note").textContent = hidden ? `Shown here are ${study.trials.length.toLocaleString("en")} of ${study.count.toLocaleString("en")} trials: the best and the newest.` : "";
  byId("trials-count").textContent = ranges.size ? `${selected.length.toLocaleString("en")} of ${count(study.trials.length)} selected` : count(study.trials.length);
  parallel.show(axes, [...study.trials.filter((trial) => !ranks.has(trial.number)), ...ranked], numbers, ranks, study.best);
  table.show(study, selected, trialHref);
  showBest();
  showScatter(axes, numbers, ranks);
  showActions(selected);
}

/** The trials with a metric. */
function worstFirst(trials) {
  const sign = study.goal === "MAXIMIZE" ? 1 : -1;
  return trials.filter((trial) => metricOf(trial) !== null).sort((a, b) => sign * (metricOf(a) - metricOf(b)) || b.number - a.number);
}

function showBest() {
  const measured = study.trials.filter((trial) => metricOf(trial) !== null);
  const records = [...study.records];
  const last = measured.reduce((most, trial) => Math.max(most, trial.number), 0);
  if (records.length && records.at(-1)[0] < last) records.push([last, records.at(-1)[1]]);
  const marks = (trials, colour, symbol) => ({
    x: trials.map((trial) => trial.number), y: trials.map(metricOf), colour, symbol, points: true, texts: trials.map((trial) => `Trial ${trial.number}: ${formatted(metricOf(trial))}`),
  });
  showEmpty("best-chart", measured.length === 0);
  bestChart.show({
    lines: [
      { x: records.map(([number]) => number), y: records.map(([, value]) => value), colour: 0, stepped: true, width: 2 },
      marks(measured.filter((trial) => trial.number !== study.best), 7, "circle"),
      marks(measured.filter((trial) => trial.number === study.best), 1, "diamond"),
    ],
    x: { title: "trial", whole: true },
    y: { title: study.metric_tag },
  });
  const now = records.length ? `, now ${formatted(records.at(-1)[1])} of trial ${study.best}` : "";
  byId("best-chart").setAttribute("aria-label", `Best ${study.metric_tag} over ${count(study.count)}${now}. The table of trials has the values.`);
}

function showScatter(axes, selected, ranks) {
  const choices = [{ key: NUMBER, label: "trial", values: null, log: false, of: (trial) => trial.number }, ...axes];
  const most = study.parameters.reduce((a, b) => ((b.importance ?? -1) > (a?.importance ?? -1) ? b : a), study.parameters[0]);
  options(byId("scatter-x"), choices, most?.name ?? NUMBER);
  options(byId("scatter-y"), choices, "");
  const [x, y] = ["scatter-x", "scatter-y"].map((id) => choices.find(({ key }) => key === byId(id).value));
  const shown = [...new Set([x, y, axes.at(-1)])];
  const both = study.trials.filter((trial) => x.of(trial) !== null && y.of(trial) !== null);
  const marks = (trials, more) => ({
    x: trials.map((trial) => numberOf(x, trial)), y: trials.map((trial) => numberOf(y, trial)), points: true, colour: 0, texts: trials.map((trial) => titleOf(shown, trial)), ...more,
  });
  const inside = both.filter((trial) => selected.has(trial.number) && trial.number !== study.best);
  showEmpty("scatter-chart", both.length === 0);
  scatterChart.show({
    lines: [
      marks(both.filter((trial) => !selected.has(trial.number)), { colour: 7, opacity: 0.3 }),
      marks(inside, { shades: inside.map((trial) => ranks.get(trial.number) ?? 0) }),
      marks(both.filter((trial) => trial.number === study.best && selected.has(trial.number)), { colour: 1, symbol: "diamond" }),
    ],
    x: axisOf(x),
    y: axisOf(y),
  });
  byId("scatter-chart").setAttribute("aria-label", `${y.label} over ${x.label} of ${count(both.length)}, the better the darker. The table of trials has the values.`);
}

/** The value of a trial on an axis; of a list its place. */
function numberOf(axis, trial) {
  return axis.values ? axis.values.indexOf(axis.of(trial)) : axis.of(trial);
}

/** Shows a sentence in place of a chart without points. */
function showEmpty(id, isEmpty) {
  byId(id).hidden = isEmpty;
  byId(`${id}-empty`).hidden = !isEmpty;
}

function axisOf({ key, label, values, log }) {
  return { title: label, order: values, log, key };
}

function options(select, choices, chosen) {
  if (select.options.length === choices.length) return;
  select.replaceChildren(...choices.map(({ key, label }) => el("option", { value: key }, label)));
  select.value = chosen;
}

function showActions(selected) {
  const submits = byId("now").dataset.submits === "1";
  byId("clear-ranges").hidden = ranges.size === 0;
  const from = `/new?from=${encodeURIComponent(`${project}/${job}`)}&trials=`;
  link("clone-selection", submits && ranges.size > 0 && selected.length > 0, `${from}${spans(selected.map((trial) => trial.number))}`);
  link("clone-best", submits && study.best_quarter > 0, `${from}best`);
  const compared = worstFirst(selected).reverse().slice(0, CURVES).map((trial) => trial.number);
  const more = compared.slice(1).map((number) => `${project}/${job}.${number}`).join(",");
  link("curves", compared.length > 0, `${trialHref(compared[0])}/metrics${more ? `?with=${encodeURIComponent(more)}` : ""}`);
  byId("curves").textContent = compared.length > 1 ? `Curves of the best ${compared.length}` : "Its curves";
}

function link(id, shown, href) {
  byId(id).hidden = !shown;
  if (shown) byId(id).href = href;
}

/** `1-3,7` */
function spans(numbers) {
  const found = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    if (found.at(-1)?.[1] === number - 1) found.at(-1)[1] = number;
    else found.push([number, number]);
  }
  return found.map(([low, high]) => (low === high ? low : `${low}-${high}`)).join(",");
}

function trialHref(number) {
  return `/${jobPath(project, `${job}.${number}`)}`;
}

function count(many) {
  return `${many.toLocaleString("en")} ${many === 1 ? "trial" : "trials"}`;
}
