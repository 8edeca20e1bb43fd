// Times in the reader's zone, and running durations.

const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "narrow" });
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const SHORT = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const WITH_SECONDS = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

export function followTimes() {
  localize(document);
  setInterval(() => {
    if (!document.hidden) localize(document);
  }, 1000);
}

/** Writes every time and every running duration below an element. */
export function localize(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    const text = formatted(date, element.dataset.form);
    if (element.textContent !== text) element.textContent = text;
    const exact = EXACT.format(date);
    if (element.title !== exact) element.title = exact;
  }
  for (const element of root.querySelectorAll("[data-since]")) {
    const text = duration((Date.now() - Date.parse(element.dataset.since)) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}

function formatted(date, form) {
  if (form === "time") return TIME.format(date);
  if (form === "exact") return WITH_SECONDS.format(date);
  if (form === "date-time") return SHORT.format(date);
  const seconds = (Date.now() - date.getTime()) / 1000;
  if (seconds > 7 * 86400) return SHORT.format(date);
  if (seconds < 5) return "just now";
  const [unit, size] = UNITS.find(([, length]) => seconds >= length) ?? UNITS.at(-1);
  return RELATIVE.format(-Math.floor(seconds / size), unit);
}

/** `47s`, `3m 12s`, `5h 02m`, `3d 4h`: as the server formats them. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}
