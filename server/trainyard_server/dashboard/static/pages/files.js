// Images of a job by step: the slider below each group shows the image of its step.
for (const figure of document.querySelectorAll("figure.steps")) {
  const steps = JSON.parse(figure.dataset.steps);
  const paths = JSON.parse(figure.dataset.sources);
  const image = figure.querySelector("img");
  const link = figure.querySelector("a");
  const output = figure.querySelector("output");
  const name = figure.querySelector("strong").textContent;
  const page = link.getAttribute("href").split("?")[0];
  figure.querySelector("input").addEventListener("input", (event) => {
    const number = event.target.valueAsNumber;
    const path = encodeURIComponent(paths[number]);
    image.src = figure.dataset.download + path;
    image.alt = `${name} at step ${steps[number]}`;
    link.href = `${page}?path=${path}`;
    output.textContent = `step ${steps[number].toLocaleString("en")}`;
    event.target.setAttribute("aria-valuetext", `step ${steps[number]}`);
  });
}
