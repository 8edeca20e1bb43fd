// Config that the form writes: the text that its YAML tab shows.

const PLAIN = /^[A-Za-z][\w.:/+-]*$/u;

/** @param {{uri: string, module: string}} program @param {object} machine of the page's list @param {number} replicas */
export function formConfig(program, machine, replicas) {
  const accelerators = machine.accelerator_count
    ? ["acceleratorConfig:", `  type: ${scalar(machine.accelerator_type)}`, `  count: "${machine.accelerator_count}"`]
    : [];
  const role = (name) => [
    `${name}Type: ${scalar(machine.machine_type)}`,
    ...(accelerators.length ? [`${name}Config:`, ...accelerators.map((line) => `  ${line}`)] : []),
  ];
  const lines = [
    "scaleTier: CUSTOM",
    ...role("master"),
    ...(replicas > 1 ? [...role("worker"), `workerCount: ${replicas - 1}`] : []),
    "packageUris:",
    `  - ${scalar(program.uri)}`,
    `pythonModule: ${scalar(program.module)}`,
  ];
  return ["trainingInput:", ...lines.map((line) => `  ${line}`), ""].join("\n");
}

function scalar(text) {
  return PLAIN.test(text) ? text : JSON.stringify(text);
}
