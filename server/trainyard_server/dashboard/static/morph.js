// Makes what an element holds equal to other HTML, changing as little as possible: what the reader has focused,
// selected, opened or typed stays. Elements are matched by their id or data-key, else by their place and kind.

/** @param {Element} element @param {string} html from our own server, rendered with everything escaped */
export function morph(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  morphChildren(element, template.content);
}

function morphChildren(here, there) {
  const keyed = new Map();
  for (const child of here.children) {
    const key = keyOf(child);
    if (key) keyed.set(key, child);
  }
  let next = here.firstChild;
  for (const wanted of [...there.childNodes]) {
    const key = wanted.nodeType === Node.ELEMENT_NODE ? keyOf(wanted) : "";
    let match = null;
    if (key) match = keyed.get(key) ?? null;
    else if (next && alike(next, wanted)) match = next;
    if (!match) {
      here.insertBefore(wanted, next);
      continue;
    }
    keyed.delete(key);
    if (match === next) next = next.nextSibling;
    else here.insertBefore(match, next);
    morphNode(match, wanted);
  }
  while (next) {
    const rest = next.nextSibling;
    next.remove();
    next = rest;
  }
}

function morphNode(here, there) {
  if (here.nodeType !== Node.ELEMENT_NODE) {
    if (here.nodeValue !== there.nodeValue) here.nodeValue = there.nodeValue;
    return;
  }
  if (here.isEqualNode(there)) return;
  if (here.hasAttribute("data-keep")) return;
  for (const { name } of [...here.attributes]) {
    if (!there.hasAttribute(name) && !isReaders(here, name)) here.removeAttribute(name);
  }
  for (const { name, value } of there.attributes) {
    if (here.getAttribute(name) !== value && !isReaders(here, name)) here.setAttribute(name, value);
  }
  if (here.tagName === "PROGRESS") {
    here.value = there.value;
    return;
  }
  if (here.tagName === "TEXTAREA") return;
  morphChildren(here, there);
}

// What the reader decides, and no update takes back.
function isReaders(element, name) {
  return (element.tagName === "DETAILS" && name === "open") || (element.tagName === "INPUT" && (name === "checked" || name === "value"));
}

function keyOf(element) {
  return element.id || element.getAttribute("data-key") || "";
}

function alike(here, there) {
  if (here.nodeType !== there.nodeType) return false;
  if (here.nodeType !== Node.ELEMENT_NODE) return true;
  return here.tagName === there.tagName && !keyOf(here);
}
