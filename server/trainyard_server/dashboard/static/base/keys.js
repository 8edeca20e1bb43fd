// Keyboard shortcuts. Ignored in text fields, and with Ctrl, Alt or Meta.

const actions = new Map();
let before = "";

/** Registers a key for this page: `onKey("f", () => ...)`; two keys one after the other are "g j". */
export function onKey(key, run) {
  actions.set(key, run);
}

export function followKeys() {
  onKey("/", () => document.querySelector("[data-search]")?.focus());
  onKey("?", () => document.getElementById("help").showModal());
  onKey("j", () => step(1));
  onKey("k", () => step(-1));
  onKey("x", pick);
  onKey("g j", () => location.assign("/"));
  onKey("g c", () => location.assign("/cluster"));
  onKey("g n", () => location.assign("/new"));
  for (const number of ["1", "2", "3", "4", "5"]) {
    onKey(number, () => document.querySelectorAll(".tabs a")[Number(number) - 1]?.click());
  }
  document.getElementById("help-button").addEventListener("click", () => document.getElementById("help").showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    const typing = event.target.matches("input:not([type=checkbox]):not([type=radio]):not([type=range]), textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || document.querySelector("dialog[open]")) return;
    const action = actions.get(`${before} ${event.key}`) ?? actions.get(event.key);
    before = event.key;
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function rows() {
  return [...document.querySelectorAll("[data-row]")];
}

function step(by) {
  const all = rows();
  const now = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[Math.min(Math.max(now + by, 0), all.length - 1)];
  const link = next?.querySelector("a.name") ?? next?.querySelector("a, button, summary");
  link?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function pick() {
  const row = rows().find((one) => one.contains(document.activeElement));
  row?.querySelector("[data-pick]")?.click();
}
