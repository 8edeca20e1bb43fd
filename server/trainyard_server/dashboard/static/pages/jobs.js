// Jobs page: filters that submit when they are changed, and cancelling several jobs at once.
import { call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";

const filters = document.getElementById("filters");
for (const select of filters.querySelectorAll("select")) select.addEventListener("change", () => filters.requestSubmit());
filters.addEventListener("submit", () => {
  for (const field of filters.elements) field.disabled ||= field.name !== "" && field.value === "";
});
window.addEventListener("pageshow", () => {
  for (const field of filters.elements) field.disabled = false;
});

const bulk = document.getElementById("bulk");
if (bulk) followPicks();

function followPicks() {
  const picks = () => [...document.querySelectorAll("[data-pick]")];
  const picked = () => picks().filter((box) => box.checked);
  const show = () => {
    const count = picked().length;
    bulk.hidden = count === 0;
    document.getElementById("bulk-count").textContent = count === 1 ? "1 job selected" : `${count} jobs selected`;
    const all = document.getElementById("pick-all");
    if (!all) return;
    all.checked = count > 0 && count === picks().length;
    all.indeterminate = count > 0 && count < picks().length;
  };
  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of picks()) box.checked = event.target.checked;
    if (event.target.matches("#pick-all, [data-pick]")) show();
  });
  document.addEventListener("trainyard:parts", show);
  document.getElementById("bulk-clear").addEventListener("click", () => {
    for (const box of picks()) box.checked = false;
    show();
  });
  document.getElementById("bulk-cancel").addEventListener("click", async () => {
    const jobs = picked().map((box) => [box.dataset.project, box.dataset.job]);
    if (!(await confirmed(jobs))) return;
    const answers = await Promise.allSettled(jobs.map(([project, job]) => call("POST", `/v1/${jobPath(project, job)}:cancel`, {})));
    const refused = answers.flatMap((answer, at) => (answer.status === "rejected" ? [`${jobs[at][1]}: ${answer.reason.message}`] : []));
    if (refused.length) note(refused.join("\n"), "bad");
    const done = jobs.length - refused.length;
    if (done) note(done === 1 ? "1 job is being cancelled." : `${done} jobs are being cancelled.`);
    for (const box of picks()) box.checked = false;
    show();
  });
}

function confirmed(jobs) {
  const dialog = document.getElementById("confirm-cancel");
  document.getElementById("confirm-jobs").replaceChildren(
    ...jobs.map(([, job]) => {
      const item = document.createElement("li");
      item.textContent = job;
      return item;
    }),
  );
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}
