// Buttons with data-copy copy that text to the clipboard.
import { note } from "./banner.js";

export function followCopies() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    note((await copy(button.dataset.copy)) ? "Copied." : "Your browser does not let this page copy: select the text and copy it.");
  });
}

/** Returns whether it worked. Without HTTPS the clipboard API exists on localhost alone; execCommand works elsewhere. */
export async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Not allowed: execCommand may be.
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
