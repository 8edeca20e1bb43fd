// Page of a comparison: the curves of jobs with a tick for each, and their parameters. The address has all choices.
import { ApiError, call, jobPath } from "../base/api.js";
import { byId, el } from "../base/dom.js";
import { styleAmong } from "../charts/charts.js";
import { CurveCharts, writeAddress } from "../charts/curve_charts.js";
import { findJobs } from "../charts/find_jobs.js";
import { swatch } from "../charts/metrics_card.js";
import { MetricsJob } from "../charts/metrics_job.js";
import { Parallel } from "../charts/parallel.js";
import { axesOf } from "../charts/study_axes.js";

const POINTS = 60_000; // of all curves together
const FIRST = 10; // jobs whose curves are shown before the others are read
const OTHERS_MS = 5_000; // between two requests for jobs that run
const FINAL = new Set(["SUCCEEDED", "FAILED", "CANCELLED"]);

const query = new URLSearchParams(location.search);
const keys = JSON.parse(byId("names").textContent);
const off = new Set(query.getAll("off"));
const jobs = keys.map((key) => new MetricsJob(...key.split("/"), Math.floor(POINTS / keys.length)));
const styles = new Map(jobs.map((job, index) => [job, styleAmong(index, jobs.length)]));
const ended = new Set(); // jobs with all their curves
const charts = new CurveCharts(write);
const parallel = new Parallel(showSelected);
let view = null;
let version = "";

showLegend();
findJobs((project, job) => goTo([...keys, `${project}/${job}`]), () => new Set(keys));
document.addEventListener("change", (event) => {
  if (event.target.id !== "judged-by") return;
  const others = new URLSearchParams(location.search);
  others.set("metric", event.target.value);
  location.assign(`/compare?${others}`);
});
document.addEventListener("click", (event) => {
  const without = event.target.closest("[data-without]");
  if (!without || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  goTo(keys.filter((key) => key !== without.dataset.without));
});
document.addEventListener("trainyard:parts", compare);
compare();
load();

function goTo(names) {
  const others = new URLSearchParams(location.search);
  others.delete("job");
  for (const name of names) others.append("job", name);
  location.assign(`/compare?${others.toString().replaceAll("%2F", "/")}`);
}

function write() {
  const choices = new URLSearchParams(query.getAll("job").map((name) => ["job", name]));
  if (query.get("metric")) choices.set("metric", query.get("metric"));
  charts.write(choices);
  for (const key of off) choices.append("off", key);
  writeAddress(choices);
}

function showLegend() {
  const items = jobs.map((job) => {
    const tick = el("input", { type: "checkbox", checked: !off.has(job.key), "data-key": job.key });
    const label = el("label", {}, tick, swatch(styles.get(job)), el("span", {}, nameOf(job)));
    return el("li", {}, label);
  });
  byId("legend").replaceChildren(...items);
  byId("legend").addEventListener("change", (event) => {
    if (event.target.checked) off.delete(event.target.dataset.key);
    else off.add(event.target.dataset.key);
    write();
    showCurves();
  });
  const all = (isOn) => () => {
    off.clear();
    if (!isOn) for (const key of keys) off.add(key);
    for (const tick of byId("legend").querySelectorAll("input")) tick.checked = isOn;
    write();
    showCurves();
  };
  byId("legend-all").addEventListener("click", all(true));
  byId("legend-none").addEventListener("click", all(false));
}

/** The name of a job in charts: with its project where there are several. */
function nameOf(job) {
  return new Set(jobs.map(({ project }) => project)).size > 1 ? job.key : job.job;
}

// The first jobs are shown at once: reading long logs for the first time takes a while.
async function load() {
  for (const some of [jobs.slice(0, FIRST), jobs.slice(FIRST)]) {
    if (some.length === 0) continue;
    const request = new URLSearchParams(some.map((job) => ["job", job.key]));
    request.set("points", Math.floor((POINTS * some.length) / jobs.length));
    try {
      const answer = await call("GET", `/trainyard/v1/metrics?${request}`);
      const curves = new Map(answer.jobs.map(({ project, job_id: job, curves: of }) => [`${project}/${job}`, of]));
      for (const job of some) if (curves.has(job.key)) job.receive(curves.get(job.key));
      showCurves();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      byId("metrics-note").textContent = error.message;
    }
  }
  setInterval(refresh, OTHERS_MS);
  refresh();
}

// Jobs that run are polled, and once more when they have ended.
async function refresh() {
  if (document.hidden || !view) return;
  const finals = new Set(view.jobs.filter(({ state }) => FINAL.has(state)).map(({ project, job_id: job }) => `${project}/${job}`));
  let changed = false;
  for (const job of jobs.filter((one) => one.view && !ended.has(one))) {
    try {
      if (!(finals.has(job.key) && job.view.complete)) changed = (await job.refresh()) || changed;
      if (finals.has(job.key)) ended.add(job);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      byId("metrics-note").textContent = `${job.key}: ${error.message}`;
    }
  }
  if (changed) {
    showCurves();
    charts.refreshDetail();
  }
}

function showCurves() {
  const measured = jobs.filter((job) => job.view?.names.length);
  byId("metrics").hidden = measured.length === 0;
  byId("no-curves").hidden = measured.length > 0;
  const shown = measured.filter((job) => !off.has(job.key));
  byId("bands").hidden = !measured.some((job) => job.view.names.some((metric) => tasksOf(job, metric).length > 1));
  charts.show(shown, (names) => shown.flatMap((job) => names.flatMap((metric) => linesOf(job, metric, names))));
}

/** The replicas of a job that have a metric. */
function tasksOf(job, metric) {
  return job.view.tasks.filter((task) => job.series.has(`${metric}\t${task}`));
}

/** The line of a metric of a job, a band where several replicas have it. */
function linesOf(job, metric, names) {
  const tasks = tasksOf(job, metric);
  if (tasks.length === 0) return [];
  const name = names.length > 1 ? `${nameOf(job)} · ${metric}` : nameOf(job);
  return [{ key: `${job.key}\t${metric}`, name, metric, tasks, job, style: styles.get(job) }];
}

async function compare() {
  const newest = byId("compared").dataset.version;
  if (newest === version) return;
  version = newest;
  const request = new URLSearchParams(keys.map((key) => ["job", key]));
  if (query.get("metric")) request.set("metric", query.get("metric"));
  try {
    view = await call("GET", `/trainyard/v1/jobs:compare?${request}`);
    showParameters();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("metrics-note").textContent = error.message;
  }
}

function showParameters() {
  byId("parameters").hidden = !view.metric || view.axes.length === 0;
  if (byId("parameters").hidden) return;
  const trials = view.jobs.map(({ job_id: name, state, parameters, metrics }, number) => {
    const metric = metrics[view.metric];
    return { number, name, state, parameters, value: metric?.best ?? metric?.last ?? null };
  });
  const axes = axesOf({ parameters: view.axes, trials, metric_tag: view.metric });
  parallel.show({ axes, trials, goal: view.goal, best: view.best });
}

function showSelected(selected, areSome) {
  byId("selected").textContent = areSome ? `${selected.length} of ${view.jobs.length} jobs selected` : "";
  byId("compare-selected").hidden = !areSome || selected.length < 2;
  const names = selected.map(({ number }) => ["job", `${view.jobs[number].project}/${view.jobs[number].job_id}`]);
  byId("compare-selected").href = `/compare?${new URLSearchParams(names)}`;
  byId("open-selected").hidden = !areSome || selected.length !== 1;
  if (selected.length === 1) byId("open-selected").href = `/${jobPath(...names[0][1].split("/"))}`;
}
