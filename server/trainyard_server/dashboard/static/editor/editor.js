// Text area for a config with line numbers, syntax colours and marked problems. The text area stays a native one
// (selection, undo, input methods); a coloured copy of its text is painted below it.
import { el } from "../base/dom.js";
import { colour, paint } from "./yaml.js";

const INDENT = "  ";

export class Editor {
  #root;
  #area;
  #sheet;
  #numbers;
  #problems = [];
  #shown = [];
  #leaving = false;

  /** @param {HTMLElement} root an .editor with a textarea in it @param {() => void} changed after every change */
  constructor(root, changed) {
    this.#root = root;
    this.#area = root.querySelector("textarea");
    this.#sheet = root.querySelector(".sheet");
    this.#numbers = root.querySelector(".numbers");
    root.classList.add("painted");
    this.#area.addEventListener("input", () => {
      this.#problems = []; // they may have moved; the next check has their positions
      this.#paint();
      changed();
    });
    this.#area.addEventListener("keydown", (event) => this.#key(event));
    this.#area.addEventListener("blur", () => (this.#leaving = false));
    this.#paint();
  }

  get text() {
    return this.#area.value;
  }

  /** Sets another text without a change event. */
  set(text) {
    this.#area.value = text;
    this.#problems = [];
    this.#paint();
  }

  /** Sets another text in a way that can be undone. */
  replace(text) {
    if (text === this.text) return;
    this.#area.focus();
    this.#area.select();
    this.#insert(text);
    this.#area.setSelectionRange(0, 0);
    this.#root.scrollTo(0, 0); // the inserted text has scrolled to its end, and the numbers cover what is to the left
    this.#root.scrollIntoView({ block: "nearest" });
  }

  /** Marks problems: {line, column, end_column, severity}, as the server counts, in characters from 1. */
  mark(problems) {
    this.#problems = problems.filter((one) => one.line !== null);
    this.#area.setAttribute("aria-invalid", String(problems.some((one) => one.severity === "error")));
    this.#paint();
  }

  /** Moves the cursor to a problem. */
  goTo({ line, column, end_column: end }) {
    const lines = this.text.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    const [from, to] = span(lines[line - 1] ?? "", column, end);
    this.#area.focus();
    this.#area.setSelectionRange(start + from, start + to);
    this.#sheet.children[line - 1]?.scrollIntoView({ block: "center", inline: "nearest" });
  }

  #key(event) {
    if (event.key === "Escape") {
      this.#leaving = true; // the next Tab leaves
      return;
    }
    if (event.key === "Tab" && !this.#leaving && !event.ctrlKey && !event.altKey && !event.metaKey) {
      event.preventDefault();
      this.#indent(event.shiftKey);
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && !event.isComposing) {
      event.preventDefault();
      const before = this.text.slice(this.text.lastIndexOf("\n", this.#area.selectionStart - 1) + 1, this.#area.selectionStart);
      const inner = /:\s*$/u.test(before) ? INDENT : "";
      this.#insert(`\n${/^\s*/u.exec(before)[0]}${inner}`);
    }
    if (event.key !== "Tab" && event.key !== "Shift") this.#leaving = false;
  }

  #indent(back) {
    const area = this.#area;
    const { selectionStart: start, selectionEnd: end } = area;
    if (!back && start === end) {
      this.#insert(INDENT);
      return;
    }
    const from = this.text.lastIndexOf("\n", start - 1) + 1;
    const old = this.text.slice(from, end);
    const lines = old.split("\n").map((line) => (back ? line.replace(/^ {1,2}/u, "") : line && INDENT + line));
    const text = lines.join("\n");
    if (text === old) return;
    area.setSelectionRange(from, end);
    this.#insert(text);
    area.setSelectionRange(start === end ? Math.max(from, start + text.length - old.length) : from, from + text.length);
  }

  #insert(text) {
    // Only execCommand is part of the text area's undo history; where it is missing the text is just set.
    const done = text === "" ? document.execCommand("delete") : document.execCommand("insertText", false, text);
    if (done) return;
    this.#area.setRangeText(text, this.#area.selectionStart, this.#area.selectionEnd, "end");
    this.#area.dispatchEvent(new Event("input", { bubbles: true }));
  }

  #paint() {
    const lines = colour(this.text);
    const plain = this.text.split("\n");
    while (this.#sheet.childElementCount > lines.length) {
      this.#sheet.lastElementChild.remove();
      this.#numbers.lastElementChild.remove();
      this.#shown.pop();
    }
    for (const [at, words] of lines.entries()) {
      const mine = this.#problems.filter((one) => one.line === at + 1);
      const marks = mine.map((one) => [...span(plain[at], one.column, one.end_column), `p-${one.severity}`]);
      const now = JSON.stringify([words, marks]);
      if (this.#shown[at] === now) continue;
      if (at === this.#sheet.childElementCount) {
        this.#sheet.append(el("div", { class: "row" }));
        this.#numbers.append(el("div", {}, String(at + 1)));
      }
      paint(this.#sheet.children[at], words, marks);
      const worst = mine.some((one) => one.severity === "error") ? "p-error" : mine.length ? "p-warning" : "";
      this.#numbers.children[at].className = worst;
      this.#sheet.children[at].classList.toggle("row-error", worst === "p-error");
      this.#shown[at] = now;
    }
  }
}

// The server counts characters, which may be two UTF-16 units. A problem without an end is marked to the line's end.
function span(line, column, end) {
  const characters = [...line];
  const units = (count) => characters.slice(0, count).join("").length;
  const from = units(column - 1);
  const to = end === null || end === undefined ? line.length : units(end - 1);
  return from < to ? [from, to] : [Math.max(0, Math.min(from, line.length) - 1), line.length];
}
