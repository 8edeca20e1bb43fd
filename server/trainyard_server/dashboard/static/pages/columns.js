// Columns of the run table: drag a heading to move its column, or its edge to change the width. A cookie keeps both, so
// that the server draws the next page with them. Columns in the address have their own order.
import { note } from "../base/banner.js";

const COOKIE = "trainyard_columns";
const MOST_BYTES = 3900; // a browser drops cookies above 4096
const NARROWEST = 40;
const WIDEST = 1600;
const PICK = 24; // the column of boxes
const USUAL = 104; // a column without a width of its own, as on the server
const STEP = 16;
const MOVED = 5; // pixels that make a drag of a click
const FOCUSED = "trainyard_column"; // the heading that has the focus after the page was loaded again

export function followColumns() {
  const place = document.getElementById("live-jobs");
  const widths = kept().widths;
  const headings = () => [...place.querySelectorAll("th[data-field]")];
  const fields = () => headings().map((heading) => heading.dataset.field);

  const draw = () => {
    const table = document.getElementById("jobs-table");
    if (!table) return;
    const cols = [...table.querySelectorAll("col")];
    const all = headings();
    const isSized = all.some((heading) => widths.has(heading.dataset.field));
    table.classList.toggle("sized", isSized);
    if (!isSized) {
      for (const col of cols) col.removeAttribute("width");
      return;
    }
    const usual = (col, width) => col.getAttribute("width") ?? width;
    cols[0].setAttribute("width", usual(cols[0], PICK));
    all.forEach((heading, at) => {
      const col = cols[at + 1];
      col.setAttribute("width", widths.get(heading.dataset.field) ?? usual(col, USUAL));
    });
  };
  const measure = () => {
    for (const heading of headings()) widths.set(heading.dataset.field, Math.ceil(heading.getBoundingClientRect().width));
  };
  const resize = (field, width) => {
    widths.set(field, Math.round(Math.min(Math.max(width, NARROWEST), WIDEST)));
    draw();
    document.dispatchEvent(new CustomEvent("trainyard:widths"));
  };
  const move = (field, to) => {
    const order = fields().filter((other) => other !== field);
    order.splice(to, 0, field);
    if (order.join() === fields().join()) return;
    const address = new URLSearchParams(location.search);
    if (address.has("column")) {
      address.delete("column");
      for (const column of order) address.append("column", column);
      location.replace(`?${address}`);
    } else if (keep(order, widths)) location.reload();
  };
  let hasMoved = false; // the click at the end of a drag is none on the heading's link
  place.addEventListener("click", (event) => hasMoved && event.preventDefault());
  const saveWidths = () => keep(kept().order, widths);

  place.addEventListener("pointerdown", (event) => {
    const heading = event.target.closest("th[data-field]");
    hasMoved = false;
    if (!heading || event.button !== 0) return;
    if (event.target.closest("[data-edge]")) followEdge(event, heading);
    else followHeading(event, heading);
  });

  function followEdge(event, heading) {
    event.preventDefault();
    const { field } = heading.dataset;
    let before = 0;
    drag(
      event,
      (now) => {
        if (!before) measure();
        before ||= widths.get(field);
        resize(field, before + now.clientX - event.clientX);
      },
      () => before && saveWidths(),
    );
  }

  function followHeading(event, heading) {
    const { field } = heading.dataset;
    let to = -1;
    const mark = (target, side) => {
      for (const other of headings()) other.classList.remove("drop-before", "drop-after");
      target?.classList.add(`drop-${side}`);
    };
    drag(
      event,
      (now) => {
        if (to < 0 && Math.abs(now.clientX - event.clientX) < MOVED) return;
        heading.classList.add("dragged");
        const others = headings().filter((other) => other !== heading);
        to = others.filter((other) => middle(other) < now.clientX).length;
        if (to < others.length) mark(others[to], "before");
        else mark(others.at(-1), "after");
      },
      (isCancelled) => {
        heading.classList.remove("dragged");
        mark(null);
        hasMoved = to >= 0;
        if (hasMoved && !isCancelled) move(field, to);
      },
    );
  }

  place.addEventListener("keydown", (event) => {
    const heading = event.target.closest("th[data-field]");
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!heading || !by || !event.altKey) return;
    event.preventDefault();
    const { field } = heading.dataset;
    if (event.shiftKey) {
      measure();
      resize(field, widths.get(field) + by * STEP);
      saveWidths();
      return;
    }
    sessionStorage.setItem(FOCUSED, field);
    move(field, Math.max(fields().indexOf(field) + by, 0));
  });
  document.addEventListener("trainyard:parts", draw);
  document.getElementById("default-columns")?.addEventListener("click", () => write(""));
  focusAgain(headings);
  followDialog();
}

function middle(heading) {
  const box = heading.getBoundingClientRect();
  return box.left + box.width / 2;
}

/** Follows the pointer until it is released; Escape cancels. */
function drag(start, onmove, onend) {
  const ends = new AbortController();
  const { signal } = ends;
  const end = (isCancelled) => {
    ends.abort();
    onend(isCancelled);
  };
  addEventListener("pointermove", onmove, { signal });
  addEventListener("pointerup", () => end(false), { signal });
  addEventListener("pointercancel", () => end(true), { signal });
  addEventListener("keydown", (event) => event.key === "Escape" && end(true), { signal });
}

function focusAgain(headings) {
  const field = sessionStorage.getItem(FOCUSED);
  sessionStorage.removeItem(FOCUSED);
  const heading = field && headings().find((other) => other.dataset.field === field);
  if (heading) (heading.querySelector("a") ?? heading).focus();
}

/** The order and the widths in the cookie. */
function kept() {
  const cookie = document.cookie.split("; ").find((item) => item.startsWith(`${COOKIE}=`)) ?? "";
  const items = new URLSearchParams(cookie.slice(COOKIE.length + 1));
  const widths = items.getAll("width").map((item) => [item.slice(0, item.lastIndexOf(":")), Number(item.slice(item.lastIndexOf(":") + 1))]);
  return { order: items.getAll("column"), widths: new Map(widths.filter(([field, width]) => field && width >= NARROWEST && width <= WIDEST)) };
}

function keep(order, widths) {
  const items = [...order.map((field) => ["column", field]), ...[...widths].map(([field, width]) => ["width", `${field}:${width}`])];
  const text = String(new URLSearchParams(items));
  if (text.length <= MOST_BYTES) write(text);
  else note("These are too many columns to remember: choose fewer, or save them as a view.", "bad");
  return text.length <= MOST_BYTES;
}

function write(text) {
  document.cookie = `${COOKIE}=${text}; Path=/; SameSite=Lax; Max-Age=${text ? 31536000 : 0}`;
}

function followDialog() {
  const dialog = document.getElementById("columns");
  const chosen = document.getElementById("chosen-columns");
  document.getElementById("choose-columns").addEventListener("click", () => dialog.showModal());
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  chosen.addEventListener("click", (event) => {
    const button = event.target.closest("[data-earlier]");
    const item = button?.closest("li");
    if (!item?.previousElementSibling) return;
    item.previousElementSibling.before(item);
    button.focus();
  });
  dialog.querySelector("form").addEventListener("submit", () => {
    for (const field of dialog.querySelectorAll('input[name="column"]:not([type="checkbox"])')) field.disabled = !field.value.trim();
  });
}
