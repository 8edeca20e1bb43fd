// Usage charts: the value under the pointer, or at the arrow keys.
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const WIDTH = 300;
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
  const date = new Date(Date.parse(chart.dataset.start) + offset * 1000);
  const values = [...chart.querySelectorAll(".curve")].map((curve) => {
    const value = curve.dataset.values.split(",")[index];
    return value === "" ? "not known" : formatted(Number(value), chart.dataset.chart);
  });
  const time = Number(chart.dataset.whole) > 86400 ? DAY : TIME;
  const label = chart.querySelector(".chart-at");
  label.textContent = `${values.join(", ")} · ${time.format(date)}`;
  label.hidden = false;
  chart.querySelector(".chart-now").hidden = true;
  const x = String((offset / Number(chart.dataset.whole)) * WIDTH);
  const cursor = chart.querySelector(".cursor");
  cursor.setAttribute("x1", x);
  cursor.setAttribute("x2", x);
  at.set(chart, index);
}

function hide(chart) {
  chart.querySelector(".chart-at").hidden = true;
  chart.querySelector(".chart-now").hidden = false;
  for (const name of ["x1", "x2"]) chart.querySelector(".cursor").setAttribute(name, "-9");
  at.delete(chart);
}

function formatted(value, unit) {
  if (unit === "cores") return value.toFixed(2);
  if (unit === "share") return `${Math.round(value * 100)}%`;
  let size = value;
  for (const name of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return `${name === "B" || size >= 100 ? size.toFixed(0) : size.toFixed(1)} ${name}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}
