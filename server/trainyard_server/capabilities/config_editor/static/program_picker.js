// Program that a person drops or chooses: its files are sent to the server, which packs them and answers with the plan.
import { ApiError, call } from "../base/api.js";
import { el, icon, size } from "../base/dom.js";
import { ChosenFiles } from "./chosen_files.js";
import { tar } from "./tar.js";

export class ProgramPicker {
  packed = null; // the server's answer, if the program can run
  isBusy = false;
  problem = "";
  #chosen = null;
  #sending = null;
  #limits;
  #project;
  #changed;
  #status = document.getElementById("chosen");
  #problem = document.getElementById("program-wrong");
  #entry = document.getElementById("entry");

  /** @param {object} limits of files and bytes @param {() => string} project of the job @param {() => void} changed */
  constructor(limits, project, changed) {
    this.#limits = limits;
    this.#project = project;
    this.#changed = changed;
    for (const id of ["program-files", "program-folder"]) {
      document.getElementById(id).addEventListener("change", (event) => {
        const list = [...event.target.files];
        event.target.value = ""; // the same file can be chosen again
        if (list.length) this.#collect((chosen) => chosen.addList(list));
      });
    }
    const zone = document.getElementById("drop");
    zone.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      zone.classList.add("dropping");
    });
    for (const name of ["dragleave", "drop"]) zone.addEventListener(name, () => zone.classList.remove("dropping"));
    zone.addEventListener("drop", (event) => {
      event.preventDefault();
      this.#collect((chosen) => chosen.addDropped(event.dataTransfer));
    });
    this.#entry.addEventListener("change", () => this.#send(this.#entry.value));
  }

  /** Sends files that the page brings along. */
  async use(files) {
    await this.#collect((chosen) => chosen.files.push(...files));
  }

  async #collect(add) {
    const chosen = new ChosenFiles(this.#limits);
    try {
      await add(chosen);
      if (chosen.files.length === 0) throw new RangeError("There are no files in it that belong to a program.");
      const limit = this.#limits.package_limit;
      if (chosen.bytes > limit) {
        throw new RangeError(`The files have ${size(chosen.bytes)}, and a program has at most ${size(limit)}. Leave out data and results.`);
      }
    } catch (error) {
      if (!(error instanceof RangeError || error instanceof DOMException)) throw error;
      this.#sending?.abort();
      this.#chosen = null;
      this.#settle(null, error instanceof RangeError ? error.message : `The browser cannot read the files: ${error.message}`);
      return;
    }
    this.#chosen = chosen;
    await this.#send("");
  }

  async #send(entry) {
    this.#sending?.abort();
    const sending = (this.#sending = new AbortController());
    this.isBusy = true;
    this.packed = null;
    this.problem = "";
    this.#show();
    try {
      const project = encodeURIComponent(this.#project());
      const path = `/upload/trainyard/v1/projects/${project}/programs?entry=${encodeURIComponent(entry)}`;
      const answer = await call("POST", path, tar(this.#chosen.files), { signal: sending.signal });
      const leftOut = [...this.#chosen.leftOut, ...answer.left_out];
      this.#settle({ ...answer, left_out: leftOut }, answer.problem);
    } catch (error) {
      if (error.name === "AbortError") return; // by a newer choice, which shows itself
      if (!(error instanceof ApiError)) throw error;
      this.#settle(null, error.message);
    }
  }

  #settle(answer, problem) {
    this.isBusy = false;
    this.packed = problem ? null : answer;
    this.problem = problem;
    const entries = answer?.entries ?? [];
    const none = answer?.entry ? [] : [el("option", { value: "" }, "Choose a file")];
    this.#entry.replaceChildren(...none, ...entries.map((name) => el("option", { value: name }, name)));
    this.#entry.value = answer?.entry ?? "";
    document.getElementById("entry-field").hidden = entries.length < 2;
    this.#show();
  }

  #show() {
    const files = this.#chosen?.files ?? [];
    const bytes = this.#chosen?.bytes ?? 0;
    const count = files.length === 1 ? files[0].path : `${files.length.toLocaleString("en")} files`;
    const state = this.isBusy ? "Sending" : this.packed ? "" : "Chosen:";
    this.#status.hidden = files.length === 0;
    this.#status.replaceChildren(icon(this.packed ? "check" : "file"), el("span", {}, `${state} ${count} (${size(bytes)})${this.isBusy ? " …" : ""}`.trim()));
    if (this.#problem.textContent !== this.problem) this.#problem.textContent = this.problem;
    this.#changed();
  }
}
