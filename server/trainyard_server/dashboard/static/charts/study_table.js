// Table of a study's trials: sorted by any column, 50 rows a page.
import { el, icon } from "../base/dom.js";
import { formatted } from "./curves.js";
import { duration, localize } from "../base/times.js";
import { metricOf } from "./study_axes.js";

const PAGE = 50;

export class TrialsTable {
  #table;
  #pages;
  #order = null;
  #descending = false;
  #page = 0;
  #shown = null;

  /** @param {HTMLTableElement} table @param {HTMLElement} pages */
  constructor(table, pages) {
    this.#table = table;
    this.#pages = pages;
  }

  /** @param {object} study @param {object[]} trials those that are selected @param {(number: number) => string} hrefOf */
  show(study, trials, hrefOf) {
    this.#shown = [study, trials, hrefOf];
    const columns = columnsOf(study);
    if (this.#order === null) [this.#order, this.#descending] = [study.metric_tag, study.goal === "MAXIMIZE"];
    const column = columns.find(({ name }) => name === this.#order) ?? columns[0];
    const sorted = [...trials].sort(orderBy(column.of, this.#descending));
    this.#page = Math.min(this.#page, Math.max(0, Math.ceil(sorted.length / PAGE) - 1));
    const rows = sorted.slice(this.#page * PAGE, (this.#page + 1) * PAGE);
    const focusAgain = this.#focused();
    this.#table.replaceChildren(
      el("thead", {}, el("tr", {}, ...columns.map((one) => this.#head(one, column)))),
      el("tbody", {}, ...rows.map((trial) => rowOf(columns, trial, study, hrefOf))),
    );
    this.#showPages(sorted.length);
    focusAgain();
    localize(this.#table);
  }

  /** Returns what gives the focus back to the heading, link or button that has it now, once they are made anew. */
  #focused() {
    const active = document.activeElement;
    const inPages = this.#pages.contains(active);
    if (!inPages && !this.#table.contains(active)) return () => {};
    return () => {
      const buttons = [...this.#pages.querySelectorAll("button:enabled")];
      const places = [...this.#table.querySelectorAll("th button, a.name"), ...buttons];
      const again = places.find((one) => one.textContent === active.textContent) ?? (inPages ? buttons[0] : null);
      again?.focus();
    };
  }

  #head(column, current) {
    const sorted = column === current ? (this.#descending ? "descending" : "ascending") : null;
    const onclick = () => {
      this.#descending = column === current ? !this.#descending : false;
      this.#order = column.name;
      this.#page = 0;
      this.show(...this.#shown);
    };
    return el("th", { scope: "col", class: column.number ? "num" : null, "aria-sort": sorted }, el("button", { type: "button", class: "quiet", onclick }, column.name));
  }

  #showPages(total) {
    this.#pages.hidden = total <= PAGE;
    const last = Math.min(total, (this.#page + 1) * PAGE);
    const to = (word, page, disabled) =>
      el("button", { type: "button", disabled, onclick: () => { this.#page = page; this.show(...this.#shown); } }, word);
    this.#pages.replaceChildren(
      el("span", {}, `${(this.#page * PAGE + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${total.toLocaleString("en")}`),
      to("Previous", this.#page - 1, this.#page === 0),
      to("Next", this.#page + 1, last === total),
    );
  }
}

function columnsOf(study) {
  const parameters = study.parameters.map((one) => {
    const isText = one.type === "CATEGORICAL";
    const of = (trial) => (trial.parameters[one.name] === undefined ? null : isText ? trial.parameters[one.name] : Number(trial.parameters[one.name]));
    return { name: one.name, number: !isText, of };
  });
  return [
    { name: "Trial", of: (trial) => trial.number, cell: (trial, href, isBest) => [el("a", { class: "name", href }, String(trial.number)), isBest && el("span", { class: "badge badge-good" }, "best")] },
    { name: "State", of: (trial) => trial.state, cell: (trial) => [stateOf(trial), trial.note && el("span", { class: "meta" }, trial.note)] },
    { name: study.metric_tag, number: true, of: metricOf, cell: (trial) => [el("b", { class: trial.state === "FAILED" ? "dim" : null }, formatted(trial.value))] },
    { name: "Step", number: true, of: (trial) => trial.step },
    ...parameters,
    { name: "Time", number: true, of: secondsOf, cell: timeOf },
  ];
}

function rowOf(columns, trial, study, hrefOf) {
  const href = hrefOf(trial.number);
  return el(
    "tr",
    { "data-row": true, "data-key": `trial-${trial.number}`, class: trial.number === study.best ? "is-best" : null },
    ...columns.map((column) => {
      const value = column.cell ? column.cell(trial, href, trial.number === study.best) : [typeof column.of(trial) === "number" ? formatted(column.of(trial)) : column.of(trial)];
      return el("td", { class: column.number ? "num" : null }, ...value);
    }),
  );
}

function stateOf(trial) {
  const kind = trial.state.toLowerCase();
  const word = trial.stopped_early ? "Stopped early" : trial.state.charAt(0) + kind.slice(1);
  return el("span", { class: `state state-${kind}` }, icon(`state-${kind}`), el("span", {}, word));
}

function secondsOf(trial) {
  if (!trial.started_at) return null;
  return (Date.parse(trial.ended_at ?? new Date().toISOString()) - Date.parse(trial.started_at)) / 1000;
}

function timeOf(trial) {
  if (!trial.started_at) return [];
  if (!trial.ended_at) return [el("span", { "data-since": trial.started_at })];
  return [duration(secondsOf(trial))];
}

function orderBy(of, descending) {
  return (a, b) => {
    const [left, right] = [of(a), of(b)];
    if (left === null || right === null) return Number(left === null) - Number(right === null) || a.number - b.number;
    const order = typeof left === "number" ? left - right : String(left).localeCompare(String(right));
    return (descending ? -order : order) || a.number - b.number;
  };
}
