// Colour theme: light, dark, or that of the system. In a cookie, so that the server renders the page with it.

const NEXT = { "": "light", light: "dark", dark: "" };
const NAMES = { "": "as your system", light: "light", dark: "dark" };

/** Dispatches `trainyard:theme` at the document after a change, the system's own included. */
export function followTheme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const show = () => {
    const name = `Colour theme: ${NAMES[root.dataset.theme ?? ""]}`;
    button.setAttribute("aria-label", name);
    button.title = name;
  };
  button.addEventListener("click", () => {
    const theme = NEXT[root.dataset.theme ?? ""];
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    document.cookie = `trainyard_theme=${theme}; Path=/; SameSite=Lax; Max-Age=${theme ? 31536000 : 0}`;
    show();
    document.dispatchEvent(new CustomEvent("trainyard:theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("trainyard:theme")));
  show();
}
