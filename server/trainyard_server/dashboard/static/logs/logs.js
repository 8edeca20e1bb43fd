// Log page of a job: filters, search and status. The lines themselves: log_view.js.
import { jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { copy } from "../base/copy.js";
import { el } from "../base/dom.js";
import { onKey } from "../base/keys.js";
import { Source } from "./log_source.js";
import { LogView } from "./log_view.js";
import { short } from "./log_rows.js";

const by = (id) => document.getElementById(id);
const section = by("logs");
const form = by("log-filters");
const viewport = by("log-view");
const skew = Date.parse(section.dataset.loaded) - Date.now(); // from the reader's clock to the server's
const { project, job } = by("job").dataset;
const path = `/trainyard/v1/${jobPath(project, job)}/logs`;
const AGO = { s: 1, m: 60, h: 3600, d: 86400 };
const NARROW = matchMedia("(max-width: 720px)");

const chosen = new Set(); // replicas; none: all
let runs = [];
let shownFilters = "";

const log = new LogView(viewport, by("log-lines"), {
  changed: showStatus,
  failed: (error) => {
    if (error.status === 400) form.elements.since.setAttribute("aria-invalid", "true");
    note(error.message, "bad");
  },
});

// ---- filters

function read() {
  const query = new URLSearchParams(location.search);
  for (const name of ["search", "severity", "since"]) form.elements[name].value = query.get(name) ?? "";
  form.elements.only.checked = query.get("only") === "yes";
  form.elements.run.value = query.get("run") ?? "";
  chosen.clear();
  for (const task of query.getAll("task")) chosen.add(task);
}

function write() {
  const query = new URLSearchParams();
  for (const task of chosen) query.append("task", task);
  for (const name of ["run", "severity", "since", "search"]) {
    const value = form.elements[name].value.trim();
    if (value) query.set(name, value);
  }
  if (form.elements.only.checked) query.set("only", "yes");
  const mark = log.marked ? `#L${log.marked}` : "";
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}${mark}`);
  by("log-download").href = new Source(path, filters()).url("/download");
}

/** Filters for the API. `since` as a duration becomes a time, so that it stays the same when a stream reconnects. */
function filters() {
  const given = form.elements.since.value.trim();
  const ago = /^(\d{1,9})([smhd])$/.exec(given);
  const since = ago ? new Date(Date.now() + skew - Number(ago[1]) * AGO[ago[2]] * 1000).toISOString() : given;
  return {
    task: [...chosen],
    run: form.elements.run.value,
    severity: form.elements.severity.value,
    since,
    search: form.elements.only.checked ? form.elements.search.value : "",
  };
}

/** Opens the log again if the filters have changed; the position stays, unless the reader follows. */
function apply() {
  form.elements.since.removeAttribute("aria-invalid");
  mark();
  write();
  const current = JSON.stringify({ ...filters(), since: form.elements.since.value });
  if (current === shownFilters) return;
  shownFilters = current;
  const position = log.following || !log.count ? null : log.shows(log.marked) ? log.marked : log.seen();
  log.open(new Source(path, filters()), position, position === log.marked);
}

const fields = ["severity", "run", "only"];
for (const name of fields) form.elements[name].addEventListener("change", apply);
form.elements.since.addEventListener("change", apply);
let typed = 0;
form.elements.search.addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(searched, 250);
});
form.addEventListener("submit", (event) => event.preventDefault());
form.elements.search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") event.preventDefault(); // it leaves the field, and the search stays
  if (event.key !== "Enter") return;
  event.preventDefault();
  clearTimeout(typed);
  searched();
  seek(event.shiftKey ? -1 : 1);
});

function searched() {
  mark();
  apply();
}

let marks = "";

function mark() {
  const search = form.elements.search.value;
  if (search === marks) return;
  marks = search;
  log.rows.search(search);
  log.refresh("what");
}

// ---- replicas and runs

function replicas() {
  const data = by("log-runs").dataset;
  const known = JSON.parse(data.runs);
  if (JSON.stringify(known) === JSON.stringify(runs) && by("log-replicas").childElementCount) return;
  runs = known;
  const tasks = [...new Set(runs.flatMap((run) => run.tasks))];
  log.rows.replicas(tasks, runs.length > 1);
  const chips = ["service", ...tasks].map((task) =>
    el(
      "button",
      { type: "button", class: "chip", "aria-pressed": String(chosen.has(task)), "data-task": task, title: task },
      el("span", { class: `swatch s-${log.rows.colour(task)}`, "aria-hidden": "true" }),
      short(task),
    ),
  );
  by("log-replicas").replaceChildren(...chips);
  const widest = Math.max(7, ...tasks.map((task) => short(task).length)) + (runs.length > 1 ? 2 : 0);
  viewport.style.setProperty("--by", `${Math.min(widest, 22)}ch`);
  const select = form.elements.run;
  const run = select.value || new URLSearchParams(location.search).get("run") || "";
  select.replaceChildren(
    el("option", { value: "" }, "All"),
    ...[...runs].reverse().map(({ number, state }) => el("option", { value: number }, `${number}, ${state.toLowerCase()}`)),
  );
  select.value = run;
  if (select.selectedIndex < 0) select.value = "";
  by("log-run").hidden = runs.length < 2;
}

by("log-replicas").addEventListener("click", (event) => {
  const chip = event.target.closest("[data-task]");
  if (!chip) return;
  const { task } = chip.dataset;
  if (!chosen.delete(task)) chosen.add(task);
  chip.setAttribute("aria-pressed", String(chosen.has(task)));
  apply();
});

document.addEventListener("trainyard:parts", () => {
  replicas();
  showStatus();
});

// ---- search and navigation

let seeking = new AbortController();

async function find(search, nothing) {
  seeking.abort();
  const { signal } = (seeking = new AbortController());
  try {
    const cursor = await search(signal, (reached) => status(`Searching, at line ${reached.toLocaleString()} …`));
    if (signal.aborted) return;
    if (cursor === null) note(nothing);
    else await go(cursor);
  } catch (error) {
    if (error.name !== "AbortError") note(error.message, "bad");
  } finally {
    showStatus();
  }
}

async function go(cursor) {
  await log.show(cursor);
  write();
}

function seek(direction) {
  const search = form.elements.search.value;
  if (!search) {
    form.elements.search.focus();
    return;
  }
  const source = new Source(path, { ...filters(), search });
  const from = log.shows(log.marked) ? log.marked : null;
  if (direction > 0) find((signal, onProgress) => source.next(from ?? Math.max(0, log.seen() - 1), {}, signal, onProgress), "No later match.");
  else find((signal, onProgress) => source.before(from ?? (log.seen() || log.last + 1), {}, signal, onProgress), "No earlier match.");
}

function firstError() {
  const given = filters();
  const source = new Source(path, { ...given, severity: given.severity === "CRITICAL" ? "CRITICAL" : "ERROR" });
  return find((signal, onProgress) => source.next(0, {}, signal, onProgress), "There is no error in these lines.");
}

async function copyLink(cursor) {
  const link = new URL(location.href);
  link.hash = `L${cursor}`;
  note((await copy(link.href)) ? `The link of line ${cursor} is copied.` : "Your browser does not let this page copy: the address has the link.");
}

viewport.addEventListener("mouseover", (event) => {
  const at = event.target.closest("a.at");
  if (at && !at.title) at.title = log.rows.about(at.parentElement);
});

viewport.addEventListener("click", (event) => {
  const at = event.target.closest("a.at");
  if (at) {
    event.preventDefault();
    const cursor = Number(at.parentElement.dataset.c);
    log.mark(cursor);
    write();
    copyLink(cursor);
  }
  const more = event.target.closest("button.more");
  if (more) log.rows.what(more.closest(".ln"), true);
});

window.addEventListener("hashchange", () => {
  const cursor = hash();
  if (cursor) log.show(cursor);
});

function hash() {
  return Number(/^#L(\d{1,15})$/.exec(location.hash)?.[1] ?? 0);
}

by("match-next").addEventListener("click", () => seek(1));
by("match-before").addEventListener("click", () => seek(-1));
by("first-error").addEventListener("click", firstError);
by("log-newest").addEventListener("click", () => log.follow());
by("log-follow").addEventListener("click", toggle);

function toggle() {
  if (log.following) log.pause();
  else log.follow();
}

onKey("f", toggle);
onKey("e", firstError);
onKey("n", () => seek(1));
onKey("N", () => seek(-1));
onKey("y", () => (log.marked ? copyLink(log.marked) : note("No line is marked: click its time.")));
onKey("End", () => log.follow());
onKey("Home", () => log.open(log.source, 0));

// ---- display

const wrap = by("log-wrap");
wrap.checked = localStorage.getItem("trainyard_log_wrap") !== "no";
const wrapped = () => section.classList.toggle("wrap", wrap.checked || NARROW.matches);
wrap.addEventListener("change", () => {
  localStorage.setItem("trainyard_log_wrap", wrap.checked ? "yes" : "no");
  wrapped();
});
NARROW.addEventListener("change", wrapped);
wrapped();

const utc = by("log-utc");
utc.checked = localStorage.getItem("trainyard_log_utc") === "yes";
log.rows.zone(utc.checked);
utc.addEventListener("change", () => {
  localStorage.setItem("trainyard_log_utc", utc.checked ? "yes" : "no");
  log.rows.zone(utc.checked);
  log.refresh("when");
});

function status(text) {
  by("log-status").textContent = text;
}

function showStatus() {
  const { begins, ends } = log.extent;
  const ended = log.summary !== null;
  const follow = by("log-follow");
  follow.setAttribute("aria-pressed", String(log.following));
  follow.hidden = ended && ends;
  section.classList.toggle("following", log.following);
  section.classList.toggle("dated", log.rows.dated);

  const top = by("log-top");
  const anything = log.count > 0;
  if (log.busy && log.searched) top.textContent = `Searching earlier lines (${log.searched.toLocaleString()}) …`;
  else if (log.busy && !anything) top.textContent = "Loading …";
  else if (!begins) top.textContent = "Earlier lines …";
  else if (anything) top.textContent = filtered() ? "The first line that matches" : "The beginning of the log";
  else top.textContent = filtered() ? "No line matches the filters." : ended ? "The log is empty." : "No lines yet. They appear here as they are written.";

  const end = by("log-end");
  end.hidden = !(ended && ends && anything);
  end.textContent = ended ? finish(log.summary) : "";

  const newest = by("log-newest");
  newest.hidden = log.following || (ends && log.fresh === 0);
  const fresh = log.fresh.toLocaleString();
  newest.textContent = ends ? `${fresh} new ${log.fresh === 1 ? "line" : "lines"} ↓` : "Newest lines ↓";

  const where = anything ? `Lines ${log.first.toLocaleString()} to ${log.last.toLocaleString()}` : "";
  const how = ended && ends ? "complete" : log.following ? "following" : "paused";
  status([where, how].filter(Boolean).join(", "));
}

function filtered() {
  return Object.values(filters()).some((value) => value.length > 0);
}

/** The last row: the number of lines, and of those that a quota left. */
function finish({ lines, kept }) {
  const total = Object.values(lines).reduce((sum, count) => sum + count, 0);
  const cut = Object.entries(kept).map(([name, count]) => `the log quota left only the first ${count.toLocaleString()} lines of ${name.replace("-replica-", "-")}`);
  return [`End of the log: ${total.toLocaleString()} lines`, ...cut].join("; ");
}

// ---- start

replicas();
read();
for (const chip of by("log-replicas").children) chip.setAttribute("aria-pressed", String(chosen.has(chip.dataset.task)));
mark();
shownFilters = JSON.stringify({ ...filters(), since: form.elements.since.value });
const wantsError = new URLSearchParams(location.search).get("first") === "error";
await log.open(new Source(path, filters()), hash() || null, true);
log.fill();
if (wantsError) {
  await firstError();
} else {
  write();
}
