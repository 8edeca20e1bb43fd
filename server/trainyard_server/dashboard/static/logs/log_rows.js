// Rows of log lines: time, replica, severity, text. Everything from a program is added as text.
import { parts } from "./ansi.js";

const LONGEST = 5_000; // characters of a line that are shown at first
const UNKNOWN = "1970-01-01T00:00:00Z"; // the time of a line that the server's disk has damaged
const LEVELS = { DEBUG: "debug", NOTICE: "notice", WARNING: "warning", ERROR: "error", CRITICAL: "critical" };
const COLOURS = 8;
const PARTIAL = 1; // the last element of an entry
const OVERWRITTEN = 2; // a state of a progress bar: the next line of its stream replaces it

const model = document.createElement("template");
model.innerHTML = '<div class="ln"><a class="at" tabindex="-1"></a><span class="by"></span><span class="lv"></span><span class="msg"></span></div>';

export class Rows {
  #search = null;
  #clock = new Map();
  #utc = false;
  #colours = new Map();
  #runs = false;
  #newest = new Map(); // the last cursor of each stream, and its row if that is a state of a bar

  /** Whether any line is not from today. */
  dated = false;

  /** Sets the replicas, in the order of their colours, and whether rows show their run. */
  replicas(tasks, runs) {
    this.#colours = new Map(tasks.map((task, at) => [task, (at % COLOURS) + 1]));
    this.#runs = runs;
  }

  /** Sets the text to highlight, in any case; "": none. */
  search(text) {
    this.#search = text ? new RegExp(text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu") : null;
  }

  zone(utc) {
    this.#utc = utc;
    this.#clock.clear();
  }

  colour(task) {
    return this.#colours.get(task) ?? 0;
  }

  /** A row of `[cursor, run, task, number, time, stream, severity, text, part]`. */
  make(entry) {
    const row = model.content.firstElementChild.cloneNode(true);
    const [cursor, run, task, , , stream, severity, , part] = entry;
    const [at, who, level] = row.children;
    row.entry = entry;
    row.dataset.c = cursor;
    at.href = `#L${cursor}`;
    this.when(row);
    who.textContent = run && this.#runs ? `${run}/${short(task)}` : short(task);
    who.className = `by s-${this.colour(task)}`;
    const word = LEVELS[severity];
    if (word) {
      row.classList.add(`ln-${word}`);
      level.textContent = word;
    }
    this.what(row);
    this.#replace(row, `${run}/${task}/${stream}`, cursor, part === OVERWRITTEN);
    return row;
  }

  /** Shows of a progress bar its last state alone. */
  #replace(row, stream, cursor, isState) {
    const newest = this.#newest.get(stream);
    if (newest && newest.cursor > cursor) {
      row.hidden = isState;
      return;
    }
    if (newest?.state && newest.cursor < cursor) newest.state.hidden = true;
    this.#newest.set(stream, { cursor, state: isState ? row : null });
  }

  /** Writes the time, again after the zone was changed. */
  when(row) {
    const time = row.entry[4];
    row.firstElementChild.textContent = time === UNKNOWN ? "time unknown" : this.#time(time);
  }

  /** The tooltip of a line. */
  about({ entry: [cursor, run, task, number, time] }) {
    const where = run ? `line ${number + 1} of ${task}, run ${run}` : `line ${number + 1} of the service`;
    return `Line ${cursor}; ${where}; ${time === UNKNOWN ? "time unknown" : time}. Click copies its link`;
  }

  /** Writes the text, again after the search was changed. */
  what(row, whole = row.classList.contains("whole")) {
    const [, , , , , , , text, part] = row.entry;
    const message = row.lastElementChild;
    const shown = whole || text.length <= LONGEST ? text : text.slice(0, LONGEST);
    message.replaceChildren();
    let matched = false;
    for (const one of parts(shown)) {
      let into = message;
      if (one.classes) {
        into = document.createElement("span");
        into.className = one.classes;
        message.append(into);
      }
      matched = this.#mark(into, one.text) || matched;
    }
    row.classList.toggle("found", matched);
    row.classList.toggle("whole", whole);
    if (shown.length < text.length) {
      const more = document.createElement("button");
      more.type = "button";
      more.className = "more";
      more.textContent = `${(text.length - shown.length).toLocaleString()} more characters`;
      message.append("… ", more);
    }
    if (part === PARTIAL) {
      const goes = document.createElement("span");
      goes.className = "part";
      goes.textContent = " (continues in the next line)";
      message.append(goes);
    }
  }

  #mark(into, text) {
    if (!this.#search) {
      into.append(text);
      return false;
    }
    let at = 0;
    for (const match of text.matchAll(this.#search)) {
      if (match.index > at) into.append(text.slice(at, match.index));
      const mark = document.createElement("mark");
      mark.textContent = match[0];
      into.append(mark);
      at = match.index + match[0].length;
    }
    if (at < text.length) into.append(text.slice(at));
    return at > 0;
  }

  /** To the second, with the day if that is not today. Cached: most lines share their second with the one before. */
  #time(time) {
    const second = time.slice(0, 19);
    let text = this.#clock.get(second);
    if (text === undefined) {
      const date = new Date(time);
      const zone = this.#utc ? { timeZone: "UTC" } : {};
      const hour = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", ...zone };
      const day = (one) => one.toLocaleDateString(undefined, { month: "short", day: "numeric", ...zone });
      const today = day(date) === day(new Date());
      this.dated ||= !today;
      text = (today ? "" : `${day(date)} `) + date.toLocaleTimeString(undefined, hour);
      if (this.#clock.size > 1_000) this.#clock.clear();
      this.#clock.set(second, text);
    }
    return text;
  }
}

/** `worker-replica-0` is worker-0. */
export function short(task) {
  return task.replace("-replica-", "-");
}
