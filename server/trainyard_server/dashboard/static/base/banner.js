// Banner above the page for lasting conditions, and short notes at its foot.

const lines = new Map();

/** Sets the banner's line of that name; text "" removes it. `kind` is "" or bad; `action` is {label, run}. */
export function setBanner(name, text, kind = "", action = null) {
  if (text) lines.set(name, { text, kind, action });
  else lines.delete(name);
  const banner = document.getElementById("banner");
  const shown = [...lines.values()].at(-1);
  banner.hidden = !shown;
  banner.className = shown?.kind ?? "";
  banner.replaceChildren();
  if (!shown) return;
  banner.append(shown.text);
  if (shown.action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = shown.action.label;
    button.addEventListener("click", shown.action.run);
    banner.append(button);
  }
}

/** Shows a note for some seconds; a bad one stays longer. */
export function note(text, kind = "") {
  const toast = document.createElement("div");
  toast.className = `toast ${kind}`;
  toast.textContent = text;
  document.getElementById("notes").append(toast);
  setTimeout(() => toast.remove(), kind === "bad" ? 12_000 : 4_000);
}
