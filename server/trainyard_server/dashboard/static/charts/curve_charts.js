// Charts of the curves of one job or of several, with the reader's choices, which are in the address too.
import { groupsOf } from "./curves.js";
import { Card } from "./metrics_card.js";

const CARDS = 24; // shown at once; a button shows more
const FEW = 8; // charts without a field that filters them

export class CurveCharts {
  /** The reader's choices. */
  #chosen = { smooth: 0, log: new Set(), x: "step", logX: false, q: "" };
  #cards = new Map();
  #most = CARDS;
  #form = document.getElementById("metrics-controls");
  #onChoice;
  #shown = null;

  /** @param {(event: Event|null) => void} onChoice a choice was made, by a control of the form or by a chart */
  constructor(onChoice) {
    this.#onChoice = onChoice;
    const query = new URLSearchParams(location.search);
    const smooth = Number(query.get("smooth"));
    const x = query.get("x");
    this.#chosen = {
      smooth: smooth > 0 && smooth < 1 ? Math.min(smooth, 0.99) : 0,
      log: new Set(query.getAll("log")),
      x: ["step", "time", "epoch"].includes(x) ? x : "step",
      logX: query.get("logx") === "1",
      q: query.get("q") ?? "",
    };
    const { smooth: slider, x: axis, logx, q } = this.#form.elements;
    [slider.value, axis.value, logx.checked, q.value] = [this.#chosen.smooth, this.#chosen.x, this.#chosen.logX, this.#chosen.q];
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    for (const kind of ["input", "change"]) this.#form.addEventListener(kind, (event) => this.#choose(event));
    document.getElementById("more-charts").addEventListener("click", () => {
      this.#most += CARDS;
      this.#again();
    });
  }

  /** Adds the choices to the query of an address. @param {URLSearchParams} query */
  write(query) {
    const { smooth, log, x, logX, q } = this.#chosen;
    if (smooth) query.set("smooth", smooth);
    for (const base of log) query.append("log", base);
    if (x !== "step") query.set("x", x);
    if (logX) query.set("logx", "1");
    if (q) query.set("q", q);
  }

  /** @param {MetricsJob[]} jobs @param {(names: string[]) => object[]} linesOf the lines of a chart with these metrics */
  show(jobs, linesOf) {
    this.#shown = [jobs, linesOf];
    const { smooth, log, x, logX, q } = this.#chosen;
    document.getElementById("smooth-value").textContent = smooth ? smooth.toFixed(2) : "off";
    this.#form.elements.x.querySelector('[value="epoch"]').disabled = !jobs.some((job) => job.starts.length) && x !== "epoch";
    const groups = [...groupsOf([...new Set(jobs.flatMap((job) => job.view.names))])];
    document.getElementById("q-label").hidden = groups.length <= FEW && !q;
    const filtered = groups.filter(([base, names]) => [base, ...names].some((name) => name.toLowerCase().includes(q.toLowerCase())));
    const shown = filtered.slice(0, this.#most);
    this.#removeOthers(new Set(shown.map(([base]) => base)));
    const seconds = Math.max(0, ...jobs.flatMap((job) => [...job.series.values()].flat().map((one) => one.times.at(-1) ?? 0)));
    let before = null;
    for (const [base, names] of shown) {
      const card = this.#cards.get(base) ?? this.#newCard(base);
      if (!card.element.isConnected || card.element.previousElementSibling !== before) {
        if (before) before.after(card.element);
        else document.getElementById("charts").prepend(card.element);
      }
      before = card.element;
      card.show(linesOf(names), { x, logX, smooth, log: log.has(base), seconds });
    }
    for (const painted of document.querySelectorAll(".painted")) painted.remove();
    const more = filtered.length - shown.length;
    document.getElementById("more-charts").hidden = more <= 0;
    document.getElementById("more-charts").textContent = `Show ${Math.min(more, CARDS)} more of ${more}`;
  }

  /** Requests zoomed ranges again, after new points. */
  refreshDetail() {
    for (const card of this.#cards.values()) card.refreshDetail();
  }

  #again() {
    if (this.#shown) this.show(...this.#shown);
  }

  #choose(event) {
    const { smooth, x, logx, q } = this.#form.elements;
    this.#chosen = { ...this.#chosen, smooth: Number(smooth.value), x: x.value, logX: logx.checked, q: q.value.trim() };
    this.#onChoice(event);
    this.#again();
  }

  #removeOthers(bases) {
    for (const [base, card] of this.#cards) {
      if (bases.has(base)) continue;
      card.close();
      this.#cards.delete(base);
    }
  }

  #newCard(base) {
    const painted = document.querySelector(`.painted[data-metric="${CSS.escape(base)}"]`);
    const card = new Card(base, painted, (isOn) => {
      if (isOn) this.#chosen.log.add(base);
      else this.#chosen.log.delete(base);
      this.#onChoice(null);
      this.#again();
    });
    this.#cards.set(base, card);
    return card;
  }
}

/** Replaces the query of the address. */
export function writeAddress(query) {
  const text = query.toString().replaceAll("%2F", "/");
  history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : ""));
}
