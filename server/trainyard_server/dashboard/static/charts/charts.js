// Charts with plotly, in the colours of the page. Updates keep the zoom. No other module calls plotly.

let loading = null;

/** The chart library, fetched when the first chart is drawn. */
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const restore = withoutStylesOfMaps();
    const script = document.createElement("script");
    script.src = new URL("vendor/plotly.min.js", import.meta.url).href;
    script.addEventListener("load", () => {
      restore();
      resolve(window.Plotly);
    });
    script.addEventListener("error", () => {
      restore();
      loading = null;
      script.remove();
      reject(new Error("The charts cannot be loaded."));
    });
    document.head.append(script);
  });
  return loading;
}

let last = Promise.resolve();

// Charts are drawn one after the other, and between two of them the browser handles events.
function inTurn(draw) {
  const mine = last.then(draw);
  last = mine.catch(() => {}).then(() => new Promise((resolve) => setTimeout(resolve)));
  return mine;
}

// The library's maps add an inline style sheet when they are loaded, which the Content-Security-Policy forbids. Maps are
// not used: their styles are dropped. The library's own rules use insertRule, which is allowed.
function withoutStylesOfMaps() {
  const create = document.createElement;
  document.createElement = function createElement(name, options) {
    const element = create.call(document, name, options);
    if (String(name).toLowerCase() === "style") Object.defineProperty(element, "textContent", { set() {}, get: () => "" });
    return element;
  };
  return () => {
    document.createElement = create;
  };
}

export const COLOURS = 8;
export const DASHES = ["solid", "7px,3px", "2px,2px", "9px,3px,2px,3px"];

/** Style of line number `index` of a chart: a colour from 0, and dashes for readers who do not see colours. */
export function styleOf(index) {
  return { colour: index % COLOURS, dash: DASHES[(index % 2) + 2 * (Math.floor(index / COLOURS) % 2)] };
}

/** Text escaped for the library, which reads some HTML. */
export function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function themed() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    colours: Array.from({ length: COLOURS }, (_, index) => value(`--series-${index + 1}`)),
    text: value("--text"),
    dim: value("--dim"),
    line: value("--line"),
    strong: value("--line-strong"),
    surface: value("--surface"),
    bad: value("--bad"),
    font: getComputedStyle(document.body).fontFamily,
  };
}

/**
 * Content of a chart.
 * @typedef {object} Line
 * @property {string} name shown on hover @property {number[]|Date[]} x @property {(number|null)[]} y null: a gap
 * @property {number} colour from 0 @property {string} [dash] @property {number} [width] @property {number} [opacity]
 * @property {string} [symbol] marks points, some of them where there are many @property {string} [hover] a template of
 * the library; none: no hover @property {any[]} [data] for the template @property {boolean} [fill]
 * down to zero @property {boolean} [stepped] level until the next point @property {boolean} [points] no line
 * @property {number[]} [shades] of the points, from 0 to 1 @property {boolean} [flag] a red cross at the upper edge; y is ignored
 *
 * @typedef {object} Axis
 * @property {string} [title] @property {"linear"|"log"|"date"|"category"} [type]
 * @property {string[]} [order] of categories @property {boolean} [whole] has whole numbers alone
 * @property {string} [suffix] @property {boolean} [zero] begins at zero @property {string} [key] with another key the
 * axis loses its zoom
 *
 * @typedef {object} Picture
 * @property {Line[]} lines @property {Axis} x @property {Axis} y
 * @property {{x: number, text: string}[]} [events] upright lines with a word @property {boolean} [together] one hover for all
 */
export class Chart {
  #element;
  #onZoom;
  #picture = null;
  #drawn = false;
  #drawing = null;
  #seen = false;
  #stale = false;
  #watch;
  #size;
  #retheme = () => this.#redraw();

  /** @param {HTMLElement} element of a height
   * @param {(range: [number, number]|null, isZoomed: boolean) => void} onZoom
   * along x, null for all of it; and whether it is zoomed at all */
  constructor(element, onZoom = () => {}) {
    this.#element = element;
    this.#onZoom = onZoom;
    this.#watch = new IntersectionObserver((entries) => {
      this.#seen = entries.at(-1).isIntersecting;
      if (this.#seen && this.#stale) this.#redraw();
    }, { rootMargin: "300px" });
    this.#watch.observe(element);
    this.#size = new ResizeObserver(() => {
      if (this.#drawn && element.clientWidth) window.Plotly.Plots.resize(element);
    });
    this.#size.observe(element);
    document.addEventListener("trainyard:theme", this.#retheme);
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Shows a picture, as soon as the chart is in sight. @param {Picture} picture */
  show(picture) {
    this.#picture = picture;
    this.#redraw();
  }

  /** Resets the zoom. */
  reset() {
    if (this.#drawn) window.Plotly.relayout(this.#element, { "xaxis.autorange": true, "yaxis.autorange": true });
  }

  close() {
    this.#watch.disconnect();
    this.#size.disconnect();
    document.removeEventListener("trainyard:theme", this.#retheme);
    if (this.#drawn) window.Plotly.purge(this.#element);
    this.#drawn = false;
    this.#picture = null;
  }

  // One at a time: pictures that are shown while the library draws are drawn after it.
  async #redraw() {
    this.#stale = true;
    if (!this.#seen || !this.#picture || this.#drawing) return;
    while (this.#stale && this.#picture) {
      this.#stale = false;
      this.#drawing = inTurn(() => this.#draw());
      try {
        await this.#drawing;
      } catch (error) {
        this.#element.textContent = error.message;
      }
    }
    this.#drawing = null;
  }

  async #draw() {
    const library = await plotly();
    const picture = this.#picture;
    this.#stale = false; // includes what was shown while it waited for its turn
    if (!picture) return;
    const theme = themed();
    const first = !this.#drawn;
    await library.react(this.#element, traces(picture, theme), layout(picture, theme, this.#element), {
      displayModeBar: false,
      showTips: false,
      doubleClick: "autosize",
      doubleClickDelay: 400,
    });
    this.#drawn = true;
    if (first) this.#element.on("plotly_relayout", (changes) => this.#zoomed(changes));
  }

  #zoomed(changes) {
    if (!Object.keys(changes).some((name) => /^[xy]axis\./.test(name))) return;
    const { xaxis, yaxis } = this.#element.layout;
    const alongX = xaxis.autorange === false || (xaxis.range && xaxis.autorange !== true);
    const alongY = yaxis.autorange === false || (yaxis.range && yaxis.autorange !== true);
    this.#onZoom(alongX ? [...xaxis.range] : null, Boolean(alongX || alongY));
  }

  #key(event) {
    if (!this.#drawn || event.ctrlKey || event.altKey || event.metaKey) return;
    const [low, high] = this.#element.layout.xaxis.range.map((end) => (typeof end === "number" ? end : Date.parse(end)));
    const span = high - low;
    const range = {
      "+": [low + span / 4, high - span / 4],
      "-": [low - span / 2, high + span / 2],
      ArrowLeft: [low - span / 4, high - span / 4],
      ArrowRight: [low + span / 4, high + span / 4],
    }[event.key];
    if (event.key === "0") this.reset();
    else if (range) window.Plotly.relayout(this.#element, { "xaxis.range": range });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function traces(picture, theme) {
  return picture.lines.map((line) => {
    if (line.flag) {
      return {
        type: "scatter", mode: "markers", name: plain(line.name), x: line.x, y: line.x.map(() => 0.97), yaxis: "y2",
        marker: { symbol: "x", size: 8, color: theme.bad }, text: line.data, hovertemplate: line.hover, cliponaxis: false,
      };
    }
    const colour = theme.colours[line.colour % COLOURS];
    if (line.points) {
      const shades = line.shades ? { color: line.shades, colorscale: [[0, theme.line], [1, colour]], cmin: 0, cmax: 1 } : { color: colour };
      return {
        type: "scatter", mode: "markers", name: plain(line.name), x: line.x, y: line.y, customdata: line.data, hovertemplate: line.hover,
        marker: { symbol: line.symbol ?? "circle", size: line.symbol === "diamond" ? 11 : line.x.length > 200 ? 5 : 8, line: { color: theme.dim, width: 0.75 }, ...shades }, opacity: line.opacity ?? 1,
      };
    }
    return {
      type: "scatter", mode: line.symbol || line.x.length === 1 ? "lines+markers" : "lines", name: plain(line.name), x: line.x, y: line.y,
      line: { color: colour, width: line.width ?? 1.75, dash: line.dash ?? "solid", simplify: true, shape: line.stepped ? "hv" : "linear" },
      marker: { symbol: line.symbol ?? "circle", size: 6, color: theme.surface, line: { color: colour, width: 1.5 }, maxdisplayed: 60 },
      opacity: line.opacity ?? 1, connectgaps: false, customdata: line.data, fill: line.fill ? "tozeroy" : "none",
      ...(line.hover ? { hovertemplate: line.hover } : { hoverinfo: "skip" }),
    };
  });
}

const TICK_WIDTH = 50;
const TICK_HEIGHT = 16;

// A logarithmic axis of some powers of ten has 1, 2 and 5 of each, or 1 alone where there is no room for three, and one of few
// whole numbers has each of them; the library chooses for fewer or more.
function ticksOf(picture, name, most) {
  const { type, whole } = picture[name];
  if (type !== "log" && !whole) return {};
  const values = picture.lines.flatMap((line) => line[name]).filter((value) => whole || value > 0);
  if (!values.length) return {};
  const [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  if (whole) return high - low < most ? { dtick: 1 } : {};
  const decades = Math.log10(high / low);
  if (decades <= 0.7 || decades >= 3.5) return {};
  return { dtick: 3 * decades > most ? 1 : "D2" };
}

function layout(picture, theme, { clientWidth, clientHeight }) {
  const axis = (given) => ({
    type: given.type ?? "linear", title: { text: plain(given.title ?? ""), font: { size: 11, color: theme.dim }, standoff: 6 },
    tickformat: given.whole ? ",d" : given.type === "log" ? "~g" : "", ticksuffix: given.suffix ?? "", separatethousands: true, exponentformat: "e", minexponent: 6,
    rangemode: given.zero ? "tozero" : "normal", uirevision: `${given.key ?? ""}/${given.type ?? ""}`,
    gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.strong, tickcolor: theme.strong, tickfont: { size: 11, color: theme.dim },
    automargin: true, zeroline: false, ...(given.type === "category" ? { categoryorder: "array", categoryarray: given.order, range: [-0.5, given.order.length - 0.5] } : {}),
  });
  const events = picture.events ?? [];
  return {
    uirevision: "stays", autosize: true, showlegend: false, dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    hovermode: picture.together ? "x unified" : "closest", hoverdistance: -1,
    hoverlabel: { bgcolor: theme.surface, bordercolor: theme.strong, font: { family: theme.font, size: 12, color: theme.text }, namelength: 40 },
    margin: { l: 48, r: 18, t: 12, b: 34 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: theme.font, size: 11, color: theme.dim },
    xaxis: { ...axis(picture.x), ...ticksOf(picture, "x", clientWidth / TICK_WIDTH), showgrid: false, ticks: "outside", showline: true },
    yaxis: { ...axis(picture.y), nticks: 6, ...ticksOf(picture, "y", clientHeight / TICK_HEIGHT) },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    shapes: events.map(({ x }) => ({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: theme.strong, width: 1, dash: "dot" } })),
    annotations: events.map(({ x, text }) => ({
      x, xref: "x", y: 1, yref: "paper", text: plain(text), showarrow: false, xanchor: "left", yanchor: "top", font: { size: 10, color: theme.dim },
    })),
  };
}
