// Buttons with data-copy put that text on the clipboard.
import { note } from "./banner.js";

export function followCopies() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    note((await copy(button.dataset.copy)) ? "Copied." : "Your browser does not let this page copy: select the text and copy it.");
  });
}

/** Whether it worked. Over plain http from another machine there is no clipboard API, but there is the old way. */
export async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Not allowed: the old way may be.
    }
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden";
  document.body.append(field);
  field.select();
  const worked = document.execCommand("copy");
  field.remove();
  return worked;
}
