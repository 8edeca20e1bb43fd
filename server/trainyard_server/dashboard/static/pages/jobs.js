// Jobs page: filters that submit when they are changed, and saved views; its other modules have the rest.
import { call } from "../base/api.js";
import { note } from "../base/banner.js";
import { followColumns } from "./columns.js";
import { answerOf, followMenus } from "./dialogs.js";
import { followLabels } from "./label_fold.js";
import { followNotes } from "./notes.js";
import { followPicks } from "./picks.js";

followFilters();
followColumns();
followLabels();
followMenus();
followPicks();
followViews();
followNotes();

function followFilters() {
  const filters = document.getElementById("filters");
  filters.addEventListener("change", (event) => {
    if (event.target.matches("select[name]")) filters.requestSubmit();
  });
  filters.addEventListener("submit", () => {
    for (const field of filters.elements) field.disabled ||= field.name !== "" && field.value === "";
  });
  window.addEventListener("pageshow", () => {
    for (const field of filters.elements) field.disabled = false;
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
