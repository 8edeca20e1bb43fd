// Answer of the server to a config: its problems, or the job's replicas and whether they would start now.
import { el, icon } from "../base/dom.js";
import { programPlan } from "./program_plan.js";

export class Preview {
  #status = document.getElementById("status");
  #problems = document.getElementById("problems");
  #details = document.getElementById("details");
  #plan = document.getElementById("plan");
  #program = null;
  #goTo;
  #choose;

  constructor(goTo, choose) {
    this.#goTo = goTo;
    this.#choose = choose;
  }

  /** Shows the plan of a packed program; null: none. */
  program(packed) {
    if (packed === this.#program) return;
    this.#program = packed;
    this.#plan.replaceChildren(...(packed ? [programPlan(packed)] : []));
  }

  blank() {
    this.#setStatus("", "Nothing to check yet.");
    this.#problems.replaceChildren();
    this.#details.replaceChildren();
  }

  checking() {
    this.#status.setAttribute("aria-busy", "true");
  }

  unknown(message) {
    this.#setStatus("warning", `Not checked: ${message}`);
  }

  show(answer, from) {
    const errors = answer.problems.filter((one) => one.severity === "error").length;
    if (errors) this.#setStatus("bad", errors === 1 ? "1 problem" : `${errors} problems`);
    else this.#setStatus("good", "Ready to submit");
    this.#problems.replaceChildren(...answer.problems.map((one) => this.#problem(one, answer.suggested_id)));
    this.#details.replaceChildren(...(answer.ok ? details(answer, from) : []));
  }

  #setStatus(kind, text) {
    this.#status.removeAttribute("aria-busy");
    if (this.#status.dataset.kind === kind && this.#status.textContent === text) return;
    this.#status.dataset.kind = kind;
    const sign = { good: "state-succeeded", bad: "state-failed", warning: "warning" }[kind];
    this.#status.replaceChildren(...(sign ? [icon(sign)] : []), el("span", {}, text));
  }

  #problem(one, suggested) {
    const where = one.line === null ? { args: "Arguments", job_dir: "Job directory", job_id: "Job id", labels: "Labels", packages: "Packages", project: "Project" }[one.source] : `Line ${one.line}`;
    const go = el("button", { type: "button", class: `problem p-${one.severity}`, onclick: () => this.#goTo(one) },
      icon(one.severity === "error" ? "state-failed" : "warning"),
      el("span", {}, where ? el("b", {}, `${where} `) : null, el("span", { class: "message" }, one.message)));
    const use = one.source === "job_id" && suggested
      ? el("button", { type: "button", onclick: () => this.#choose(suggested) }, `Use ${suggested}`)
      : null;
    return el("li", {}, go, use);
  }
}

function details(answer, from) {
  return [
    el("section", { class: "card", "aria-label": "Replicas" }, el("h2", {}, "Replicas"), gang(answer.gang)),
    el("section", { class: "card", "aria-label": "Where it would run" }, el("h2", {}, "Where it would run"), ...outlook(answer.outlook)),
    ...(answer.args.length
      ? [el("section", { class: "card", "aria-label": "Program arguments" }, el("h2", {}, "Program arguments"), el("ol", { class: "args" }, ...answer.args.map((one) => el("li", {}, el("code", {}, one)))))]
      : []),
    ...notes(answer, from),
  ];
}

function gang(groups) {
  const rows = groups.map((one) =>
    el("li", {},
      el("span", { class: "times" }, `${one.count} ×`),
      el("span", {},
        el("b", {}, one.machine_type), ` ${one.task_type}`,
        el("span", { class: "dim block" }, resources(one, 1)),
        one.image_uri ? el("span", { class: "dim block wrap" }, one.image_uri) : null)));
  const count = groups.reduce((sum, one) => sum + one.count, 0);
  const total = count > 1 ? el("p", { class: "total" }, `${count} replicas: ${all(groups)} in all`) : null;
  return el("div", {}, el("ul", { class: "gang" }, ...rows), total ?? "");
}

function resources(one, times) {
  const parts = [`${one.vcpus * times} vCPU`, `${gigabytes(one.memory_bytes * times)} GB`];
  if (one.accelerator_count) parts.push(`${one.accelerator_count * times} × ${one.accelerator_type}`);
  return parts.join(", ");
}

function all(groups) {
  const sum = (what) => groups.reduce((total, one) => total + one.count * what(one), 0);
  const parts = [`${sum((one) => one.vcpus)} vCPU`, `${gigabytes(sum((one) => one.memory_bytes))} GB`];
  for (const type of new Set(groups.map((one) => one.accelerator_type).filter(Boolean))) {
    parts.push(`${sum((one) => (one.accelerator_type === type ? one.accelerator_count : 0))} × ${type}`);
  }
  return parts.join(", ");
}

function gigabytes(bytes) {
  return Number((bytes / 1e9).toFixed(1)).toLocaleString("en");
}

function outlook(view) {
  const agents = view.agents.map((one) =>
    el("li", {},
      icon("host"),
      el("span", {}, el("b", {}, one.agent), ` ${one.lacks || "has room for it now"}`, el("span", { class: "dim block" }, `free: ${one.free}; has ${one.has}`))));
  return [
    el("p", { class: `outlook ${view.starts ? "good" : "wait"}` }, icon(view.starts ? "play" : "state-queued"), el("span", {}, view.summary)),
    ...(agents.length ? [el("ul", { class: "agents" }, ...agents)] : []),
  ];
}

function notes(answer, from) {
  const texts = [...answer.notes];
  const original = from && from.job_dir && answer.job.trainingInput.jobDir === from.job_dir;
  if (original) texts.push(`It writes to the same directory as ${from.job_id}: a trainer that finds a checkpoint there resumes from it.`);
  if (!texts.length) return [];
  return [el("section", { class: "card", "aria-label": "Good to know" }, el("h2", {}, "Good to know"), el("ul", { class: "notes" }, ...texts.map((one) => el("li", {}, one))))];
}
