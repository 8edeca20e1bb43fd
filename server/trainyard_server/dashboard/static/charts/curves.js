// Curves from the API's metrics: groups that share a chart, joined runs, smoothing, the X axis.

const STRANGE = { NaN, Infinity, "-Infinity": -Infinity };

/** A value of the API: a number, or a string for NaN and infinities. */
export function numberOf(value) {
  return typeof value === "number" ? value : STRANGE[value];
}

const VARIANTS = ["held_out", "validation", "val", "valid", "eval", "test", "dev", "training", "train"];
const VARIANT = new RegExp(`^(${VARIANTS.join("|")})[_/.-](.+)$`, "i");

/** `held_out_loss` is the held_out one of loss. */
export function variantOf(name) {
  const match = VARIANT.exec(name);
  return match ? { base: match[2], variant: match[1].toLowerCase() } : { base: name, variant: "" };
}

/** The metrics that share a chart, in the order of their names. */
export function groupsOf(names) {
  const groups = new Map();
  for (const name of names) {
    const { base } = variantOf(name);
    if (!groups.has(base)) groups.set(base, []);
    groups.get(base).push(name);
  }
  return groups;
}

const SYMBOLS = { train: "", training: "", test: "diamond" };

/** Marker of the points of a metric that is not measured in training, else "". */
export function symbolOf(name) {
  const { variant } = variantOf(name);
  return variant ? (SYMBOLS[variant] ?? "circle") : "";
}

/** Exponential smoothing with debiasing, so that it does not start near zero; gaps stay and do not count. */
export function smoothed(values, weight) {
  if (!weight) return values;
  let last = 0;
  let debias = 1;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return value;
    last = last * weight + (1 - weight) * value;
    debias *= weight;
    return last / (1 - debias);
  });
}

/** Epoch of a step, interpolated between the first steps of epochs. @param {[number, number][]} starts */
export function epochAt(starts, step) {
  let high = starts.findIndex(([first]) => first > step);
  if (high === -1) high = starts.length - 1;
  high = Math.max(1, high);
  const [step0, epoch0] = starts[high - 1];
  const [step1, epoch1] = starts[high];
  return epoch0 + ((step - step0) / (step1 - step0)) * (epoch1 - epoch0);
}

/** First steps of epochs for an axis: rising, and two at least; else empty. */
export function epochStarts(view) {
  const starts = [];
  for (const [step, epoch] of view.epoch_starts) {
    if (!starts.length || (epoch > starts.at(-1)[1] && step > starts.at(-1)[0])) starts.push([step, epoch]);
  }
  // The length of a single epoch follows from the numbers of steps and epochs, if the program reported them.
  if (starts.length === 1 && view.steps && view.epochs) starts.push([starts[0][0] + view.steps / view.epochs, starts[0][1] + 1]);
  return starts.length > 1 ? starts : [];
}

/**
 * The runs of one metric of one replica as one curve: a later run continues it from its first step. Points of earlier
 * runs beyond that step are lost work, and returned apart. @returns {{main: Points, lost: (Points & {run: number})[], begins: [number, number][]}}
 */
export function joined(runs) {
  const sorted = [...runs].sort((a, b) => a.run - b.run).filter((one) => one.steps.length);
  const main = { steps: [], values: [], times: [], runs: [] };
  const lost = [];
  const begins = [];
  sorted.forEach((one, index) => {
    const end = Math.min(...sorted.slice(index + 1).map((later) => later.steps[0]), Infinity);
    const beyond = one.steps.findIndex((step) => step >= end);
    const count = beyond === -1 ? one.steps.length : beyond;
    for (let i = 0; i < count; i++) {
      main.steps.push(one.steps[i]);
      main.values.push(one.values[i]);
      main.times.push(one.times[i]);
      main.runs.push(one.run);
    }
    if (index > 0) begins.push([one.steps[0], one.run]);
    if (count < one.steps.length) {
      lost.push({ run: one.run, steps: one.steps.slice(count), values: one.values.slice(count), times: one.times.slice(count) });
    }
  });
  return { main, lost, begins };
}

/**
 * The curves of several replicas as one: at the steps of the one with the most points the mean, the lowest and the
 * highest value, between the points of each replica on a straight line.
 * @param {{main: object, lost: object[], begins: [number, number][]}[]} curves as of `joined`
 */
export function banded(curves) {
  const most = curves.reduce((a, b) => (b.main.steps.length > a.main.steps.length ? b : a));
  const others = curves.filter((curve) => curve !== most).map(({ main }) => valuesAt(main, most.main.steps));
  const all = most.main.values.map((value, at) => [value, ...others.map((values) => values[at])].filter((one) => one !== null));
  const over = (of) => all.map((values) => (values.every(Number.isFinite) ? of(values) : NaN));
  const main = { ...most.main, values: over((values) => values.reduce((a, b) => a + b, 0) / values.length) };
  return { main, lost: [], begins: most.begins, low: over((values) => Math.min(...values)), high: over((values) => Math.max(...values)) };
}

/** Values of a curve at rising steps, interpolated; null beyond its ends. */
export function valuesAt({ steps, values }, at) {
  let next = 0;
  return at.map((step) => {
    while (next < steps.length && steps[next] < step) next += 1;
    if (steps[next] === step) return values[next];
    if (next === 0 || next === steps.length) return null;
    const share = (step - steps[next - 1]) / (steps[next] - steps[next - 1]);
    return values[next - 1] + share * (values[next] - values[next - 1]);
  });
}

/** A series with the points between two steps replaced by those of a more detailed answer. */
export function withDetail(series, detail, from, to) {
  if (!detail) return series;
  const before = series.steps.findIndex((step) => step >= from);
  const low = before === -1 ? series.steps.length : before;
  const after = series.steps.findIndex((step) => step > to);
  const high = after === -1 ? series.steps.length : after;
  const put = (name) => [...series[name].slice(0, low), ...detail[name], ...series[name].slice(high)];
  return { ...series, steps: put("steps"), values: put("values"), times: put("times") };
}

/** Lowest and highest finite value: [Infinity, -Infinity] of none. */
export function extentOf(values) {
  const finite = values.filter(Number.isFinite);
  return [finite.reduce((a, b) => Math.min(a, b), Infinity), finite.reduce((a, b) => Math.max(a, b), -Infinity)];
}

/** A measured value in four significant digits, as the server formats it. */
export function formatted(value) {
  if (value === undefined || value === null) return "";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size < 1e6 && (Number.isInteger(value) || size >= 1000)) return Math.round(value).toLocaleString("en");
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(3).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

/** `worker 3`, `master`. */
export function shortTask(task) {
  const match = /^([a-z_]+)-replica-(\d+)$/.exec(task);
  if (!match) return task;
  return match[1] === "master" || match[1] === "chief" ? match[1] : `${match[1]} ${match[2]}`;
}

const UNITS = [
  [2 * 86400, 86400, "days"],
  [2 * 3600, 3600, "hours"],
  [5 * 60, 60, "minutes"],
  [0, 1, "seconds"],
];

/** Unit for ranges of so many seconds: [its seconds, its name]. */
export function unitOf(seconds) {
  const [, size, name] = UNITS.find(([least]) => seconds >= least);
  return [size, name];
}
