// Charts that the server draws: the value under the pointer, or at the arrow keys.
import { formatted } from "./curves.js";

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const at = new WeakMap();

document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.("svg")?.closest(".chart");
  if (!chart) return;
  const box = chart.querySelector("svg").getBoundingClientRect();
  const target = ((event.clientX - box.left) / box.width) * Number(chart.dataset.whole);
  show(chart, nearest(offsetsOf(chart), target));
});
document.addEventListener("pointerout", (event) => {
  const chart = event.target.closest?.(".chart");
  if (chart && !chart.contains(event.relatedTarget)) hide(chart);
});
document.addEventListener("focusout", (event) => {
  if (event.target.matches?.(".chart")) hide(event.target);
});
document.addEventListener("keydown", (event) => {
  const chart = event.target;
  if (!chart.matches?.(".chart") || event.ctrlKey || event.altKey || event.metaKey) return;
  const last = offsetsOf(chart).length - 1;
  const now = at.get(chart) ?? last + 1;
  const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  show(chart, Math.min(Math.max(next, 0), last));
});

function offsetsOf(chart) {
  return chart.dataset.offsets.split(",").map(Number);
}

function nearest(offsets, target) {
  let best = 0;
  for (let index = 1; index < offsets.length; index += 1) {
    if (Math.abs(offsets[index] - target) < Math.abs(offsets[best] - target)) best = index;
  }
  return best;
}

function show(chart, index) {
  const offset = offsetsOf(chart)[index];
  const values = [...chart.querySelectorAll("[data-values]")].map((curve) => {
    const value = curve.dataset.values.split(",")[index];
    return value === "" ? "not known" : withUnit(Number(value), chart.dataset.chart);
  });
  const label = chart.querySelector(".chart-at");
  label.textContent = `${values.join(", ")} · ${place(chart, offset)}`;
  label.hidden = false;
  setNowHidden(chart, true);
  const x = String((offset / Number(chart.dataset.whole)) * chart.querySelector("svg").viewBox.baseVal.width);
  const cursor = chart.querySelector(".cursor");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  at.set(chart, index);
}

function hide(chart) {
  chart.querySelector(".chart-at").hidden = true;
  setNowHidden(chart, false);
  for (const name of ["x1", "x2"]) chart.querySelector(".cursor").setAttribute(name, "-9");
  at.delete(chart);
}

function setNowHidden(chart, isHidden) {
  const now = chart.querySelector(".chart-now");
  if (now) now.hidden = isHidden;
}

/** The step or the time of a point. */
function place(chart, offset) {
  if (chart.dataset.chart === "steps") return `step ${(Number(chart.dataset.first) + offset).toLocaleString("en")}`;
  const time = Number(chart.dataset.whole) > 86400 ? DAY : TIME;
  return time.format(new Date(Date.parse(chart.dataset.start) + offset * 1000));
}

function withUnit(value, unit) {
  if (unit === "steps") return formatted(value);
  if (unit === "cores") return value.toFixed(2);
  if (unit === "share") return `${Math.round(value * 100)}%`;
  let size = value;
  for (const name of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return `${name === "B" || size >= 100 ? size.toFixed(0) : size.toFixed(1)} ${name}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}
