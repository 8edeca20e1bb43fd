// Notes about jobs, edited where they are shown.
import { call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";

/** Makes buttons with the note of a job turn their element into a field. */
export function followNotes() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-note]");
    if (!button) return;
    const { project, job, note: text } = button.dataset;
    const cell = button.parentElement;
    const field = document.createElement("input");
    field.value = text;
    field.maxLength = 4000;
    field.setAttribute("aria-label", `Note of ${job}`);
    const before = [...cell.childNodes];
    const restore = () => {
      cell.replaceChildren(...before);
      cell.removeAttribute("data-keep");
    };
    let open = true;
    const save = async () => {
      if (!open) return;
      open = false;
      try {
        if (field.value.trim() !== text) {
          const saved = await call("PUT", `/trainyard/v1/${jobPath(project, job)}/note`, { note: field.value });
          button.dataset.note = saved.note;
          before[0].textContent = saved.note;
        }
      } catch (error) {
        note(error.message, "bad");
      }
      restore();
    };
    field.addEventListener("keydown", (key) => {
      if (key.key === "Enter") save();
      if (key.key !== "Escape") return;
      open = false;
      restore();
      button.focus();
    });
    field.addEventListener("blur", save);
    cell.setAttribute("data-keep", ""); // no update of the page takes the field away
    cell.replaceChildren(field);
    field.focus();
  });
}
