// Actions on a job, on each of its tabs.
import { call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { followNotes } from "./notes.js";

followNotes();

const dialog = document.getElementById("confirm-cancel");

document.addEventListener("click", (event) => {
  if (!event.target.closest("#cancel")) return;
  dialog.returnValue = "";
  dialog.showModal();
});

dialog?.addEventListener("close", async () => {
  if (dialog.returnValue !== "yes") return;
  const { project, job } = document.getElementById("job").dataset;
  try {
    await call("POST", `/v1/${jobPath(project, job)}:cancel`, {});
    note("The job is being cancelled.");
  } catch (error) {
    note(error.message, "bad");
  }
});
