// Page of a study: charts and the table of its trials, from the API. The ranges that are chosen hold for both.
import { call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { byId } from "../base/dom.js";
import { Chart } from "./charts.js";
import { formatted } from "./curves.js";
import { Parallel } from "./parallel.js";
import { axesOf, metricOf, worstFirst } from "./study_axes.js";
import { TrialsTable } from "./study_table.js";

const AGAIN_MS = 1000;
const COMPARED = 8; // jobs in one comparison

const { project, job } = document.getElementById("job").dataset;
const table = new TrialsTable(byId("trials"), byId("trials-pages"));
const bestChart = new Chart(byId("best-chart"));
const parallel = new Parallel(showSelected);
let study = null;
let version = "";
let loading = false;

document.addEventListener("trainyard:parts", load);
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
  const hidden = study.count - study.trials.length;
  byId("study-note").textContent = hidden ? `Shown here are ${study.trials.length.toLocaleString("en")} of ${study.count.toLocaleString("en")} trials: the best and the newest.` : "";
  showBest();
  parallel.show({ axes: axesOf(study), trials: study.trials, goal: study.goal, best: study.best });
}

function showSelected(selected, areSome) {
  byId("trials-count").textContent = areSome ? `${selected.length.toLocaleString("en")} of ${count(study.trials.length)} selected` : count(study.trials.length);
  table.show(study, selected, trialHref);
  showCompare(selected);
}

function showBest() {
  const measured = study.trials.filter((trial) => metricOf(trial) !== null);
  const records = [...study.records];
  const last = measured.reduce((most, trial) => Math.max(most, trial.number), 0);
  if (records.length && records.at(-1)[0] < last) records.push([last, records.at(-1)[1]]);
  const marks = (trials, colour, symbol) => ({
    x: trials.map((trial) => trial.number), y: trials.map(metricOf), colour, symbol, points: true, textOf: (at) => `Trial ${trials[at].number}: ${formatted(metricOf(trials[at]))}`,
  });
  byId("best-chart").hidden = measured.length === 0;
  byId("best-chart-empty").hidden = measured.length > 0;
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

function showCompare(selected) {
  const compared = worstFirst(selected, study.goal).reverse().slice(0, COMPARED).map((trial) => trial.number);
  const together = new URLSearchParams(compared.map((number) => ["job", `${project}/${job}.${number}`]));
  byId("curves").hidden = compared.length === 0;
  byId("curves").href = compared.length > 1 ? `/compare?${together}` : `${trialHref(compared[0])}/metrics`;
  byId("curves").textContent = compared.length > 1 ? `Compare the best ${compared.length}` : "Its curves";
}

function trialHref(number) {
  return `/${jobPath(project, `${job}.${number}`)}`;
}

function count(many) {
  return `${many.toLocaleString("en")} ${many === 1 ? "trial" : "trials"}`;
}
