// Labels of jobs: as many as there is room for, and a button that shows the rest.

const open = new Set(); // keys of the rows whose labels are all shown: updates of the page keep them

export function followLabels() {
  const table = document.getElementById("live-jobs");
  table.addEventListener("click", (event) => {
    const button = event.target.closest("[data-more]");
    if (!button) return;
    const { key } = button.closest("[data-row]").dataset;
    if (!open.delete(key)) open.add(key);
    fold(table);
  });
  document.addEventListener("trainyard:parts", () => fold(table));
  document.addEventListener("trainyard:widths", () => fold(table));
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width !== width) fold(table);
    width = contentRect.width;
  }).observe(table);
  document.fonts.ready.then(() => fold(table));
}

// All reads, then all writes: one layout of the page. A folded chip keeps its place, which the next reading needs.
function fold(table) {
  const lines = [...table.querySelectorAll(".labels")];
  for (const labels of lines) labels.classList.toggle("open", open.has(labels.closest("[data-row]").dataset.key));
  const folded = lines.map((labels) => {
    const { bottom } = labels.getBoundingClientRect();
    return new Set([...labels.children].filter((chip) => chip.getBoundingClientRect().top >= bottom - 1 || chip.scrollHeight > chip.clientHeight + 1));
  });
  lines.forEach((labels, at) => {
    const isOpen = labels.classList.contains("open");
    const button = labels.nextElementSibling;
    button.textContent = isOpen ? "−" : folded[at].size ? `+${folded[at].size}` : "";
    button.setAttribute("aria-expanded", String(isOpen));
    for (const chip of labels.children) chip.classList.toggle("folded", !isOpen && folded[at].has(chip));
  });
}
