// Field that searches jobs to compare with.
import { call } from "../base/api.js";
import { el } from "../base/dom.js";

const REST_MS = 200;

/** @param {(project: string, job: string) => void} onPick @param {() => Set<string>} excluded `project/job`, not offered */
export function findJobs(onPick, excluded) {
  const field = document.getElementById("compare");
  const list = document.getElementById("compare-list");
  let matches = [];
  let at = -1;
  let timer = 0;
  let requests = 0;

  const close = () => {
    list.hidden = true;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
    at = -1;
  };
  const mark = (index) => {
    at = index;
    [...list.children].forEach((item, each) => item.setAttribute("aria-selected", String(each === at)));
    if (at < 0) return field.removeAttribute("aria-activedescendant");
    list.children[at].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", list.children[at].id);
  };
  const pick = (index) => {
    const { project, job_id: job } = matches[index];
    field.value = "";
    close();
    onPick(project, job);
  };
  const open = () => {
    const items = matches.map(({ project, job_id: job, state }, index) =>
      el("li", { id: `compare-${index}`, role: "option", "aria-selected": "false" }, job, el("span", { class: "dim" }, `${project} · ${state.toLowerCase()}`)),
    );
    const none = el("li", { role: "option", "aria-disabled": "true" }, "No other job has this in its name.");
    list.replaceChildren(...(items.length ? items : [none]));
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    mark(matches.length ? 0 : -1);
  };
  const search = async () => {
    const mine = ++requests;
    const answer = await call("GET", `/trainyard/v1/jobs?${new URLSearchParams({ q: field.value.trim() })}`).catch(() => ({ jobs: [] }));
    if (mine !== requests || document.activeElement !== field) return;
    const without = excluded();
    matches = answer.jobs.filter(({ project, job_id: job }) => !without.has(`${project}/${job}`)).slice(0, 12);
    open();
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, REST_MS);
  });
  field.addEventListener("focus", search);
  field.addEventListener("blur", () => {
    clearTimeout(timer);
    requests += 1;
    close();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !list.hidden) {
      close();
      event.stopPropagation();
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (at >= 0) pick(at);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) search();
      else if (matches.length) mark((at + (event.key === "ArrowDown" ? 1 : matches.length - 1)) % matches.length);
    }
  });
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li[id]");
    if (item) pick([...list.children].indexOf(item));
  });
}
