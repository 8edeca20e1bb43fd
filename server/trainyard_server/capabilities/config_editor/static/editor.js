// Text area for a config, with line numbers beside it that mark the lines of problems.
import { el } from "../base/dom.js";

export class Editor {
  #root;
  #area;
  #numbers;
  #problems = [];

  /** @param {HTMLElement} root an .editor with a textarea in it @param {() => void} changed after every change by hand */
  constructor(root, changed) {
    this.#root = root;
    this.#area = root.querySelector("textarea");
    this.#numbers = root.querySelector(".numbers");
    this.#area.addEventListener("input", () => {
      this.#problems = []; // they may have moved; the next check has their positions
      this.#number();
      changed();
    });
    this.#area.addEventListener("scroll", () => (this.#numbers.scrollTop = this.#area.scrollTop));
    this.#number();
  }

  get text() {
    return this.#area.value;
  }

  /** Sets another text without a change event. */
  set(text) {
    if (text === this.text) return;
    this.#area.value = text;
    this.#problems = [];
    this.#number();
  }

  /** Sets another text in a way that can be undone. */
  replace(text) {
    if (text === this.text) return;
    this.#area.focus();
    this.#area.select();
    // Only execCommand is part of the text area's undo history; where it is missing the text is just set.
    if (!document.execCommand("insertText", false, text)) {
      this.#area.value = text;
      this.#area.dispatchEvent(new Event("input", { bubbles: true }));
    }
    this.#area.setSelectionRange(0, 0);
    this.#area.scrollTo(0, 0);
    this.#root.scrollIntoView({ block: "nearest" });
  }

  /** Marks problems: {line, severity}, with lines from 1. */
  mark(problems) {
    this.#problems = problems.filter((each) => each.line !== null);
    this.#area.setAttribute("aria-invalid", String(problems.some((each) => each.severity === "error")));
    this.#number();
  }

  /** Selects the words of a problem, whose columns the server counts in characters from 1. */
  goTo({ line, column, end_column: end }) {
    const lines = this.text.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    const [from, to] = span(lines[line - 1] ?? "", column, end);
    this.#area.focus();
    this.#area.setSelectionRange(start + from, start + to);
    const row = this.#numbers.children[line - 1];
    if (row) this.#area.scrollTop = row.offsetTop - this.#area.clientHeight / 2;
  }

  #number() {
    const count = this.text.split("\n").length;
    while (this.#numbers.childElementCount > count) this.#numbers.lastElementChild.remove();
    while (this.#numbers.childElementCount < count) {
      this.#numbers.append(el("div", {}, String(this.#numbers.childElementCount + 1)));
    }
    for (const [at, row] of [...this.#numbers.children].entries()) {
      const mine = this.#problems.filter((each) => each.line === at + 1);
      const worst = mine.some((each) => each.severity === "error") ? "p-error" : mine.length ? "p-warning" : "";
      if (row.className !== worst) row.className = worst;
    }
    this.#numbers.scrollTop = this.#area.scrollTop;
  }
}

// The server counts characters, which may be two UTF-16 units. A problem without an end reaches to the line's end.
function span(line, column, end) {
  const characters = [...line];
  const units = (count) => characters.slice(0, count).join("").length;
  const from = units(column - 1);
  const to = end === null || end === undefined ? line.length : units(end - 1);
  return from < to ? [from, to] : [Math.max(0, Math.min(from, line.length) - 1), line.length];
}
