// Page of a new job: a config that is checked while it is typed, its preview, and its submission.
import { ApiError, call, jobPath } from "../base/api.js";
import { note } from "../base/banner.js";
import { el, icon, size } from "../base/dom.js";
import { Editor } from "./editor.js";
import { Preview } from "./new_preview.js";

const CHECK_MS = 300;
const KEEP = "trainyard:new";
const AGAIN_MS = 3000;
const MAX_CONFIG = 64 * 1024;
const PACKAGE = /\.(tar\.gz|tgz|zip|whl)$/u;
const FIELDS = ["project", "job_id", "args", "job_dir", "labels"];

const form = document.getElementById("new-job");
if (form) begin();

function begin() {
  const start = JSON.parse(document.getElementById("start").textContent);
  const field = Object.fromEntries(FIELDS.map((name) => [name, form.elements[name]]));
  const submit = document.getElementById("submit");
  const preview = new Preview((problem) => goTo(problem), (id) => choose(id), (text) => editor.replace(text));
  let packages = start.packages ?? [];
  let checks = 0; // the number of the newest check; only its answer counts
  let pending = null;
  let waiting = 0;
  let known = null; // the newest answer, until something is typed

  const editor = new Editor(document.getElementById("editor"), later);
  restore();
  showPackages();
  for (const name of FIELDS) field[name].addEventListener("input", later);
  later();

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await send();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  document.getElementById("example").addEventListener("change", (event) => {
    const chosen = start.examples[event.target.value];
    event.target.value = "";
    if (chosen !== undefined) editor.replace(chosen);
  });
  document.getElementById("discard").addEventListener("click", () => {
    sessionStorage.removeItem(KEEP);
    location.reload();
  });
  pickFiles("config-file", openConfig);
  pickFiles("package-file", uploadPackage);
  dropFiles(document.getElementById("editor"));

  function request() {
    return {
      config: editor.text,
      jobId: field.job_id.value,
      jobDir: field.job_dir.value,
      args: field.args.value,
      labels: labels(field.labels.value),
      packageUris: packages.map((one) => one.uri),
    };
  }

  function later() {
    keep();
    known = null;
    clearTimeout(waiting);
    waiting = setTimeout(check, CHECK_MS);
  }

  /** Returns the answer of the check; null if a newer check has begun or the server did not answer. */
  async function check() {
    clearTimeout(waiting);
    pending?.abort();
    pending = new AbortController();
    checks += 1;
    const mine = checks;
    if (editor.text.trim() === "") {
      mark([]);
      preview.blank();
      return null;
    }
    preview.checking();
    try {
      const project = encodeURIComponent(field.project.value.trim() || "-");
      const answer = await call("POST", `/trainyard/v1/projects/${project}/configs:check`, request(), { signal: pending.signal });
      if (mine !== checks) return null;
      known = answer;
      mark(answer.problems);
      preview.show(answer, start.from);
      return answer;
    } catch (error) {
      if (mine === checks && error.name !== "AbortError") {
        preview.unknown(error.message);
        waiting = setTimeout(check, AGAIN_MS); // the server is away or overloaded
      }
      return null;
    }
  }

  function mark(problems) {
    editor.mark(problems);
    for (const name of FIELDS) {
      const messages = problems.filter((one) => one.source === name).map((one) => one.message);
      const where = document.getElementById(`${name}-wrong`);
      const text = messages.join(" ");
      if (where.textContent !== text) where.textContent = text;
      field[name].setAttribute("aria-invalid", String(messages.length > 0));
    }
  }

  function goTo(problem) {
    if (problem.line !== null) editor.goTo(problem);
    else (field[problem.source] ?? document.getElementById(problem.source === "packages" ? "package-file" : "config")).focus();
  }

  function choose(id) {
    field.job_id.value = id;
    field.job_id.focus();
    later();
  }

  async function send() {
    if (submit.disabled) return;
    submit.disabled = true;
    try {
      const answer = known ?? (await check());
      if (!answer) {
        if (editor.text.trim() === "") note("There is no config yet: paste one, drop a file, or start from an example.", "bad");
        return;
      }
      if (!answer.ok) {
        goTo(answer.problems.find((one) => one.severity === "error"));
        return;
      }
      const project = field.project.value.trim();
      const created = await call("POST", `/v1/projects/${encodeURIComponent(project)}/jobs`, answer.job);
      sessionStorage.removeItem(KEEP);
      location.assign(`/${jobPath(project, created.jobId)}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      note(error.message, "bad");
      await check(); // it marks the field, if the error is in the config: an id that exists meanwhile
    } finally {
      submit.disabled = false;
    }
  }

  // Typed text survives the page: a session that ends, a reload, a wrong click.
  function keep() {
    const typed = Object.fromEntries(FIELDS.map((name) => [name, field[name].value]));
    try {
      sessionStorage.setItem(KEEP, JSON.stringify({ from: start.from, config: editor.text, packages, ...typed }));
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
    if (!saved || saved.from !== start.from) return;
    const same = saved.config === editor.text && FIELDS.every((name) => name === "job_id" || saved[name] === field[name].value);
    if (same && saved.packages.length === packages.length) return;
    for (const name of FIELDS) field[name].value = saved[name] ?? "";
    packages = saved.packages ?? [];
    editor.set(saved.config ?? "");
    document.getElementById("restored").hidden = false;
  }

  async function openConfig(file) {
    if (PACKAGE.test(file.name)) {
      await uploadPackage(file);
      return;
    }
    if (file.size > MAX_CONFIG) {
      note(`${file.name} has ${size(file.size)}; a config has ${size(MAX_CONFIG)} at most.`, "bad");
      return;
    }
    editor.replace((await file.text()).replace(/^\ufeff/u, "").replaceAll("\r\n", "\n"));
  }

  async function uploadPackage(file) {
    if (!PACKAGE.test(file.name)) {
      note(`${file.name} is not a package: .tar.gz, .tgz, .zip or .whl.`, "bad");
      return;
    }
    if (file.size > start.package_limit) {
      note(`${file.name} has ${size(file.size)}; a package may have ${size(start.package_limit)}.`, "bad");
      return;
    }
    const row = el("li", { class: "dim" }, `Uploading ${file.name} (${size(file.size)}) …`);
    document.getElementById("packages").append(row);
    try {
      const project = encodeURIComponent(field.project.value.trim() || "-");
      const staged = await call("POST", `/upload/trainyard/v1/projects/${project}/packages/${encodeURIComponent(file.name)}`, file);
      packages = [...packages.filter((one) => one.uri !== staged.uri), { uri: staged.uri, name: file.name, size: staged.size }];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      note(error.message, "bad");
    }
    showPackages();
    later();
  }

  function showPackages() {
    document.getElementById("packages").replaceChildren(
      ...packages.map((one) =>
        el(
          "li",
          {},
          icon("file"),
          el("span", { class: "file" }, one.name),
          el("span", { class: "dim" }, size(one.size)),
          el("button", { type: "button", class: "quiet", "aria-label": `Remove ${one.name}`, onclick: () => removePackage(one) }, icon("cross")),
        ),
      ),
    );
  }

  function removePackage(gone) {
    packages = packages.filter((one) => one !== gone);
    showPackages();
    document.getElementById("package-file").focus();
    later();
  }

  function dropFiles(target) {
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
      openConfig(file);
    });
  }
}

function pickFiles(id, open) {
  document.getElementById(id).addEventListener("change", async (event) => {
    const files = [...event.target.files];
    event.target.value = ""; // the same file can be chosen again
    for (const file of files) await open(file);
  });
}

/** `team=vision, stage=final` */
function labels(text) {
  const pairs = text.split(/[,\n]/u).map((one) => one.trim()).filter(Boolean);
  return Object.fromEntries(
    pairs.map((pair) => {
      const [key, ...value] = pair.split("=");
      return [key.trim(), value.join("=").trim()];
    }),
  );
}
