// Syntax colours for YAML (and JSON, which is YAML), line by line and without parsing. The text never changes: the words
// of a line, joined, are the line.

const KEY = /^(\s*(?:-\s+)*)("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#'"[\]{},&*!|>%@`-][^#:]*?|-[^\s#:][^#:]*?)(?=\s*:(?:\s|$))/u;
const WORDS = /(\s+)|(#.*)|("(?:[^"\\]|\\.)*"?|'(?:[^']|'')*'?)|([[\]{},]|:(?=\s|$)|-(?=\s))|([^\s,[\]{}"'][^\s,[\]{}]*)/gu;
const CONSTANT = /^(?:[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|0x[\da-fA-F]+|true|false|null|yes|no|on|off|~)$/iu;
const BLOCK = /(?:^|[:\s-])[|>][-+\d]*\s*(?:#.*)?$/u;

/** The lines of a text as lists of [words, kind]; kind is "", key, string, constant, mark or comment. */
export function colour(text) {
  let block = -1; // the indentation of the key that has a block of text below it
  return text.split("\n").map((line) => {
    const indent = line.length - line.trimStart().length;
    if (block >= 0 && (line.trim() === "" || indent > block)) return [[line, "string"]];
    block = BLOCK.test(line) && !line.trimStart().startsWith("#") ? indent : -1;
    return words(line);
  });
}

function words(line) {
  const coloured = [];
  let rest = line;
  const key = KEY.exec(line);
  if (key && !key[0].trimStart().startsWith("#")) {
    if (key[1]) coloured.push([key[1], "mark"]);
    coloured.push([key[2], "key"]);
    rest = line.slice(key[0].length);
  }
  for (const [word, space, comment, quoted, mark] of rest.matchAll(WORDS)) {
    if (space) coloured.push([word, ""]);
    else if (comment && startsComment(coloured)) coloured.push([word, "comment"]);
    else if (quoted) coloured.push([word, "string"]);
    else if (mark) coloured.push([word, "mark"]);
    else coloured.push([word, CONSTANT.test(word) ? "constant" : ""]);
  }
  return coloured;
}

function startsComment(before) {
  return before.length === 0 || /\s$/u.test(before.at(-1)[0]);
}

/** Fills an element with a line's words; `marks` are [start, end, class] in UTF-16 units. */
export function paint(element, words, marks = []) {
  const parts = [];
  let at = 0;
  for (const [word, kind] of words) {
    const cuts = [at, at + word.length];
    for (const [start, end] of marks) for (const cut of [start, end]) if (cut > at && cut < at + word.length) cuts.push(cut);
    cuts.sort((a, b) => a - b);
    for (let one = 0; one + 1 < cuts.length; one += 1) {
      const [from, to] = [cuts[one], cuts[one + 1]];
      const marked = marks.find(([start, end]) => start <= from && to <= end);
      parts.push(part(word.slice(from - at, to - at), [kind && `y-${kind}`, marked?.[2]].filter(Boolean).join(" ")));
    }
    at += word.length;
  }
  element.replaceChildren(...parts);
}

function part(text, name) {
  if (!name) return document.createTextNode(text);
  const span = document.createElement("span");
  span.className = name;
  span.textContent = text;
  return span;
}
