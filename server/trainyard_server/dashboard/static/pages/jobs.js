// Jobs page: filters that submit when they are changed, columns, saved views, notes, and what is done with ticked jobs.
import { call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { followNotes } from "./notes.js";

const filters = document.getElementById("filters");
for (const select of filters.querySelectorAll("select")) select.addEventListener("change", () => filters.requestSubmit());
filters.addEventListener("submit", () => {
  for (const field of filters.elements) field.disabled ||= field.name !== "" && field.value === "";
});
window.addEventListener("pageshow", () => {
  for (const field of filters.elements) field.disabled = false;
});

const COMPARED = 50;

followPicks();
followColumns();
followViews();
followNotes();

function followPicks() {
  const bulk = document.getElementById("bulk");
  const picks = () => [...document.querySelectorAll("[data-pick]")];
  const picked = () => picks().filter((box) => box.checked);
  const names = (boxes) => boxes.map((box) => [box.dataset.project, box.dataset.job]);
  const compare = document.getElementById("bulk-compare");
  const cancel = document.getElementById("bulk-cancel");
  const show = () => {
    const boxes = picked();
    const count = boxes.length;
    bulk.hidden = count === 0;
    document.getElementById("bulk-count").textContent = count === 1 ? "1 job selected" : `${count} jobs selected`;
    compare.hidden = count < 2 || count > COMPARED;
    compare.href = `/compare?${new URLSearchParams(names(boxes).map(([project, job]) => ["job", `${project}/${job}`]))}`;
    if (cancel) cancel.hidden = !boxes.some((box) => "unfinished" in box.dataset);
    const all = document.getElementById("pick-all");
    if (!all) return;
    all.checked = count > 0 && count === picks().length;
    all.indeterminate = count > 0 && count < picks().length;
  };
  const clear = () => {
    for (const box of picks()) box.checked = false;
    show();
  };
  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of picks()) box.checked = event.target.checked;
    if (event.target.matches("#pick-all, [data-pick]")) show();
  });
  document.addEventListener("trainyard:parts", show);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "c" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (!bulk.hidden && !compare.hidden) compare.click();
  });
  document.getElementById("bulk-clear").addEventListener("click", clear);
  cancel?.addEventListener("click", async () => {
    const jobs = names(picked().filter((box) => "unfinished" in box.dataset));
    if (!(await confirmed(jobs))) return;
    const done = await each(jobs, (project, job) => call("POST", `/v1/${jobPath(project, job)}:cancel`, {}));
    if (done) note(done === 1 ? "1 job is being cancelled." : `${done} jobs are being cancelled.`);
    clear();
  });
  document.getElementById("bulk-label")?.addEventListener("click", async () => {
    const field = document.getElementById("label-text");
    if ((await answerOf("label-dialog")) !== "yes" || !field.value.trim()) return;
    const [name, value = ""] = field.value.trim().split(/=(.*)/s);
    const done = await each(names(picked()), async (project, job) => {
      const { labels = {}, etag } = await call("GET", `/v1/${jobPath(project, job)}`);
      await call("PATCH", `/v1/${jobPath(project, job)}?updateMask=labels,etag`, { labels: { ...labels, [name]: value }, etag });
    });
    if (done) note(done === 1 ? "1 job has the label." : `${done} jobs have the label.`);
    clear();
  });
}

/** Calls for each job; notes what was refused. Returns how many were not. */
async function each(jobs, action) {
  const answers = await Promise.allSettled(jobs.map(([project, job]) => action(project, job)));
  const refused = answers.flatMap((answer, at) => (answer.status === "rejected" ? [`${jobs[at][1]}: ${answer.reason.message}`] : []));
  if (refused.length) note(refused.join("\n"), "bad");
  return jobs.length - refused.length;
}

function followColumns() {
  const dialog = document.getElementById("columns");
  const chosen = document.getElementById("chosen-columns");
  document.getElementById("choose-columns").addEventListener("click", () => dialog.showModal());
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  chosen.addEventListener("click", (event) => {
    const button = event.target.closest("[data-earlier]");
    const item = button?.closest("li");
    if (!item?.previousElementSibling) return;
    item.previousElementSibling.before(item);
    button.focus();
  });
  dialog.querySelector("form").addEventListener("submit", () => {
    for (const field of dialog.querySelectorAll('input[name="column"]:not([type="checkbox"])')) field.disabled = !field.value.trim();
  });
}

function followViews() {
  const views = document.getElementById("views");
  const button = document.getElementById("save-view");
  views?.addEventListener("change", async () => {
    if (!views.value) return;
    try {
      location.assign(`/?${(await call("GET", viewPath(views.selectedOptions[0].dataset.project, views.value))).query}`);
    } catch (error) {
      note(error.message, "bad");
    }
  });
  if (!button) return;
  const name = document.getElementById("view-name");
  const project = document.getElementById("view-project");
  button.addEventListener("click", async () => {
    const shown = views?.selectedOptions[0]?.dataset.project;
    name.value = views?.value ?? "";
    if (shown) project.value = shown;
    document.getElementById("delete-view").hidden = !shown;
    const answer = await answerOf("save-view-dialog");
    const path = viewPath(project.value, name.value.trim());
    try {
      if (answer === "yes" && name.value.trim()) await call("PUT", path, { query: location.search.slice(1) });
      else if (answer === "delete") await call("DELETE", path);
      else return;
      location.reload();
    } catch (error) {
      note(error.message, "bad");
    }
  });
}

function viewPath(project, name) {
  return `/trainyard/v1/projects/${encodeURIComponent(project)}/views/${encodeURIComponent(name)}`;
}

/** Opens a dialog; the value of the button that closes it. */
function answerOf(id) {
  const dialog = document.getElementById(id);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

function confirmed(jobs) {
  document.getElementById("confirm-jobs").replaceChildren(
    ...jobs.map(([, job]) => {
      const item = document.createElement("li");
      item.textContent = job;
      return item;
    }),
  );
  return answerOf("confirm-cancel").then((answer) => answer === "yes");
}
