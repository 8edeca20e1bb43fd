// Card of one chart: its lines, its buttons, and the table of its newest values.
import { Chart, plain, styleOf } from "./charts.js";
import { epochAt, extentOf, formatted, joined, smoothed, symbolOf, unitOf, withDetail } from "./curves.js";

const SVG = "http://www.w3.org/2000/svg";
const TOGETHER = 10; // lines in one hover

let count = 0;

export class Card {
  #chart;
  #title;
  #log;
  #reset;
  #note;
  #body;
  #figure;
  #hidden = new Set();
  #zoom = null;
  #details = new Map();
  #lines = [];
  #options = null;
  #requests = 0;

  /** @param {string} base the common part of its metrics' names @param {(on: boolean) => void} onLog */
  constructor(base, onLog) {
    this.base = base;
    const id = `chart-${++count}`;
    this.element = make("section", { class: "chart-card", "aria-labelledby": id, "data-metric": base });
    this.#title = make("h2", { id }, base);
    this.#reset = make("button", { type: "button", class: "quiet", hidden: "" }, "Reset zoom");
    this.#log = make("button", { type: "button", "aria-pressed": "false", title: "Logarithmic scale" }, "Log");
    this.#figure = make("div", { class: "chart", role: "img", tabindex: "0", "aria-keyshortcuts": "+ - ArrowLeft ArrowRight 0" });
    this.#note = make("p", { class: "note" });
    this.#body = make("tbody");
    const head = make("thead");
    head.append(make("tr"));
    for (const word of ["Curve", "Last", "Step", "Min", "Max"]) head.firstChild.append(make("th", { scope: "col" }, word));
    const table = make("table");
    table.append(make("caption", { class: "hidden" }, `Newest values of ${base}`), head, this.#body);
    const scroll = make("div", { class: "curves", tabindex: "0", role: "group", "aria-label": `Values of ${base}` });
    scroll.append(table);
    const header = make("header");
    header.append(this.#title, this.#reset, this.#log);
    this.element.append(header, this.#figure, this.#note, scroll);

    this.#chart = new Chart(this.#figure, (range, isZoomed) => this.#zoomed(range, isZoomed));
    this.#reset.addEventListener("click", () => this.#chart.reset());
    this.#log.addEventListener("click", () => onLog(this.#log.getAttribute("aria-pressed") !== "true"));
    this.#body.addEventListener("click", (event) => {
      const key = event.target.closest("button")?.dataset.line;
      if (key === undefined) return;
      if (!this.#hidden.delete(key)) this.#hidden.add(key);
      this.show(this.#lines, this.#options);
    });
  }

  /**
   * @param {{key: string, name: string, metric: string, task: string, job: MetricsJob, index: number}[]} lines
   * @param {{x: string, smooth: number, log: boolean, seconds: number}} options `seconds`: the longest of all jobs
   */
  show(lines, options) {
    if (this.#options && this.#options.x !== options.x) {
      this.#reset.hidden = true;
      this.#zoom = null;
      this.#details.clear();
      this.#requests += 1;
    }
    this.#lines = lines;
    this.#options = options;
    this.#log.setAttribute("aria-pressed", String(options.log));
    const curves = lines.map((line) => ({ ...line, ...joined(this.#runs(line)) }));
    this.#table(curves);
    this.#chart.show(this.#picture(curves.filter((one) => !this.#hidden.has(one.key)), options));
    const last = curves[0]?.main.values.at(-1);
    this.#figure.setAttribute("aria-label", `Curve of ${this.base}${last === undefined ? "" : `, now ${formatted(last)}`}. The table below has the values.`);
  }

  /** Requests the zoomed range again, after new points. */
  refreshDetail() {
    if (this.#zoom) this.#requestDetail();
  }

  close() {
    this.#chart.close();
    this.element.remove();
  }

  #runs(line) {
    const runs = line.job.series.get(`${line.metric}\t${line.task}`) ?? [];
    const detail = this.#details.get(line.job.key);
    if (!detail) return runs;
    return runs.map((one) => withDetail(one, detail.series.get(`${line.metric}\t${line.task}\t${one.run}`), detail.from, detail.to));
  }

  #picture(curves, { x, smooth, log, seconds }) {
    const [unit, unitName] = unitOf(seconds);
    const position = (one, points) => {
      if (x === "time") return points.times.map((time) => time / unit);
      if (x === "epoch") return one.job.starts.length ? points.steps.map((step) => epochAt(one.job.starts, step)) : [];
      return points.steps;
    };
    const lines = [];
    const begins = new Map();
    let below = 0;
    const shown = (values) =>
      values.map((value) => {
        if (!Number.isFinite(value)) return null;
        if (log && value <= 0) {
          below += 1;
          return null;
        }
        return value;
      });
    for (const one of curves) {
      const { colour, dash } = styleOf(one.index);
      const along = position(one, one.main);
      if (!along.length) continue;
      const raw = shown(one.main.values);
      const symbol = symbolOf(one.metric);
      const where = x === "step" ? "" : ", step %{customdata[1]:,}";
      const value = smooth ? "%{y:.4~g} (raw %{customdata[0]})" : "%{customdata[0]}";
      const data = one.main.values.map((v, i) => [formatted(v), one.main.steps[i]]);
      if (smooth) lines.push({ name: one.name, x: along, y: raw, colour, width: 1.25, opacity: 0.28 });
      for (const lost of one.lost) {
        lines.push({ name: `${one.name}, lost with run ${lost.run}`, x: position(one, lost), y: shown(lost.values), colour, dash: "2px,3px", width: 1.25, opacity: 0.55 });
      }
      lines.push({ name: one.name, x: along, y: smoothed(raw, smooth), colour, dash, symbol, data, hover: `${plain(one.name)}: ${value}${where}<extra></extra>` });
      const strange = one.main.values.flatMap((v, i) => (Number.isFinite(v) ? [] : [i]));
      if (strange.length) {
        lines.push({
          name: one.name, flag: true, colour, x: strange.map((i) => along[i]), y: [], data: strange.map((i) => formatted(one.main.values[i])),
          hover: `${plain(one.name)} is %{text}${where && ""}<extra></extra>`,
        });
      }
      for (const [step, run] of one.begins) {
        const at = along[one.main.steps.indexOf(step)];
        const key = `${one.job.key}\t${run}`;
        if (at !== undefined && !(begins.get(key)?.x <= at)) begins.set(key, { x: at, text: `run ${run}` });
      }
    }
    const notes = [];
    if (below) notes.push(`${below === 1 ? "1 value is" : `${below} values are`} not above 0 and left out of a logarithmic scale.`);
    if (x === "epoch" && curves.some((one) => !one.job.starts.length)) notes.push("Some jobs do not report where their epochs begin.");
    this.#note.textContent = notes.join(" ");
    return {
      lines,
      events: begins.size <= TOGETHER ? [...begins.values()] : [],
      together: lines.length <= TOGETHER,
      x: { title: { step: "step", time: `${unitName} since the start`, epoch: "epoch" }[x], key: `${x}/${x === "time" ? unitName : ""}` },
      y: { type: log ? "log" : "linear", key: x },
    };
  }

  #table(curves) {
    const rows = curves.map((one) => {
      const { values, steps } = one.main;
      const { low, high } = extentOf(values);
      const isOff = this.#hidden.has(one.key);
      const row = make("tr", isOff ? { class: "off" } : {});
      const head = make("th", { scope: "row" });
      const button = make("button", { type: "button", class: "quiet", "aria-pressed": String(!isOff), "data-line": one.key, title: "Show or hide this curve" });
      button.append(swatch(one), one.name);
      head.append(button);
      const numbers = [formatted(values.at(-1)), steps.at(-1)?.toLocaleString("en") ?? "", low === Infinity ? "" : formatted(low), high === -Infinity ? "" : formatted(high)];
      row.append(head, ...numbers.map((text) => make("td", {}, text)));
      if (values.length && !Number.isFinite(values.at(-1))) row.children[1].className = "strange";
      return row;
    });
    update(this.#body, rows);
  }

  #zoomed(range, isZoomed) {
    this.#zoom = range;
    this.#reset.hidden = !isZoomed;
    if (range === null) this.#forgetZoom();
    else this.#requestDetail();
  }

  #forgetZoom() {
    this.#zoom = null;
    this.#requests += 1;
    if (!this.#details.size) return;
    this.#details.clear();
    if (this.#lines.length) this.show(this.#lines, this.#options);
  }

  // Requests all points of the zoomed range, for curves that were thinned.
  async #requestDetail() {
    const mine = ++this.#requests;
    const [low, high] = this.#zoom;
    const metrics = [...new Set(this.#lines.map((line) => line.metric))];
    const jobs = [...new Set(this.#lines.map((line) => line.job))];
    const answers = await Promise.all(
      jobs.map(async (job) => {
        const [from, to] = this.#stepsBetween(job, low, high);
        const series = from <= to ? await job.detail(metrics, from, to).catch(() => null) : null;
        return [job.key, series && { series, from, to }];
      }),
    );
    if (mine !== this.#requests || !this.#zoom) return;
    this.#details = new Map(answers.filter(([, detail]) => detail));
    this.show(this.#lines, this.#options);
  }

  #stepsBetween(job, low, high) {
    const { x, seconds } = this.#options;
    if (x === "step") return [Math.max(0, Math.floor(low)), Math.max(0, Math.ceil(high))];
    const [unit] = unitOf(seconds);
    let from = Infinity;
    let to = -Infinity;
    for (const line of this.#lines.filter((one) => one.job === job)) {
      for (const { steps, times } of job.series.get(`${line.metric}\t${line.task}`) ?? []) {
        const along = x === "time" ? times.map((time) => time / unit) : job.starts.length ? steps.map((step) => epochAt(job.starts, step)) : [];
        along.forEach((at, i) => {
          if (at < low || at > high) return;
          from = Math.min(from, steps[Math.max(0, i - 1)]);
          to = Math.max(to, steps[Math.min(steps.length - 1, i + 1)]);
        });
      }
    }
    return [from, to];
  }
}

function swatch(line) {
  const { colour, dash } = styleOf(line.index);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 12");
  svg.setAttribute("class", `swatch series-${colour + 1}`);
  svg.setAttribute("aria-hidden", "true");
  const stroke = document.createElementNS(SVG, "path");
  stroke.setAttribute("d", "M1 6H23");
  if (dash !== "solid") stroke.setAttribute("stroke-dasharray", dash.replaceAll("px", ""));
  svg.append(stroke);
  if (symbolOf(line.metric)) {
    const dot = document.createElementNS(SVG, "circle");
    for (const [name, value] of Object.entries({ cx: 12, cy: 6, r: 3 })) dot.setAttribute(name, value);
    svg.append(dot);
  }
  return svg;
}

// Rows keep their elements, so that a pressed button keeps the focus.
function update(body, rows) {
  rows.forEach((row, index) => {
    const known = body.children[index];
    if (!known) body.append(row);
    else if (known.querySelector("button").dataset.line !== row.querySelector("button").dataset.line) known.replaceWith(row);
    else {
      known.className = row.className;
      known.querySelector("button").setAttribute("aria-pressed", row.querySelector("button").getAttribute("aria-pressed"));
      [...row.children].slice(1).forEach((cell, column) => {
        const old = known.children[column + 1];
        if (old.textContent !== cell.textContent || old.className !== cell.className) old.replaceWith(cell);
      });
    }
  });
  while (body.children.length > rows.length) body.lastChild.remove();
}

export function make(tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

