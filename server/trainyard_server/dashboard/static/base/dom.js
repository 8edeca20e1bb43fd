// Elements from JavaScript. Text is added as text, never as HTML.

/** The element with that id. */
export const byId = (id) => document.getElementById(id);

/** `el("a", { href, class: "x", "aria-label": "y" }, "text", child)`; what is null or false is left out. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same in SVG. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An icon of icons.svg by its name. */
export function icon(name) {
  const file = document.querySelector("svg use").getAttribute("href").split("#")[0];
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `${file}#${name}` }));
}

/** `512 B`, `1.5 MiB`. */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}
