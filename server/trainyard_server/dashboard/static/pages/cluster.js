// Explanations in the queue: requested when they are unfolded, and again while they stay open.
import { call, jobPath } from "../base/api.js";
import { localize } from "../base/times.js";

const REST_MS = 5_000;
const requestedAt = new WeakMap();

document.addEventListener("toggle", (event) => {
  if (event.target.matches?.("[data-why-job]") && event.target.open) explain(event.target);
}, true);

document.addEventListener("trainyard:parts", () => {
  for (const details of document.querySelectorAll("[data-why-job][open]")) explain(details);
});

async function explain(details) {
  if (Date.now() - (requestedAt.get(details) ?? 0) < REST_MS) return;
  requestedAt.set(details, Date.now());
  const target = details.querySelector(".why");
  if (!target.hasChildNodes()) target.append(element("p", "Loading…", "dim"));
  const { whyProject: project, whyJob: job } = details.dataset;
  try {
    target.replaceChildren(...explanation(await call("GET", `/trainyard/v1/${jobPath(project, job)}/why`), project));
  } catch (error) {
    requestedAt.delete(details);
    target.replaceChildren(element("p", error.message, "bad"));
  }
  localize(target);
}

/** The answer of `jobs why` as elements. */
function* explanation(why, project) {
  if (!why.kind) {
    yield element("p", why.summary);
    return;
  }
  if (why.changes.length) {
    const list = element("ul");
    for (const change of why.changes) list.append(element("li", change.message));
    const part = element("div");
    part.append(element("p", "It would start now with any one of:"), list);
    yield part;
  } else {
    yield element("p", why.nothing);
  }
  const room = why.kind === "room" ? "has room, kept for jobs ahead" : "has room";
  if (why.agents.length) {
    yield table(why.job_id, "Agents", ["Agent", "Has", "Free", "For this job"], why.agents.map((fit) => [fit.agent, fit.has, fit.free, fit.lacks || room]));
  }
  if (why.holders.length) {
    yield table(why.job_id, "Who holds it", ["Job", "On", "Holds", "Priority", "Since", "Ends at the latest"], why.holders.map((one) => [
      link(one, project), one.agent, one.holds, String(one.priority), since(one), time(one.ends_by, "date-time"),
    ]));
  }
  if (why.hidden_holders) {
    const count = why.hidden_holders;
    yield element("p", `${why.holders.length ? "and " : "Held by "}${count} ${count === 1 ? "job" : "jobs"} of other projects`, "dim");
  }
  if (why.ahead.length) {
    yield table(why.job_id, "Ahead of it", ["#", "Job", "Priority", "Needs"], why.ahead.map((one) => [String(one.position), link(one, project), String(one.priority), one.needs]));
    const hidden = why.position - 1 - why.ahead.length;
    if (hidden > 0) yield element("p", `and ${hidden} more`, "dim");
  }
}

function since(one) {
  if (one.left_over) return "ended, being stopped";
  return one.running_since ? time(one.running_since, "ago") : one.state.toLowerCase();
}

function time(timestamp, form) {
  if (!timestamp) return "";
  const made = element("time", timestamp);
  made.dateTime = timestamp;
  made.dataset.form = form;
  return made;
}

function link(one, project) {
  const made = element("a", one.project === project ? one.job_id : `${one.job_id} (${one.project})`, "name");
  made.href = `/${jobPath(one.project, one.job_id)}`;
  return made;
}

function table(job, caption, headers, rows) {
  const made = element("table");
  made.append(element("caption", caption));
  const head = made.createTHead().insertRow();
  for (const header of headers) {
    const cell = element("th", header);
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const value of row) line.insertCell().append(value);
  }
  const region = element("div", "", "scroll");
  region.tabIndex = 0;
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", `${caption}: ${job}`);
  region.append(made);
  return region;
}

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
