// Files that a person drops or chooses, with their paths, and what is left out of them: by the names that the command
// line leaves out too.

const HISTORY = "the history of a repository";
const CACHE = "a cache";
const ENVIRONMENT = "a Python environment";

/** Collects at most `limit` files. `rules` has the names of `histories` and `caches`. */
export class ChosenFiles {
  files = []; // {path, file}
  leftOut = []; // {name, reason}
  #limit;
  #histories;
  #caches;

  constructor({ file_limit: limit, histories, caches }) {
    this.#limit = limit;
    this.#histories = new Set(histories);
    this.#caches = new Set(caches);
  }

  get bytes() {
    return this.files.reduce((sum, each) => sum + each.file.size, 0);
  }

  /** Adds what an input has: files, or the files of a directory with their paths. */
  addList(list) {
    const files = [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
    const environments = files
      .map(({ path }) => /^(.+)\/(?:pyvenv\.cfg|conda-meta\/history)$/u.exec(path)?.[1])
      .filter(Boolean);
    for (const { path, file } of files) {
      const parts = path.split("/");
      const at = parts.findIndex((part) => this.#reason(part));
      const environment = environments.find((directory) => path.startsWith(`${directory}/`));
      if (at >= 0) this.#leaveOut(parts.slice(0, at + 1).join("/"), this.#reason(parts[at]));
      else if (environment) this.#leaveOut(environment, ENVIRONMENT);
      else this.#add(path, file);
    }
  }

  /** Adds what was dropped. It has to be read from the event at once, which is empty afterwards. */
  async addDropped(transfer) {
    const items = [...transfer.items].filter((item) => item.kind === "file");
    const dropped = items.map((item) => item.webkitGetAsEntry() ?? item.getAsFile()).filter(Boolean);
    for (const each of dropped) {
      if (each instanceof File) this.addList([each]);
      else await this.#addEntry(each, each.name);
    }
  }

  async #addEntry(entry, path) {
    const reason = this.#reason(entry.name);
    if (reason) {
      this.#leaveOut(path, reason);
    } else if (entry.isFile) {
      this.#add(path, await new Promise((resolve, reject) => entry.file(resolve, reject)));
    } else {
      const children = await childrenOf(entry);
      if (children.some((child) => child.name === "pyvenv.cfg" || child.name === "conda-meta")) {
        this.#leaveOut(path, ENVIRONMENT);
        return;
      }
      for (const child of children) await this.#addEntry(child, `${path}/${child.name}`);
    }
  }

  #add(path, file) {
    if (this.files.length >= this.#limit) {
      throw new RangeError(
        `There are more than ${this.#limit.toLocaleString("en")} files. Leave out data and results, or submit the program with the command line.`,
      );
    }
    this.files.push({ path, file });
  }

  #reason(name) {
    if (this.#histories.has(name)) return HISTORY;
    return this.#caches.has(name) || /\.py[co]$/u.test(name) ? CACHE : "";
  }

  #leaveOut(name, reason) {
    if (!this.leftOut.some((each) => each.name === name)) this.leftOut.push({ name, reason });
  }
}

/** All entries of a directory, which a browser gives in parts. */
async function childrenOf(directory) {
  const reader = directory.createReader();
  const children = [];
  for (;;) {
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (part.length === 0) return children;
    children.push(...part);
  }
}
