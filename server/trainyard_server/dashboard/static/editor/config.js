// Config page of a job: syntax colours, and the choice of a replica without a button.
import { colour, paint } from "./yaml.js";

for (const sheet of document.querySelectorAll("[data-yaml]")) {
  const rows = [...sheet.querySelectorAll(".row")];
  const lines = colour(rows.map((row) => row.textContent).join("\n"));
  rows.forEach((row, at) => paint(row, lines[at]));
}

document.addEventListener("change", (event) => {
  if (event.target.matches("#replica select")) event.target.form.requestSubmit();
});
