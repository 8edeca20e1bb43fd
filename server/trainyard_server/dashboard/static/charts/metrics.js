// Metrics page of a job: live curves. The address has all choices.
import { ApiError } from "../base/api.js";
import { findJobs } from "./find_jobs.js";
import { styleOf } from "./charts.js";
import { CurveCharts, writeAddress } from "./curve_charts.js";
import { formatted, shortTask } from "./curves.js";
import { MetricsJob } from "./metrics_job.js";

const REST_MS = 400; // between two requests for new points
const MANY_TASKS = 8; // with more replicas only one is shown at first

const page = document.getElementById("job").dataset;
const mine = new MetricsJob(page.project, page.job);
const element = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);

/** The replica that the reader has chosen: null for none, "" for all. */
let task = query.get("task");
let timer = 0;
let requesting = false;
let again = false;

const others = (query.get("with") ?? "").split(",").filter((key) => /^[^/]+\/[^/]+$/.test(key));
if (others.length) compare(others);
const charts = new CurveCharts((event) => {
  if (event?.target.name === "task") {
    task = event.target.value;
    chooseTask();
  }
  const choices = new URLSearchParams();
  charts.write(choices);
  if (task !== null) choices.set("task", task);
  writeAddress(choices);
});
findJobs((project, job) => compare([`${project}/${job}`]), () => new Set([mine.key]));
document.addEventListener("trainyard:parts", (event) => {
  if (event.detail.includes("curves")) refreshSoon();
});
refreshSoon();

/** Opens the comparison with other jobs, with the choices of this page. */
function compare(keys) {
  const choices = new URLSearchParams([mine.key, ...keys].map((key) => ["job", key]));
  for (const [name, value] of new URLSearchParams(location.search)) if (!["with", "task"].includes(name)) choices.append(name, value);
  location.assign(`/compare?${choices.toString().replaceAll("%2F", "/")}`);
}

// One request at a time: changes during a request lead to one more.
function refreshSoon() {
  if (requesting) {
    again = true;
    return;
  }
  if (timer) return;
  timer = setTimeout(async () => {
    timer = 0;
    requesting = true;
    again = false;
    try {
      if (await mine.refresh()) {
        chooseTask();
        show();
        charts.refreshDetail();
      }
      element("metrics-note").textContent = limits(mine.view);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      element("metrics-note").textContent = error.message;
    } finally {
      requesting = false;
      if (again) refreshSoon();
    }
  }, mine.view ? REST_MS : 0);
}

function taskShown() {
  if (task !== null) return task;
  const tasks = mine.view?.tasks ?? [];
  return tasks.length > MANY_TASKS ? tasks[0] : "";
}

function chooseTask() {
  const { tasks } = mine.view;
  element("task-label").hidden = tasks.length < 2;
  const select = element("task");
  const options = ["", ...tasks];
  if ([...select.options].map((option) => option.value).join() !== options.join()) {
    select.replaceChildren(...options.map((one) => new Option(one ? shortTask(one) : "all", one)));
  }
  select.value = taskShown();
  if (mine.choose(taskShown())) refreshSoon();
}

function show() {
  const { view } = mine;
  element("metrics").hidden = view.names.length === 0;
  element("where").textContent = where(view);
  const tasks = [...new Set([...mine.series.keys()].map((key) => key.split("\t")[1]))];
  charts.show([mine], (names) => linesOf(names, tasks));
}

// A line for each metric of each replica, named by what differs.
function linesOf(names, tasks) {
  return names.flatMap((metric) =>
    tasks
      .filter((one) => mine.series.has(`${metric}\t${one}`))
      .map((one) => {
        const parts = [names.length > 1 || tasks.length < 2 ? metric : "", tasks.length > 1 ? shortTask(one) : ""];
        return { key: `${metric}\t${one}`, name: parts.filter(Boolean).join(" · "), metric, tasks: [one], job: mine, style: styleOf(tasks.indexOf(one)) };
      }),
  );
}

function where(view) {
  const parts = [];
  if (view.step !== null) parts.push(`Step ${view.step.toLocaleString("en")}${view.steps ? ` of ${view.steps.toLocaleString("en")}` : ""}`);
  if (view.epoch !== null) parts.push(`epoch ${formatted(view.epoch)}${view.epochs ? ` of ${formatted(view.epochs)}` : ""}`);
  return parts.join(" · ");
}

function limits(view) {
  const parts = [];
  if (view.thinned) parts.push("There are too many points to keep all of them; the curves keep their shape.");
  if (view.left_out) parts.push("This job has too many metrics: some are left out.");
  return parts.join(" ");
}
