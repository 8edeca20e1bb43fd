// Page of a new job: a program with its machine, or a config; it is checked while it changes, shown, and submitted.
import { ApiError, call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { size } from "../base/dom.js";
import { Editor } from "./editor.js";
import { formConfig } from "./form_config.js";
import { Preview } from "./new_preview.js";
import { Packages, isPackage } from "./packages.js";
import { ProgramPicker } from "./program_picker.js";

const CHECK_MS = 300;
const KEEP = "trainyard:new";
const AGAIN_MS = 3000;
const MAX_CONFIG = 64 * 1024;
const MOST_REPLICAS = 100;
const FIELDS = ["project", "job_id", "args", "job_dir", "labels"];
const OF_FORM = ["machine", "replicas"];

const form = document.getElementById("new-job");
if (form) begin();

function begin() {
  const start = JSON.parse(document.getElementById("start").textContent);
  const field = Object.fromEntries([...FIELDS, ...OF_FORM].map((name) => [name, form.elements[name]]));
  const submit = document.getElementById("submit");
  const reason = document.getElementById("reason");
  const preview = new Preview((problem) => goTo(problem), (id) => choose(id));
  const tabs = sourceTabs();
  let isByHand = false; // whether the config is not the one that the form writes
  let checks = 0; // the number of the newest check; only its answer counts
  let pending = null;
  let waiting = 0;
  let known = null; // the newest answer, until something changes
  let verdict = null; // the newest answer, also while another one is awaited
  let unchecked = "";
  let isSending = false;

  const project = () => field.project.value.trim() || "-";
  const editor = new Editor(document.getElementById("editor"), configChanged);
  const packages = new Packages(start.package_limit, project, later);
  packages.all = start.packages ?? [];
  const program = new ProgramPicker(start, project, formChanged);
  restore();
  isByHand = editor.text !== written();
  tabs.choose(isByHand ? "config" : "program");
  for (const name of FIELDS) field[name].addEventListener("input", later);
  for (const name of OF_FORM) field[name].addEventListener("input", formChanged);
  later();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await send();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  document.getElementById("example").addEventListener("change", async (event) => {
    const example = start.examples[event.target.value];
    event.target.value = "";
    if (example !== undefined) await useExample(example);
  });
  document.getElementById("use-form").addEventListener("click", () => {
    useForm();
    document.getElementById("program-files").focus();
  });
  document.getElementById("discard").addEventListener("click", () => {
    sessionStorage.removeItem(KEEP);
    location.reload();
  });
  pickFiles("config-file", openConfig);
  pickFiles("package-file", (file) => packages.upload(file));
  dropFile(document.getElementById("editor"), openConfig);

  /** The config of the form; "" while something of it is missing. */
  function written() {
    return program.packed && replicas() ? formConfig(program.packed, start.machines[field.machine.value], replicas()) : "";
  }

  /** The number of replicas; 0 for what is none. */
  function replicas() {
    const text = field.replicas.value.trim();
    return /^\d{1,3}$/u.test(text) && Number(text) <= MOST_REPLICAS ? Number(text) : 0;
  }

  function formChanged() {
    if (!isByHand) editor.set(written());
    later();
  }

  function configChanged() {
    isByHand = editor.text !== written();
    later();
  }

  function useForm() {
    isByHand = false;
    tabs.choose("program");
    formChanged();
  }

  function request() {
    return {
      config: editor.text,
      jobId: field.job_id.value,
      jobDir: field.job_dir.value,
      args: field.args.value,
      labels: labels(field.labels.value),
      packageUris: isByHand ? packages.all.map((each) => each.uri) : [],
    };
  }

  function later() {
    keep();
    known = null;
    clearTimeout(waiting);
    waiting = setTimeout(check, CHECK_MS);
    settle();
  }

  /** Shows the state of the form, and what keeps the job from being submitted. */
  function settle() {
    document.getElementById("by-hand").hidden = !isByHand;
    document.getElementById("program-form").hidden = isByHand;
    preview.program(isByHand ? null : program.packed);
    const missing = whatIsMissing();
    submit.disabled = isSending || missing !== "";
    if (reason.textContent !== missing) reason.textContent = missing;
    field.replicas.setAttribute("aria-invalid", String(replicas() === 0));
  }

  function whatIsMissing() {
    if (!isByHand) {
      if (program.isBusy) return "The program is being sent.";
      if (program.problem) return "The program cannot run yet.";
      if (!program.packed) return "Choose a program first.";
      if (!replicas()) return `Replicas: a whole number from 1 to ${MOST_REPLICAS}.`;
    } else if (editor.text.trim() === "") {
      return "The config is empty.";
    } else if (packages.isBusy) {
      return "A package is being uploaded.";
    }
    if (unchecked) return "The server has not checked the job.";
    if (!verdict) return "The job is being checked.";
    const errors = verdict.problems.filter((each) => each.severity === "error").length;
    return errors ? `${errors === 1 ? "1 problem has" : `${errors} problems have`} to be solved first.` : "";
  }

  /** Returns the answer of the check; null if a newer check has begun or the server did not answer. */
  async function check() {
    clearTimeout(waiting);
    pending?.abort();
    pending = new AbortController();
    checks += 1;
    const mine = checks;
    if (editor.text.trim() === "") {
      verdict = null;
      mark([]);
      preview.blank();
      settle();
      return null;
    }
    preview.checking();
    try {
      const path = `/trainyard/v1/projects/${encodeURIComponent(project())}/configs:check`;
      const answer = await call("POST", path, request(), { signal: pending.signal });
      if (mine !== checks) return null;
      known = verdict = answer;
      unchecked = "";
      mark(answer.problems);
      preview.show(answer, start.from);
      settle();
      return answer;
    } catch (error) {
      if (mine === checks && error.name !== "AbortError") {
        unchecked = error.message;
        preview.unknown(error.message);
        settle();
        waiting = setTimeout(check, AGAIN_MS); // the server is away or overloaded
      }
      return null;
    }
  }

  function mark(problems) {
    editor.mark(problems);
    for (const name of FIELDS) {
      const messages = problems.filter((each) => each.source === name).map((each) => each.message);
      const where = document.getElementById(`${name}-wrong`);
      const text = messages.join(" ");
      if (where.textContent !== text) where.textContent = text;
      field[name].setAttribute("aria-invalid", String(messages.length > 0));
    }
  }

  function goTo(problem) {
    if (field[problem.source]) {
      field[problem.source].focus();
      return;
    }
    tabs.choose("config");
    if (problem.line !== null) editor.goTo(problem);
    else document.getElementById(problem.source === "packages" ? "package-file" : "config").focus();
  }

  function choose(id) {
    field.job_id.value = id;
    field.job_id.focus();
    later();
  }

  async function send() {
    const missing = whatIsMissing();
    if (isSending) return;
    if (missing && !verdict?.problems.length) {
      note(missing, "bad");
      return;
    }
    isSending = true;
    settle();
    try {
      const answer = known ?? (await check());
      if (!answer) return;
      if (!answer.ok) {
        goTo(answer.problems.find((each) => each.severity === "error"));
        return;
      }
      const created = await call("POST", `/v1/projects/${encodeURIComponent(project())}/jobs`, answer.job);
      sessionStorage.removeItem(KEEP);
      location.assign(`/${jobPath(project(), created.jobId)}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      note(error.message, "bad");
      await check(); // it marks the field, if the error is in the config: an id that exists meanwhile
    } finally {
      isSending = false;
      settle();
    }
  }

  async function useExample(example) {
    if (example.config) {
      tabs.choose("config");
      editor.replace(example.config);
      return;
    }
    field.args.value = example.args;
    field.replicas.value = String(example.replicas);
    useForm();
    await program.use(Object.entries(example.files).map(([path, text]) => ({ path, file: new Blob([text]) })));
    if (!example.appended || !program.packed) return;
    tabs.choose("config");
    editor.replace(written() + example.appended);
  }

  // Typed text survives the page: a session that ends, a reload, a wrong click. Files do not: the browser forgets them.
  function keep() {
    const typed = Object.fromEntries([...FIELDS, ...OF_FORM].map((name) => [name, field[name].value]));
    const had = { config: isByHand ? editor.text : "", packages: packages.all, hadFiles: !isByHand && program.packed !== null };
    try {
      sessionStorage.setItem(KEEP, JSON.stringify({ from: start.from, ...had, ...typed }));
    } catch {
      // No space, or not allowed: then only the page has it.
    }
  }

  function restore() {
    let saved = null;
    try {
      saved = JSON.parse(sessionStorage.getItem(KEEP) ?? "null");
    } catch {
      // Not written by this page.
    }
    if (!saved || JSON.stringify(saved.from) !== JSON.stringify(start.from)) return;
    const names = [...FIELDS, ...OF_FORM].filter((name) => name !== "job_id");
    const isSame = saved.config === editor.text && names.every((name) => saved[name] === field[name].value);
    if (isSame && !saved.hadFiles && saved.packages.length === packages.all.length) return;
    for (const name of [...FIELDS, ...OF_FORM]) field[name].value = saved[name] ?? "";
    if (field.machine.selectedIndex < 0) field.machine.selectedIndex = 0; // the site offers other machines now
    packages.all = saved.packages ?? [];
    editor.set(saved.config ?? "");
    document.getElementById("restored").hidden = false;
    document.getElementById("restored-files").hidden = !saved.hadFiles;
  }

  async function openConfig(file) {
    if (isPackage(file.name)) {
      await packages.upload(file);
      return;
    }
    if (file.size > MAX_CONFIG) {
      note(`${file.name} has ${size(file.size)}; a config has ${size(MAX_CONFIG)} at most.`, "bad");
      return;
    }
    editor.replace((await file.text()).replace(/^\ufeff/u, "").replaceAll("\r\n", "\n"));
  }
}

/** The tabs of the source: `choose` shows a panel by its name. */
function sourceTabs() {
  const all = [...document.querySelectorAll("#source-tabs [role=tab]")];
  const choose = (name) => {
    for (const tab of all) {
      const isChosen = tab.getAttribute("aria-controls") === `${name}-panel`;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
  };
  for (const [at, tab] of all.entries()) {
    const name = tab.getAttribute("aria-controls").replace(/-panel$/u, "");
    tab.addEventListener("click", () => choose(name));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const next = all[(at + 1) % all.length]; // of two, which is the other one in both directions
      next.click();
      next.focus();
    });
  }
  return { choose };
}

function pickFiles(id, open) {
  document.getElementById(id).addEventListener("change", async (event) => {
    const files = [...event.target.files];
    event.target.value = ""; // the same file can be chosen again
    for (const file of files) await open(file);
  });
}

function dropFile(target, open) {
  target.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    target.classList.add("dropping");
  });
  for (const name of ["dragleave", "drop"]) target.addEventListener(name, () => target.classList.remove("dropping"));
  target.addEventListener("drop", (event) => {
    const [file] = event.dataTransfer.files;
    if (!file) return;
    event.preventDefault();
    open(file);
  });
}

/** `team=vision, stage=final` */
function labels(text) {
  const pairs = text.split(/[,\n]/u).map((each) => each.trim()).filter(Boolean);
  return Object.fromEntries(
    pairs.map((pair) => {
      const [key, ...value] = pair.split("=");
      return [key.trim(), value.join("=").trim()];
    }),
  );
}
