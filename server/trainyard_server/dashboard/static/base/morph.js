// Makes the children of an element equal to other HTML with few changes: focus, selection, open details and typed text
// stay. Elements are matched by their id or data-key, else by position and tag. All HTML is from our own server, rendered
// with everything escaped.

/** Morphs an element. A row of `html` with `data-same` is a placeholder: it stands for the row of `rows` with its
 * data-key, or else for the one that the element has. */
export function morph(element, html, rows = []) {
  const target = parsed(html);
  const changed = rowsOf(parsed(rows.join("")));
  for (const placeholder of target.querySelectorAll("tr[data-same]")) {
    const row = changed.get(placeholder.dataset.key);
    if (row) placeholder.replaceWith(row);
  }
  morphChildren(element, target);
}

/** Morphs those rows of an element that have the data-key of one of `rows`. */
export function morphRows(element, rows) {
  const current = rowsOf(element);
  for (const [key, row] of rowsOf(parsed(rows.join("")))) {
    if (current.has(key)) morphNode(current.get(key), row);
  }
}

function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

/** The rows with a data-key below a node; of two with the same the first. */
function rowsOf(node) {
  const rows = new Map();
  for (const row of node.querySelectorAll("tr[data-key]")) {
    if (!rows.has(row.dataset.key)) rows.set(row.dataset.key, row);
  }
  return rows;
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
  if (target.hasAttribute("data-same") || current.isEqualNode(target)) return;
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
  if (current.dataset.since && target.dataset.since) return; // times.js writes its text
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
