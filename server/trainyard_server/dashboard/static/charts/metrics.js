// Metrics page of a job: live curves, beside those of other jobs. The address has all choices.
import { ApiError } from "../base/api.js";
import { note } from "../base/banner.js";
import { findJobs, showCompared } from "./compare.js";
import { formatted, groupsOf, shortTask } from "./curves.js";
import { Card } from "./metrics_card.js";
import { MetricsJob } from "./metrics_job.js";

const REST_MS = 400; // between two requests for new points
const OTHERS_MS = 5_000; // between two requests for each compared job, while it runs
const CARDS = 24; // shown at once; a button shows more
const MANY_TASKS = 8; // with more replicas only one is shown at first
const MOST_COMPARED = 15;

const page = document.getElementById("job").dataset;
const mine = new MetricsJob(page.project, page.job);
const element = (id) => document.getElementById(id);
const controls = element("metrics-controls");

/** The reader's choices, as in the address. */
const chosen = { with: [], smooth: 0, log: new Set(), x: "step", task: null, q: "" };
const others = new Map();
const cards = new Map();
let most = CARDS;
let timer = 0;
let requesting = false;
let again = false;

readAddress();
controls.elements.smooth.value = chosen.smooth;
controls.elements.x.value = chosen.x;
controls.elements.q.value = chosen.q;
controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("input", choose);
controls.addEventListener("change", choose);
element("more-charts").addEventListener("click", () => {
  most += CARDS;
  show();
});
findJobs(compare, () => new Set([mine.key, ...chosen.with]));
for (const key of chosen.with) others.set(key, jobOf(key));
document.addEventListener("trainyard:parts", (event) => {
  if (event.detail.includes("curves")) refreshSoon();
});
refreshSoon();
setInterval(refreshOthers, OTHERS_MS);
refreshOthers();

function readAddress() {
  const query = new URLSearchParams(location.search);
  const keys = (query.get("with") ?? "").split(",").filter((key) => /^[^/]+\/[^/]+$/.test(key) && key !== mine.key);
  chosen.with = [...new Set(keys)].slice(0, MOST_COMPARED);
  const smooth = Number(query.get("smooth"));
  chosen.smooth = smooth > 0 && smooth < 1 ? Math.min(smooth, 0.99) : 0;
  chosen.log = new Set(query.getAll("log"));
  chosen.x = ["step", "time", "epoch"].includes(query.get("x")) ? query.get("x") : "step";
  chosen.task = query.get("task");
  chosen.q = query.get("q") ?? "";
}

function writeAddress() {
  const query = new URLSearchParams();
  if (chosen.with.length) query.set("with", chosen.with.join(","));
  if (chosen.smooth) query.set("smooth", chosen.smooth);
  for (const base of chosen.log) query.append("log", base);
  if (chosen.x !== "step") query.set("x", chosen.x);
  if (chosen.task !== null) query.set("task", chosen.task);
  if (chosen.q) query.set("q", chosen.q);
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%2C", ",");
  history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : ""));
}

function choose(event) {
  chosen.smooth = Number(controls.elements.smooth.value);
  chosen.x = controls.elements.x.value;
  chosen.q = controls.elements.q.value.trim();
  if (event.target.name === "task") {
    chosen.task = controls.elements.task.value;
    chooseTask();
    refreshOthers();
  }
  writeAddress();
  show();
}

function compare(project, job) {
  const key = `${project}/${job}`;
  if (chosen.with.length >= MOST_COMPARED) {
    note(`At most ${MOST_COMPARED} jobs can be compared at once.`, "bad");
    return;
  }
  chosen.with.push(key);
  others.set(key, jobOf(key));
  writeAddress();
  refreshOthers();
}

function forget(key) {
  chosen.with = chosen.with.filter((one) => one !== key);
  others.delete(key);
  writeAddress();
  show();
}

function jobOf(key) {
  const job = new MetricsJob(...key.split("/"));
  job.choose(taskShown());
  return job;
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
        for (const card of cards.values()) card.refreshDetail();
      }
      element("metrics-note").textContent = "";
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      element("metrics-note").textContent = error.message;
    } finally {
      requesting = false;
      if (again) refreshSoon();
    }
  }, mine.view ? REST_MS : 0);
}

// Compared jobs are polled, and once more when they have ended.
async function refreshOthers() {
  if (document.hidden && [...others.values()].every((job) => job.view)) return;
  const answers = await Promise.all(
    [...others.values()].map(async (job) => {
      if (job.isDone) return false;
      try {
        const hasEnded = await job.hasEnded();
        const changed = await job.refresh();
        job.isDone = hasEnded;
        job.error = "";
        return changed;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (!job.error) note(`${job.key}: ${error.message}`, "bad");
        job.error = error.message;
        return false;
      }
    }),
  );
  if (answers.includes(true) || !others.size) show();
}

function taskShown() {
  if (chosen.task !== null) return chosen.task;
  const tasks = mine.view?.tasks ?? [];
  return tasks.length > MANY_TASKS ? tasks[0] : "";
}

function chooseTask() {
  const { tasks } = mine.view;
  const task = taskShown();
  element("task-label").hidden = tasks.length < 2;
  const select = element("task");
  const options = ["", ...tasks];
  if ([...select.options].map((option) => option.value).join() !== options.join()) {
    select.replaceChildren(...options.map((one) => new Option(one ? shortTask(one) : "all", one)));
  }
  select.value = task;
  if (mine.choose(task)) refreshSoon();
  for (const job of others.values()) job.choose(task);
}

function show() {
  const { view } = mine;
  if (!view) return;
  element("metrics").hidden = view.names.length === 0;
  element("where").textContent = where(view);
  element("smooth-value").textContent = chosen.smooth ? chosen.smooth.toFixed(2) : "off";
  controls.elements.x.querySelector('[value="epoch"]').disabled = !mine.starts.length && chosen.x !== "epoch";
  showCompared(element("compared"), chosen.with, forget);

  const jobs = [mine, ...others.values()].filter((job) => job.view);
  const groups = [...groupsOf([...new Set(jobs.flatMap((job) => job.view.names))])];
  element("q-label").hidden = groups.length <= 8 && !chosen.q;
  const filtered = groups.filter(([base, names]) => [base, ...names].some((name) => name.toLowerCase().includes(chosen.q.toLowerCase())));
  const pairs = new Map();
  for (const job of jobs) for (const key of job.series.keys()) pairs.set(`${job.key}\t${key.split("\t")[1]}`, 0);
  [...pairs.keys()].forEach((pair, index) => pairs.set(pair, index));

  const shown = filtered.slice(0, most);
  const seconds = Math.max(0, ...jobs.flatMap((job) => [...job.series.values()].flat().map((one) => one.times.at(-1) ?? 0)));
  const bases = new Set(shown.map(([base]) => base));
  for (const [base, card] of cards) {
    if (bases.has(base)) continue;
    card.close();
    cards.delete(base);
  }
  let before = null;
  for (const [base, names] of shown) {
    const lines = linesOf(jobs, names, pairs);
    const card = cards.get(base) ?? newCard(base);
    if (!card.element.isConnected || card.element.previousElementSibling !== before) {
      if (before) before.after(card.element);
      else element("charts").prepend(card.element);
    }
    before = card.element;
    card.show(lines, { x: chosen.x, smooth: chosen.smooth, log: chosen.log.has(base), seconds });
  }
  for (const painted of document.querySelectorAll(".painted")) painted.remove();
  const more = filtered.length - shown.length;
  element("more-charts").hidden = more <= 0;
  element("more-charts").textContent = `Show ${Math.min(more, CARDS)} more of ${more}`;
  if (view.thinned || view.left_out) element("metrics-note").textContent = limits(view);
}

function newCard(base) {
  const painted = document.querySelector(`.painted[data-metric="${CSS.escape(base)}"]`);
  const card = new Card(base, painted, (isOn) => {
    if (isOn) chosen.log.add(base);
    else chosen.log.delete(base);
    writeAddress();
    show();
  });
  cards.set(base, card);
  return card;
}

// A line for each metric of each replica of each job, named by what differs.
function linesOf(jobs, names, pairs) {
  const tasks = new Set([...pairs.keys()].map((pair) => pair.split("\t")[1]));
  const lines = [];
  for (const job of jobs) {
    for (const metric of names) {
      for (const [key] of job.series) {
        const [name, task] = key.split("\t");
        if (name !== metric) continue;
        const parts = [others.size ? job.job : "", names.length > 1 || (!others.size && tasks.size < 2) ? name : "", tasks.size > 1 ? shortTask(task) : ""];
        lines.push({ key: `${job.key}\t${key}`, name: parts.filter(Boolean).join(" · "), metric, task, job, index: pairs.get(`${job.key}\t${task}`) });
      }
    }
  }
  return lines;
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
