// Built packages beside a config that is edited by hand: their upload and their list.
import { ApiError, call } from "../base/api.js";
import { note } from "../base/banner.js";
import { el, icon, size } from "../base/dom.js";

const PACKAGE = /\.(tar\.gz|tgz|zip|whl)$/u;

export function isPackage(name) {
  return PACKAGE.test(name);
}

export class Packages {
  #list = document.getElementById("packages");
  #all = [];
  #uploads = 0;
  #limit;
  #project;
  #changed;

  /** @param {number} limit of bytes @param {() => string} project of the job @param {() => void} changed */
  constructor(limit, project, changed) {
    this.#limit = limit;
    this.#project = project;
    this.#changed = changed;
  }

  /** {uri, name, size} of each. */
  get all() {
    return this.#all;
  }

  set all(packages) {
    this.#all = packages;
    this.#show();
  }

  get isBusy() {
    return this.#uploads > 0;
  }

  async upload(file) {
    if (!isPackage(file.name)) {
      note(`${file.name} is not a package: .tar.gz, .tgz, .zip or .whl.`, "bad");
      return;
    }
    if (file.size > this.#limit) {
      note(`${file.name} has ${size(file.size)}; a package may have ${size(this.#limit)}.`, "bad");
      return;
    }
    this.#uploads += 1;
    this.#changed();
    this.#list.append(el("li", { class: "dim" }, `Uploading ${file.name} (${size(file.size)}) …`));
    try {
      const project = encodeURIComponent(this.#project());
      const staged = await call("POST", `/upload/trainyard/v1/projects/${project}/packages/${encodeURIComponent(file.name)}`, file);
      this.#all = [...this.#all.filter((each) => each.uri !== staged.uri), { uri: staged.uri, name: file.name, size: staged.size }];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      note(error.message, "bad");
    } finally {
      this.#uploads -= 1;
    }
    this.#show();
    this.#changed();
  }

  #show() {
    this.#list.replaceChildren(
      ...this.#all.map((each) =>
        el(
          "li",
          {},
          icon("file"),
          el("span", { class: "file" }, each.name),
          el("span", { class: "dim" }, size(each.size)),
          el("button", { type: "button", class: "quiet", "aria-label": `Remove ${each.name}`, onclick: () => this.#remove(each) }, icon("cross")),
        ),
      ),
    );
  }

  #remove(gone) {
    this.#all = this.#all.filter((each) => each !== gone);
    this.#show();
    document.getElementById("package-file").focus();
    this.#changed();
  }
}
