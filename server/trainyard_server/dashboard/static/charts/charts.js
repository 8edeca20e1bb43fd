// Charts of uPlot in the colours of the page. Updates keep the zoom. No other module calls uPlot.
import { el } from "../base/dom.js";

const COLOURS = 8;
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3]];
const NEAR = 30; // pixels from the pointer to a point that is shown
const MARKED = 60; // points of a line that get a symbol
const MARKED_OF_ALL = 600; // points of many lines together
const TICK_WIDTH = 64;
const TICK_HEIGHT = 16;
const MANY = 8; // jobs with the colours of the theme; more have hues
const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

const charts = new Set();
let isFollowing = false; // the pointer of another chart
let pointed = null; // the group of the line that it points at

/** Style of line number `index` of a chart: a colour from 0, and dashes for readers who do not see colours. */
export function styleOf(index) {
  return { colour: index % COLOURS, dash: DASHES[(index % 2) + 2 * (Math.floor(index / COLOURS) % 2)] };
}

/** Style of job number `index` of `count`: of more than a few jobs each has a hue of its own, as hues.css has it. */
export function styleAmong(index, count) {
  return count > MANY ? { colour: COLOURS + index, dash: DASHES[index % DASHES.length] } : styleOf(index);
}

/**
 * Content of a chart.
 * @typedef {object} Line
 * @property {number[]} x rising @property {(number|null)[]} y null: a gap
 * @property {number} colour from 0 @property {number[]} [dash] @property {number} [width] @property {number} [opacity]
 * @property {"circle"|"diamond"|"cross"} [symbol] marks points, some of them where there are many; crosses are red and
 * lie at the upper edge, without y @property {(index: number) => string} [textOf] of a point, shown on hover @property {boolean} [stepped] level
 * until the next point @property {boolean} [points] no line @property {boolean} [fills] the area between it and the line before it @property {string} [group] of lines in several charts
 *
 * @typedef {object} Axis
 * @property {string} [title] @property {boolean} [log] @property {boolean} [whole] has whole numbers alone @property {string} [key] with another key the axis loses its zoom
 *
 * @typedef {object} Picture
 * @property {Line[]} lines @property {Axis} x @property {Axis} y
 * @property {{x: number, text: string}[]} [events] upright lines with a word @property {boolean} [together] one hover for all
 * @property {boolean} [crosshair] the pointer shows the same place of all such charts with the same `x.key`
 */
export class Chart {
  #element;
  #onZoom;
  #picture = null;
  #plot = null;
  #look = "";
  #zoom = { x: null, y: null };
  #keys = "";
  #isSeen = false;
  #watch;
  #size;
  #retheme = () => this.#draw();

  /** @param {HTMLElement} element of a height; what it contains is replaced when the chart comes into sight
   * @param {(range: [number, number]|null, isZoomed: boolean) => void} onZoom
   * along x, null for all of it; and whether it is zoomed at all */
  constructor(element, onZoom = () => {}) {
    this.#element = element;
    this.#onZoom = onZoom;
    this.#watch = new IntersectionObserver((entries) => {
      this.#isSeen = entries.at(-1).isIntersecting;
      if (this.#isSeen) this.#draw();
    }, { rootMargin: "150px" });
    this.#watch.observe(element);
    this.#size = new ResizeObserver(() => element.clientWidth && this.#plot?.setSize(sizeOf(element)));
    this.#size.observe(element);
    document.addEventListener("trainyard:theme", this.#retheme);
    element.addEventListener("keydown", (event) => this.#key(event));
    charts.add(this);
  }

  /** Shows a picture, as soon as the chart is in sight. @param {Picture} picture */
  show(picture) {
    this.#picture = picture;
    const keys = JSON.stringify([picture.x, picture.y].map(({ key, log }) => [key, log]));
    const isOther = this.#keys !== keys;
    this.#keys = keys;
    if (isOther && (this.#zoom.x || this.#zoom.y)) this.reset();
    else this.#draw();
  }

  /** Resets the zoom. */
  reset() {
    this.#zoomTo({ x: null, y: null });
  }

  close() {
    charts.delete(this);
    this.#watch.disconnect();
    this.#size.disconnect();
    document.removeEventListener("trainyard:theme", this.#retheme);
    this.#plot?.destroy();
    this.#plot = this.#picture = null;
  }

  #zoomTo(zoom) {
    this.#zoom = zoom;
    this.#draw();
    this.#onZoom(zoom.x, Boolean(zoom.x || zoom.y));
  }

  #draw() {
    const picture = this.#picture;
    if (!picture || !this.#isSeen || !this.#element.clientWidth) return;
    const theme = themed(picture.lines);
    const look = JSON.stringify([theme, picture.x, picture.y, picture.together, picture.lines.map(({ x, y, ...style }) => style)]);
    this.#element.picture = picture; // for whoever inspects the page
    if (look === this.#look && this.#plot) return this.#plot.setData(aligned(picture.lines));
    this.#look = look;
    this.#plot?.destroy();
    this.#element.replaceChildren();
    this.#plot = new window.uPlot(this.#options(picture, theme), aligned(picture.lines), this.#element);
    this.#element.plot = this.#plot;
    this.#plot.over.addEventListener("dblclick", () => this.reset());
    return undefined;
  }

  #options(picture, theme) {
    const hover = el("div", { class: "chart-hover", hidden: true, "aria-hidden": "true" });
    const isTouched = matchMedia("(pointer: coarse)").matches;
    const bare = { paths: () => null, points: { show: false } };
    return {
      ...sizeOf(this.#element),
      padding: [12, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, x: Boolean(picture.together || picture.crosshair), points: { show: false }, drag: { x: !isTouched, y: !isTouched, uni: 40, dist: 5, setScale: false } },
      scales: {
        x: { time: false, distr: picture.x.log ? 3 : 1, range: (_, low, high) => this.#zoom.x ?? wholeOf(this.#picture, low, high) },
        y: { distr: picture.y.log ? 3 : 1, range: (_, low, high) => this.#zoom.y ?? heightOf(picture.y, low, high) },
      },
      axes: [axisOf(picture.x, theme, false), axisOf(picture.y, theme, true)],
      bands: picture.lines.flatMap((line, at) => (line.fills ? [{ series: [at + 1, at], fill: `color-mix(in srgb, ${theme.colours[line.colour]} 16%, transparent)` }] : [])),
      series: [{}, ...picture.lines.map((line) => {
        if (line.points || line.symbol === "cross") return bare;
        const width = line.width ?? 1.75;
        const paths = line.stepped ? { paths: window.uPlot.paths.stepped({ align: 1 }) } : {};
        return { stroke: theme.colours[line.colour], width, dash: line.dash, alpha: line.opacity ?? 1, points: { show: false }, ...paths };
      })],
      hooks: {
        ready: [(plot) => plot.over.append(hover)],
        drawAxes: [(plot) => drawEvents(plot, this.#picture.events ?? [], theme)],
        drawSeries: [(plot, index) => drawSymbols(plot, this.#picture.lines[index - 1], theme)],
        setCursor: [(plot) => this.#pointed(plot, hover)],
        setSelect: [(plot) => this.#selected(plot)],
      },
    };
  }

  #pointed(plot, hover) {
    const hits = showHover(plot, hover, this.#picture);
    if (isFollowing || !this.#picture.crosshair) return;
    const { left } = plot.cursor;
    const x = left >= 0 ? plot.posToVal(left, "x") : null;
    isFollowing = true;
    pointed = hits.length === 1 ? hits[0].line.group : null;
    for (const chart of charts) if (chart !== this) chart.#follow(x, this.#picture.x.key);
    isFollowing = false;
  }

  #follow(x, key) {
    if (!this.#plot || !this.#isSeen || !this.#picture.crosshair || this.#picture.x.key !== key) return;
    this.#plot.setCursor({ left: x === null ? -10 : this.#plot.valToPos(x, "x"), top: -10 });
  }

  #selected(plot) {
    const { left, top, width, height } = plot.select;
    if (!width || !height) return;
    const range = (scale, from, to) => [plot.posToVal(from, scale), plot.posToVal(to, scale)];
    const zoom = { ...this.#zoom };
    if (width < plot.over.clientWidth) zoom.x = range("x", left, left + width);
    if (height < plot.over.clientHeight) zoom.y = range("y", top + height, top);
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#zoomTo(zoom);
  }

  #key(event) {
    if (!this.#plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const { over } = this.#plot;
    const part = { "+": [0.25, 0.75], "-": [-0.5, 1.5], ArrowLeft: [-0.25, 0.75], ArrowRight: [0.25, 1.25] }[event.key];
    if (event.key === "0") this.reset();
    else if (part) this.#zoomTo({ ...this.#zoom, x: part.map((share) => this.#plot.posToVal(share * over.clientWidth, "x")) });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

const colours = new Map(); // of this theme
document.addEventListener("trainyard:theme", () => colours.clear());

function colourOf(index) {
  if (!colours.has(index)) {
    const probe = el("i", { class: `series-${index + 1}`, hidden: true });
    document.body.append(probe);
    colours.set(index, getComputedStyle(probe).getPropertyValue("--series").trim());
    probe.remove();
  }
  return colours.get(index);
}

function themed(lines) {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    colours: Object.fromEntries(lines.map(({ colour }) => [colour, colourOf(colour)])),
    dim: value("--dim"),
    line: value("--line"),
    strong: value("--line-strong"),
    surface: value("--surface"),
    bad: value("--bad"),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
}

function sizeOf(element) {
  return { width: element.clientWidth, height: element.clientHeight };
}

/** The columns that the library draws: x of all points in their order, and y of each line. It draws through what a line
 * does not have, and leaves a gap where it has null. */
function aligned(lines) {
  const counts = new Map(); // how often the line that has an x most often has it
  for (const { x } of lines) {
    let times = 0;
    x.forEach((here, index) => {
      times = index > 0 && here === x[index - 1] ? times + 1 : 1;
      if (times > (counts.get(here) ?? 0)) counts.set(here, times);
    });
  }
  const along = [];
  for (const x of Float64Array.from(counts.keys()).sort()) for (let times = counts.get(x); times > 0; times--) along.push(x);
  return [along, ...lines.map((line) => columnOf(line, along))];
}

function columnOf({ x, y }, along) {
  const column = new Array(along.length);
  let place = 0;
  x.forEach((here, index) => {
    while (along[place] < here) place += 1;
    column[place] = y[index];
    place += 1;
  });
  return column;
}

/** The whole range of x; points keep away from its ends. */
function wholeOf({ x, lines }, low, high) {
  if (low === null || low === undefined) return [x.log ? 1 : 0, x.log ? 10 : 1];
  if (!lines.some((line) => line.points)) return [low, high];
  return [low - (high - low) * 0.04, high + (high - low) * 0.04];
}

function heightOf(axis, low, high) {
  if (axis.log) return window.uPlot.rangeLog(low ?? 1, high ?? 10, 10, false);
  return window.uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true);
}

function axisOf({ title, log, whole }, theme, isUpright) {
  const space = isUpright ? 2.4 * TICK_HEIGHT : TICK_WIDTH;
  const width = (_, values) => 14 + 6.5 * Math.max(2, ...(values ?? []).map((text) => text.length));
  return {
    stroke: theme.dim, font: theme.font, label: title ?? "", labelFont: theme.font, labelSize: 16, labelGap: 0, space, gap: 4,
    grid: { show: isUpright, stroke: theme.line, width: 1 }, ticks: { stroke: theme.strong, width: 1, size: 4 },
    size: isUpright ? width : 24, values: (_, splits) => splits.map((value) => (value === null ? "" : tickOf(value))),
    ...(whole && !log ? { incrs: WHOLE } : {}),
  };
}

function tickOf(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return String(Number(value.toPrecision(4)).toExponential()).replace("e+", "e");
  return value.toLocaleString("en", { maximumFractionDigits: 8 });
}

function drawEvents(plot, events, theme) {
  const { ctx, bbox } = plot;
  const ratio = window.devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  ctx.strokeStyle = theme.strong;
  ctx.fillStyle = theme.dim;
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  ctx.font = theme.font.replace("11px", `${10 * ratio}px`);
  for (const { x, text } of events) {
    const left = plot.valToPos(x, "x", true);
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.fillText(text, left + 3 * ratio, bbox.top);
  }
  ctx.stroke();
  ctx.restore();
}

function drawSymbols(plot, line, theme) {
  if (!line.symbol && !line.points && line.x.length > 1) return;
  const { ctx, bbox } = plot;
  const ratio = window.devicePixelRatio;
  const colour = line.symbol === "cross" ? theme.bad : theme.colours[line.colour];
  const step = line.points || line.symbol === "cross" ? 1 : Math.ceil(line.x.length / Math.min(MARKED, Math.ceil(MARKED_OF_ALL / (plot.series.length - 1))));
  const size = ratio * (line.symbol === "diamond" ? 4.5 : line.points && line.x.length > 200 ? 2.5 : 3.5);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - size, bbox.top - size, bbox.width + 2 * size, bbox.height + 2 * size);
  ctx.clip();
  ctx.setLineDash([]);
  ctx.lineWidth = (line.symbol === "cross" ? 2.5 : line.points ? 0.75 : 1.5) * ratio;
  ctx.strokeStyle = line.points ? theme.dim : colour;
  line.x.forEach((x, index) => {
    const y = line.symbol === "cross" ? bbox.top + 2 * size : (line.y[index] ?? null) === null ? NaN : plot.valToPos(line.y[index], "y", true);
    if (index % step || !Number.isFinite(y)) return;
    ctx.beginPath();
    outline(ctx, line.symbol, plot.valToPos(x, "x", true), y, size);
    if (line.symbol !== "cross") {
      ctx.fillStyle = line.points ? colour : theme.surface;
      ctx.fill();
    }
    ctx.stroke();
  });
  ctx.restore();
}

function outline(ctx, symbol, x, y, size) {
  if (symbol === "cross") {
    for (const side of [-1, 1]) {
      ctx.moveTo(x - size, y - side * size);
      ctx.lineTo(x + size, y + side * size);
    }
  } else if (symbol === "diamond") {
    ctx.moveTo(x, y - size);
    for (const [right, down] of [[1, 0], [0, 1], [-1, 0]]) ctx.lineTo(x + right * size, y + down * size);
    ctx.closePath();
  } else {
    ctx.arc(x, y, size, 0, 2 * Math.PI);
  }
}

/** The nearest point of a line: along x, or in the plane where there is no line. */
function nearest(plot, line) {
  const { left, top } = plot.cursor;
  let best = null;
  const [from, to] = line.points ? [0, line.x.length] : around(plot, line, left);
  for (let index = from; index < to; index++) {
    const x = line.x[index];
    const y = line.symbol === "cross" ? null : (line.y[index] ?? null);
    if (y === null && line.symbol !== "cross") continue;
    const [right, down] = [plot.valToPos(x, "x"), y === null ? 12 : plot.valToPos(y, "y")];
    const [across, distance] = [Math.abs(right - left), Math.hypot(right - left, down - top)];
    const order = line.points ? distance : across;
    if (!best || order < best.order) best = { order, across, distance, right, down, line, index };
  }
  return best;
}

/** The points of a line to look at for the nearest one: those beside the pointer, as far as the next ones with a value. */
function around(plot, line, left) {
  const at = plot.posToVal(left, "x");
  let [low, high] = [0, line.x.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.x[middle] < at) low = middle + 1;
    else high = middle;
  }
  const isEmpty = (index) => line.symbol !== "cross" && (line.y[index] ?? null) === null;
  let [from, to] = [low - 1, low];
  while (from > 0 && isEmpty(from)) from -= 1;
  while (to < line.x.length && isEmpty(to)) to += 1;
  return [Math.max(0, from), Math.min(line.x.length, to + 1)];
}

/** Shows the points at the pointer, and returns them. */
function showHover(plot, hover, { lines, together }) {
  const { left, top } = plot.cursor;
  let hits = [];
  if (left >= 0) hits = lines.filter((line) => line.textOf).map((line) => nearest(plot, line)).filter((hit) => hit !== null);
  if (together) hits = hits.filter(({ line, across }) => line.symbol !== "cross" || across <= NEAR);
  else if (isFollowing) hits = hits.filter(({ line }) => pointed && line.group === pointed && line.symbol !== "cross");
  else hits = hits.filter(({ distance }) => distance <= NEAR).sort((a, b) => a.distance - b.distance).slice(0, 1);
  hover.hidden = hits.length === 0;
  const dots = hits.filter(({ line }) => line.symbol !== "cross").map(({ line, right, down }) => placed(el("i", { class: `series-${line.colour + 1}` }), right, down));
  const words = el("div", {}, ...hits.map(({ line, index }) => el("p", { class: `series-${line.colour + 1}` }, line.textOf(index))));
  hover.replaceChildren(...dots, words);
  if (hits.length === 0) return hits;
  const isRight = left > plot.over.clientWidth / 2;
  placed(words, isRight ? left - words.offsetWidth - 12 : left + 12, Math.max(0, Math.min(top, plot.over.clientHeight - words.offsetHeight)));
  return hits;
}

function placed(element, left, top) {
  element.style.left = `${left}px`;
  element.style.top = `${top}px`;
  return element;
}
