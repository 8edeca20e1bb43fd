// Ticked jobs of the run table, and what is done with them.
import { call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { el } from "../base/dom.js";
import { onKey } from "../base/keys.js";
import { answerOf } from "./dialogs.js";

const COMPARED = 50;
const HOW = "Select the jobs to compare: tick their boxes, Shift-click for a range, or press x on a row.";

export function followPicks() {
  const bulk = document.getElementById("bulk");
  const compare = document.getElementById("bulk-compare");
  const cancel = document.getElementById("bulk-cancel");
  let last = null;
  const picks = () => [...document.querySelectorAll("[data-pick]")];
  const picked = () => picks().filter((box) => box.checked);
  const show = () => {
    const boxes = picked();
    const count = boxes.length;
    bulk.hidden = count === 0;
    document.getElementById("bulk-count").textContent = count === 1 ? "1 job selected" : `${count} jobs selected`;
    if (compare) compare.hidden = count < 2 || count > COMPARED;
    if (compare) compare.href = `/compare?${new URLSearchParams(names(boxes).map(([project, job]) => ["job", `${project}/${job}`]))}`;
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
  document.addEventListener("click", (event) => {
    const box = event.target.closest(".pick")?.querySelector("input");
    if (!box) return;
    if (box !== event.target) box.checked = !box.checked; // the cell around a box ticks it as well
    const all = picks();
    if (box.id === "pick-all") {
      for (const other of all) other.checked = box.checked;
    } else {
      const first = event.shiftKey ? all.findIndex((other) => other.dataset.project === last?.project && other.dataset.job === last?.job) : -1;
      const [from, to] = [first, all.indexOf(box)].sort((one, other) => one - other);
      if (first >= 0) for (const other of all.slice(from, to + 1)) other.checked = box.checked;
      last = { ...box.dataset };
    }
    show();
  });
  document.addEventListener("trainyard:parts", show);
  if (compare) onKey("c", () => {
    const count = picked().length;
    if (count === 0) note(HOW);
    else if (count === 1) note("One job is selected: select another one to compare it with.");
    else if (count > COMPARED) note(`${COMPARED} jobs can be compared at a time; ${count} are selected.`);
    else compare.click();
  });
  document.getElementById("bulk-clear").addEventListener("click", clear);
  cancel?.addEventListener("click", async () => {
    const jobs = names(picked().filter((box) => "unfinished" in box.dataset));
    document.getElementById("confirm-jobs").replaceChildren(...jobs.map(([, job]) => el("li", {}, job)));
    if ((await answerOf("confirm-cancel")) !== "yes") return;
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

function names(boxes) {
  return boxes.map((box) => [box.dataset.project, box.dataset.job]);
}

/** Calls for each job; notes what was refused. Returns how many were not. */
async function each(jobs, action) {
  const answers = await Promise.allSettled(jobs.map(([project, job]) => action(project, job)));
  const refused = answers.flatMap((answer, at) => (answer.status === "rejected" ? [`${jobs[at][1]}: ${answer.reason.message}`] : []));
  if (refused.length) note(refused.join("\n"), "bad");
  return jobs.length - refused.length;
}
