// A field that finds jobs while one types, and a chip for each that was chosen.
import { call } from "./api.js";

const REST_MS = 200;

/** @param {(project: string, job: string) => void} onPick @param {() => Set<string>} taken `project/job`, not offered */
export function findJobs(onPick, taken) {
  const field = document.getElementById("compare");
  const list = document.getElementById("compare-list");
  let found = [];
  let at = -1;
  let timer = 0;
  let asked = 0;

  const close = () => {
    list.hidden = true;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
    at = -1;
  };
  const mark = (index) => {
    at = index;
    [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === at)));
    if (at < 0) return field.removeAttribute("aria-activedescendant");
    list.children[at].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", list.children[at].id);
  };
  const pick = (index) => {
    const { project, job_id: job } = found[index];
    field.value = "";
    close();
    onPick(project, job);
  };
  const open = () => {
    list.replaceChildren(
      ...found.map(({ project, job_id: job, state }, index) => {
        const item = document.createElement("li");
        item.id = `compare-${index}`;
        item.setAttribute("role", "option");
        item.setAttribute("aria-selected", "false");
        const more = document.createElement("span");
        more.className = "dim";
        more.textContent = `${project} · ${state.toLowerCase()}`;
        item.append(job, more);
        return item;
      }),
    );
    if (!found.length) {
      const item = document.createElement("li");
      item.setAttribute("role", "option");
      item.setAttribute("aria-disabled", "true");
      item.textContent = "No other job has this in its name.";
      list.append(item);
    }
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    mark(found.length ? 0 : -1);
  };
  const ask = async () => {
    const mine = ++asked;
    const answer = await call("GET", `/trainyard/v1/jobs?${new URLSearchParams({ q: field.value.trim() })}`).catch(() => ({ jobs: [] }));
    if (mine !== asked || document.activeElement !== field) return;
    const without = taken();
    found = answer.jobs.filter(({ project, job_id: job }) => !without.has(`${project}/${job}`)).slice(0, 12);
    open();
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, REST_MS);
  });
  field.addEventListener("focus", ask);
  field.addEventListener("blur", () => {
    clearTimeout(timer);
    asked += 1;
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
      if (list.hidden) ask();
      else if (found.length) mark((at + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length);
    }
  });
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li[id]");
    if (item) pick([...list.children].indexOf(item));
  });
}

/** The chips of the jobs that are compared. @param {HTMLElement} list @param {string[]} keys `project/job` */
export function showCompared(list, keys, onRemove) {
  list.hidden = keys.length === 0;
  list.replaceChildren(
    ...keys.map((key) => {
      const [project, ...job] = key.split("/");
      const item = document.createElement("li");
      item.className = "chip";
      const link = document.createElement("a");
      link.href = `/projects/${encodeURIComponent(project)}/jobs/${encodeURIComponent(job.join("/"))}/metrics`;
      link.textContent = key;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet";
      button.setAttribute("aria-label", `Without ${key}`);
      button.textContent = "×";
      button.addEventListener("click", () => onRemove(key));
      item.append(link, button);
      return item;
    }),
  );
}
