// Dialogs with buttons, and menus.

/** Opens a dialog; the value of the button that closes it. */
export function answerOf(id) {
  const dialog = document.getElementById(id);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

/** Closes open menus on Escape, and when the focus or a click goes elsewhere. */
export function followMenus() {
  const close = (unless) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(unless)) menu.open = false;
  };
  document.addEventListener("click", (event) => close(event.target));
  document.addEventListener("focusin", (event) => close(event.target));
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && document.querySelector("details.menu[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}
