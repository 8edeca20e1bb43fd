// The config of a job: its texts in colour, and the replica that is looked at chosen without a button.
import { colour, paint } from "./yaml.js";

for (const sheet of document.querySelectorAll("[data-yaml]")) {
  const rows = [...sheet.querySelectorAll(".row")];
  const lines = colour(rows.map((row) => row.textContent).join("\n"));
  rows.forEach((row, at) => paint(row, lines[at]));
}

document.addEventListener("change", (event) => {
  if (event.target.matches("#replica select")) event.target.form.requestSubmit();
});
