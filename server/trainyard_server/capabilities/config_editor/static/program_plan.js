// Plan of a packed program: what runs, what is installed before, its files, and what was left out.
import { el, size } from "../base/dom.js";

const MOST_LEFT_OUT = 200;

export function programPlan(program) {
  const where = program.directory ? el("span", { class: "dim" }, ` in ${program.directory}`) : null;
  return el(
    "section",
    { class: "card", "aria-label": "Program" },
    el("h2", {}, "Program"),
    el("p", {}, "Runs ", el("code", { class: "wrap" }, program.command.join(" ")), where),
    el("p", {}, program.installs.length ? `Installs first: ${program.installs.join(", ")}` : "Installs nothing: the program declares no dependencies."),
    ...program.notes.map((text) => el("p", { class: "dim" }, text)),
    files(program),
    leftOut(program.left_out),
  );
}

function files(program) {
  const rest = program.file_count - program.files.length;
  return el(
    "details",
    {},
    el("summary", {}, `${program.file_count === 1 ? "1 file" : `${program.file_count.toLocaleString("en")} files`}, ${size(program.bytes)}`),
    el(
      "ul",
      { class: "plan-files" },
      ...program.files.map((each) => el("li", {}, el("code", {}, each.name), el("span", { class: "dim" }, size(each.size)))),
      rest ? el("li", { class: "dim" }, `and ${rest.toLocaleString("en")} more`) : null,
    ),
  );
}

function leftOut(all) {
  if (!all.length) return null;
  const rest = all.length - MOST_LEFT_OUT;
  return el(
    "details",
    {},
    el("summary", {}, `${all.length.toLocaleString("en")} left out`),
    el(
      "ul",
      { class: "plan-files" },
      ...all.slice(0, MOST_LEFT_OUT).map((each) => el("li", {}, el("code", {}, each.name), el("span", { class: "dim" }, each.reason))),
      rest > 0 ? el("li", { class: "dim" }, `and ${rest.toLocaleString("en")} more`) : null,
    ),
  );
}
