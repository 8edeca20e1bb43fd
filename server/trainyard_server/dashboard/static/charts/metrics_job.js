// Curves of one job, as far as this page has loaded them.
import { call, jobPath } from "../base/api.js";
import { epochStarts, numberOf } from "./curves.js";

const POINTS = 24_000; // of all curves of a job together

export class MetricsJob {
  /** Series by `name\ttask`, each a list of its runs. */
  series = new Map();
  /** The newest answer. */
  view = null;
  starts = [];
  #most;
  #path;
  #task = "";
  #restart = true;
  #running = Promise.resolve();
  #next = null;

  /** @param {number} most points of all its curves together */
  constructor(project, job, most = POINTS) {
    this.#most = most;
    this.project = project;
    this.job = job;
    this.key = `${project}/${job}`;
    this.#path = jobPath(project, job);
  }

  /** Chooses one replica; "": all. @returns whether the choice changed */
  choose(task) {
    if (task === this.#task) return false;
    this.#task = task;
    this.#restart = true;
    return true;
  }

  /**
   * Loads new points. One request at a time: calls during one share the next.
   * @returns {Promise<boolean>} whether there were any
   */
  refresh() {
    this.#next ??= this.#running.then(() => {
      this.#next = null;
      const loading = this.#load();
      this.#running = loading.catch(() => {}); // whoever asked gets the error
      return loading;
    });
    return this.#next;
  }

  /** Shows an answer of the API that has all curves of the job. */
  receive(view) {
    this.#restart = false;
    this.series.clear();
    this.#add(view);
  }

  async #load() {
    const restart = this.#restart;
    this.#restart = false;
    const known = restart ? "" : this.view.version;
    const query = new URLSearchParams({ points: this.#points() });
    if (this.#task) query.set("task", this.#task);
    if (known) query.set("after", known);
    let view;
    try {
      view = await call("GET", `/trainyard/v1/${this.#path}/metrics?${query}`);
    } catch (error) {
      this.#restart ||= restart;
      throw error;
    }
    if (this.#restart) return this.#load(); // another replica was chosen meanwhile
    if (restart || known.split("-")[0] !== view.version.split("-")[0]) this.series.clear();
    this.#add(view);
    if (!view.complete) await this.#load();
    return known !== view.version;
  }

  #add(view) {
    const runs = new Map();
    for (const one of view.metrics) {
      const key = `${one.name}\t${one.task}`;
      if (!runs.has(key)) runs.set(key, []);
      runs.get(key).push(points(one));
    }
    for (const [key, series] of runs) this.series.set(key, series);
    this.view = view;
    this.starts = epochStarts(view);
  }

  /** All points of some metrics between two steps, by `name\ttask\trun`; null where none were thinned. */
  async detail(names, from, to) {
    const thin = [...this.series.values()].flat().some((one) => names.includes(one.name) && one.total > one.steps.length);
    if (!thin) return null;
    const query = new URLSearchParams({ points: 1000, from_step: Math.max(0, Math.floor(from)), to_step: Math.max(0, Math.ceil(to)) });
    if (this.#task) query.set("task", this.#task);
    for (const name of names) query.append("name", name);
    const view = await call("GET", `/trainyard/v1/${this.#path}/metrics?${query}`);
    return new Map(view.metrics.map((one) => [`${one.name}\t${one.task}\t${one.run}`, points(one)]));
  }

  #points() {
    return Math.min(1000, Math.max(100, Math.floor(this.#most / Math.max(1, this.series.size))));
  }
}

function points(one) {
  return { ...one, values: one.values.map(numberOf) };
}
