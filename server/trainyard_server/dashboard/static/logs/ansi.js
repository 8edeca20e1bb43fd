// Terminal escape sequences in log lines. Colours become classes; sequences that move the cursor or set a title are
// removed; other control characters are shown as pictures.

// CSI with its parameters and its final letter, OSC up to its terminator, and two-character sequences.
const SEQUENCE = /(?:\u001b\[|\u009b)([0-9;:]*)[ -/]*([@-~])?|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[@-Z\\-_a-z]?/g;
const CONTROL = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u2028\u2029]/g;

/** `[{text, classes}]`, the text without escape sequences; a line without any is one part. */
export function parts(text) {
  if (!/[\u001b\u009b]/.test(text)) return [{ text: visible(text), classes: "" }];
  const segments = [];
  const style = { colour: "", bold: false, dim: false, underline: false };
  let at = 0;
  const add = (end) => {
    if (end > at) segments.push({ text: visible(text.slice(at, end)), classes: classes(style) });
  };
  for (const match of text.matchAll(SEQUENCE)) {
    add(match.index);
    at = match.index + match[0].length;
    if (match[2] === "m") apply(style, match[1]);
  }
  add(text.length);
  return segments;
}

function apply(style, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let i = 0; i < numbers.length; i += 1) {
    const code = numbers[i];
    if (code === 0) Object.assign(style, { colour: "", bold: false, dim: false, underline: false });
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 4) style.underline = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 24) style.underline = false;
    else if (code === 39) style.colour = "";
    else if (code >= 30 && code <= 37) style.colour = String(code - 30);
    else if (code >= 90 && code <= 97) style.colour = String(code - 90);
    else if (code === 38 || code === 48) i += numbers[i + 1] === 5 ? 2 : 4; // 256 or 16 million colours: not shown
  }
}

function classes({ colour, bold, dim, underline }) {
  return [colour && `a-${colour}`, bold && "a-bold", dim && "a-dim", underline && "a-line"].filter(Boolean).join(" ");
}

/** Control characters as their pictures: a carriage return is ␍. Tabs stay. */
function visible(text) {
  return text.replace(CONTROL, (character) => {
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "␡";
    return code === 0x85 || code > 0x2000 ? "␤" : "\ufffd";
  });
}
