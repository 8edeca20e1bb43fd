// Card of one chart: its lines, its buttons, and the table of its newest values.
import { el, svg } from "../base/dom.js";
import { Chart } from "./charts.js";
import { banded, epochAt, extentOf, formatted, joined, smoothed, symbolOf, unitOf, withDetail } from "./curves.js";

const TOGETHER = 10; // lines in one hover
const UNFOLDED = 8; // lines whose values are shown without a click

export class Card {
  #chart;
  #log;
  #reset;
  #note;
  #body;
  #values;
  #figure;
  #hidden = new Set();
  #zoom = null;
  #details = new Map();
  #lines = [];
  #curves = [];
  #options = null;
  #requests = 0;

  /** @param {string} base the common part of its metrics' names @param {Element|null} painted the server's card of it, whose
   * picture stays until the first curve is drawn @param {(on: boolean) => void} onLog */
  constructor(base, painted, onLog) {
    this.base = base;
    const resets = () => this.#chart.reset();
    const switches = () => onLog(this.#log.getAttribute("aria-pressed") !== "true");
    this.#reset = el("button", { type: "button", class: "quiet", hidden: true, onclick: resets }, "Reset zoom");
    this.#log = el("button", { type: "button", "aria-pressed": "false", title: "Logarithmic scale", onclick: switches }, "Log");
    const keys = "+ - ArrowLeft ArrowRight 0";
    this.#figure = el("div", { class: "chart", role: "img", tabindex: "0", "aria-keyshortcuts": keys }, painted?.querySelector("svg"));
    this.#note = el("p", { class: "note" });
    this.#body = el("tbody", { onclick: (event) => this.#toggle(event.target.closest("button")?.dataset.line) });
    const heads = ["Curve", "Last", "Step", "Min", "Max"].map((word) => el("th", { scope: "col" }, word));
    const table = el("table", {}, el("caption", { class: "hidden" }, `Newest values of ${base}`), el("thead", {}, el("tr", {}, ...heads)), this.#body);
    const values = el("div", { class: "curves", tabindex: "0", role: "group", "aria-label": `Values of ${base}` }, table);
    this.#values = el("details", { class: "values", ontoggle: () => this.#showRows() }, el("summary", {}, "Values"), values);
    this.element = el(
      "section",
      { class: "chart-card", "aria-label": base, "data-metric": base },
      el("header", {}, el("h2", {}, base), this.#reset, this.#log),
      this.#figure,
      this.#note,
      this.#values,
    );
    this.#chart = new Chart(this.#figure, (range, isZoomed) => this.#zoomed(range, isZoomed));
  }

  /**
   * @param {{key: string, name: string, metric: string, tasks: string[], job: MetricsJob, style: object}[]} lines each of
   * a replica, or a band of several @param {object} options `x` (step, time, epoch), `logX`, `smooth`, `log`, and `seconds`: the
   * longest of all jobs
   */
  show(lines, options) {
    if (!this.#options) this.#values.open = lines.length <= UNFOLDED;
    this.#lines = lines;
    this.#options = options;
    this.#log.setAttribute("aria-pressed", String(options.log));
    this.#curves = lines.map((line) => ({ ...line, ...this.#curveOf(line) }));
    this.#showRows();
    this.#chart.show(this.#picture(this.#curves.filter(({ key }) => !this.#hidden.has(key))));
    const last = this.#curves[0]?.main.values.at(-1);
    const now = last === undefined ? "" : lines.length > 1 ? `, ${lines.length} curves` : `, now ${formatted(last)}`;
    this.#figure.setAttribute("aria-label", `Curve of ${this.base}${now}. The table below has the values.`);
  }

  /** Requests the zoomed range again, after new points. */
  refreshDetail() {
    if (this.#zoom) this.#requestDetail();
  }

  close() {
    this.#chart.close();
    this.element.remove();
  }

  #toggle(key) {
    if (key === undefined) return;
    if (!this.#hidden.delete(key)) this.#hidden.add(key);
    this.show(this.#lines, this.#options);
  }

  #showRows() {
    if (this.#values.open) update(this.#body, this.#curves.map((curve) => rowOf(curve, this.#hidden.has(curve.key))));
  }

  #curveOf(line) {
    const curves = line.tasks.map((task) => joined(this.#runs(line, task)));
    return curves.length > 1 ? banded(curves) : curves[0];
  }

  #runs({ job, metric }, task) {
    const runs = job.series.get(`${metric}\t${task}`) ?? [];
    const detail = this.#details.get(job.key);
    if (!detail) return runs;
    return runs.map((run) => withDetail(run, detail.series.get(`${metric}\t${task}\t${run.run}`), detail.from, detail.to));
  }

  #picture(curves) {
    const { x, log, logX } = this.#options;
    const drawn = curves.filter((curve) => this.#along(curve.job, curve.main).length);
    const lines = drawn.flatMap((curve) => this.#linesOf(curve));
    const texts = lines.filter(({ textOf }) => textOf).length;
    const events = this.#begins(drawn);
    const below = log ? drawn.flatMap(({ main }) => main.values).filter((value) => Number.isFinite(value) && value <= 0).length : 0;
    const notes = [
      below && `${below === 1 ? "1 value is" : `${below} values are`} not above 0 and left out of a logarithmic scale.`,
      x === "epoch" && drawn.length < curves.length && "Some jobs do not report where their epochs begin.",
    ];
    this.#note.textContent = notes.filter(Boolean).join(" ");
    const [, unitName] = this.#unit();
    return {
      lines,
      events: events.length <= TOGETHER ? events : [],
      together: texts <= TOGETHER,
      crosshair: true,
      x: { title: { step: "step", time: `${unitName} since the start`, epoch: "epoch" }[x], log: logX, whole: x === "step", key: `${x}/${x === "time" ? unitName : ""}` },
      y: { log, key: x },
    };
  }

  /** The curve, and beside it the raw one, the lost steps of earlier runs, and what is no number. */
  #linesOf({ style, job, lost, main, metric, name, low, high }) {
    const { log, logX, smooth } = this.#options;
    const { colour, dash } = style;
    const along = this.#along(job, main);
    const on = (line) => (logX ? above(line) : line);
    const shown = (values) => values.map((value) => (Number.isFinite(value) && (!log || value > 0) ? value : null));
    const edge = (values) => on({ x: along, y: smoothed(shown(values), smooth), colour, width: 0.5, opacity: 0.5 });
    const raw = shown(main.values);
    const y = smoothed(raw, smooth);
    const range = (at) => (low ? ` (${formatted(low[at])} to ${formatted(high[at])})` : "");
    const skipped = logX ? Math.max(0, along.findIndex((place) => place > 0)) : 0;
    const textOf = (place) => {
      const at = place + skipped;
      return `${name}: ${smooth ? `${formatted(y[at])} (raw ${formatted(main.values[at])})` : formatted(main.values[at])}${range(at)}, step ${main.steps[at].toLocaleString("en")}`;
    };
    const strange = main.values.flatMap((value, at) => (Number.isFinite(value) || (logX && along[at] <= 0) ? [] : [at]));
    const crosses = {
      colour, symbol: "cross", x: strange.map((at) => along[at]), y: [],
      textOf: (place) => `${name} is ${formatted(main.values[strange[place]])}, step ${main.steps[strange[place]].toLocaleString("en")}`,
    };
    return [
      ...(low ? [edge(low), { ...edge(high), fills: true }] : []),
      ...(smooth && !low ? [on({ x: along, y: raw, colour, width: 1.25, opacity: 0.28 })] : []),
      ...lost.map((points) => on({ x: this.#along(job, points), y: shown(points.values), colour, dash: [2, 3], width: 1.25, opacity: 0.55 })),
      on({ x: along, y, colour, dash, width: this.#lines.length > TOGETHER ? 1.25 : 1.75, symbol: symbolOf(metric), textOf, group: job.key }),
      ...(strange.length ? [crosses] : []),
    ];
  }

  /** Where resumed runs begin: the earliest place of each. */
  #begins(curves) {
    const begins = new Map();
    for (const { job, main, begins: runs } of curves) {
      const along = this.#along(job, main);
      for (const [step, run] of runs) {
        const x = along[main.steps.indexOf(step)];
        const key = `${job.key}\t${run}`;
        if (x !== undefined && !(begins.get(key)?.x <= x)) begins.set(key, { x, text: `run ${run}` });
      }
    }
    return [...begins.values()];
  }

  /** Positions of points on the X axis; none where the job has no epochs. */
  #along(job, { steps, times }) {
    const { x } = this.#options;
    if (x === "time") return times.map((time) => time / this.#unit()[0]);
    if (x === "epoch") return job.starts.length ? steps.map((step) => epochAt(job.starts, step)) : [];
    return steps;
  }

  #unit() {
    return unitOf(this.#options.seconds);
  }

  #zoomed(range, isZoomed) {
    this.#zoom = range;
    this.#reset.hidden = !isZoomed;
    if (range) {
      this.#requestDetail();
      return;
    }
    this.#requests += 1;
    if (!this.#details.size) return;
    this.#details.clear();
    this.show(this.#lines, this.#options);
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
    if (this.#options.x === "step") return [Math.max(0, Math.floor(low)), Math.max(0, Math.ceil(high))];
    const within = [];
    for (const line of this.#lines.filter((other) => other.job === job)) {
      for (const run of line.tasks.flatMap((task) => job.series.get(`${line.metric}\t${task}`) ?? [])) {
        this.#along(job, run).forEach((at, i) => {
          if (at >= low && at <= high) within.push(run.steps[Math.max(0, i - 1)], run.steps[Math.min(run.steps.length - 1, i + 1)]);
        });
      }
    }
    return extentOf(within);
  }
}

function rowOf(curve, isOff) {
  const { values, steps } = curve.main;
  const [low, high] = extentOf(values);
  const button = el(
    "button",
    { type: "button", class: "quiet", "aria-pressed": String(!isOff), "data-line": curve.key, title: "Show or hide this curve" },
    swatch(curve.style, curve.metric),
    curve.name,
  );
  const numbers = [formatted(values.at(-1)), steps.at(-1)?.toLocaleString("en") ?? "", ...[low, high].map((end) => (Number.isFinite(end) ? formatted(end) : ""))];
  const isStrange = values.length > 0 && !Number.isFinite(values.at(-1));
  const cells = numbers.map((text, column) => el("td", { class: column === 0 && isStrange && "strange" }, text));
  return el("tr", { class: isOff && "off" }, el("th", { scope: "row" }, button), ...cells);
}

/** A line as a chart has it. @param {{colour: number, dash: number[]}} style */
export function swatch({ colour, dash }, metric = "") {
  return svg(
    "svg",
    { viewBox: "0 0 24 12", class: `swatch series-${colour + 1}`, "aria-hidden": "true" },
    svg("path", { d: "M1 6H23", "stroke-dasharray": dash.length > 0 && dash.join() }),
    symbolOf(metric) && svg("circle", { cx: 12, cy: 6, r: 3 }),
  );
}

/** A line without the points that a logarithmic X axis does not have. */
function above(line) {
  const first = line.x.findIndex((place) => place > 0);
  const from = first < 0 ? line.x.length : first;
  return { ...line, x: line.x.slice(from), y: line.y.slice(from) };
}

// Rows keep their elements, so that a pressed button keeps the focus.
function update(body, rows) {
  rows.forEach((row, index) => {
    const old = body.children[index];
    if (!old) body.append(row);
    else if (old.querySelector("button").dataset.line !== row.querySelector("button").dataset.line) old.replaceWith(row);
    else {
      old.className = row.className;
      old.querySelector("button").setAttribute("aria-pressed", row.querySelector("button").getAttribute("aria-pressed"));
      [...row.children].slice(1).forEach((cell, column) => old.children[column + 1].replaceWith(cell));
    }
  });
  while (body.children.length > rows.length) body.lastChild.remove();
}
