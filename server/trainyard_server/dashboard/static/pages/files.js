// Images of a job by step: the slider below each group shows the image of its step.
for (const figure of document.querySelectorAll("figure.steps")) {
  const steps = JSON.parse(figure.dataset.steps);
  const paths = JSON.parse(figure.dataset.sources);
  const image = figure.querySelector("img");
  const link = figure.querySelector("a");
  const output = figure.querySelector("output");
  const name = figure.querySelector("strong").textContent;
  const page = link.getAttribute("href").split("?")[0];
  let wanted = steps.length - 1;
  let shown = wanted;
  let loading = false;

  // One image at a time: of those that a quick drag passes, only some are loaded, and the last one always is.
  const load = () => {
    if (loading || shown === wanted) return;
    shown = wanted;
    loading = true;
    image.src = figure.dataset.download + encodeURIComponent(paths[shown]);
    image.alt = `${name} at step ${steps[shown]}`;
  };
  const next = () => {
    loading = false;
    load();
  };
  image.addEventListener("load", next);
  image.addEventListener("error", next);
  figure.querySelector("input").addEventListener("input", (event) => {
    wanted = event.target.valueAsNumber;
    link.href = `${page}?path=${encodeURIComponent(paths[wanted])}`;
    output.textContent = `step ${steps[wanted].toLocaleString("en")}`;
    event.target.setAttribute("aria-valuetext", `step ${steps[wanted]}`);
    load();
  });
}
