// Makes the children of an element equal to other HTML with few changes: focus, selection, open details and typed text
// stay. Elements are matched by their id or data-key, else by position and tag.

/** @param {Element} element @param {string} html from our own server, rendered with everything escaped */
export function morph(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  morphChildren(element, template.content);
}

function morphChildren(current, target) {
  const keyed = new Map();
  for (const element of current.children) {
    const key = keyOf(element);
    if (key) keyed.set(key, element);
  }
  let next = current.firstChild;
  for (const child of [...target.childNodes]) {
    const key = child.nodeType === Node.ELEMENT_NODE ? keyOf(child) : "";
    let match = null;
    if (key) match = keyed.get(key) ?? null;
    else if (next && alike(next, child)) match = next;
    if (!match) {
      current.insertBefore(child, next);
      continue;
    }
    keyed.delete(key);
    if (match === next) next = next.nextSibling;
    else move(current, match, next);
    morphNode(match, child);
  }
  while (next) {
    const rest = next.nextSibling;
    next.remove();
    next = rest;
  }
}

// moveBefore keeps the focus, where a browser has it.
function move(parent, child, next) {
  if (parent.moveBefore) parent.moveBefore(child, next);
  else parent.insertBefore(child, next);
}

function morphNode(current, target) {
  if (current.nodeType !== Node.ELEMENT_NODE) {
    if (current.nodeValue !== target.nodeValue) current.nodeValue = target.nodeValue;
    return;
  }
  if (current.isEqualNode(target)) return;
  if (current.hasAttribute("data-keep")) return;
  for (const { name } of [...current.attributes]) {
    if (!target.hasAttribute(name) && !isSetByReader(current, name)) current.removeAttribute(name);
  }
  for (const { name, value } of target.attributes) {
    if (current.getAttribute(name) !== value && !isSetByReader(current, name)) current.setAttribute(name, value);
  }
  if (current.tagName === "PROGRESS") {
    current.value = target.value;
    return;
  }
  if (current.tagName === "TEXTAREA") return;
  morphChildren(current, target);
}

// Attributes that the reader sets, and no update changes.
function isSetByReader(element, name) {
  return (element.tagName === "DETAILS" && name === "open") || (element.tagName === "INPUT" && (name === "checked" || name === "value"));
}

function keyOf(element) {
  return element.id || element.getAttribute("data-key") || "";
}

function alike(current, target) {
  if (current.nodeType !== target.nodeType) return false;
  if (current.nodeType !== Node.ELEMENT_NODE) return true;
  return current.tagName === target.tagName && !keyOf(current);
}
