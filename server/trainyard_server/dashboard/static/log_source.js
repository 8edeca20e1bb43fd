// Where the lines come from: pages of them from the API, and those to come as a stream.
import { call } from "./api.js";
import { connectWhileSeen } from "./live.js";

export class Source {
  /** `filters` are what the API takes: task (a list), run, severity, since, search. */
  constructor(path, filters) {
    this.path = path;
    this.filters = filters;
  }

  url(below, more = {}) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries({ ...this.filters, ...more })) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== "" && one !== null && one !== undefined) query.append(name, one);
      }
    }
    return `${this.path}${below}${query.size ? `?${query}` : ""}`;
  }

  /** `{lines, first, last, earlier, later}`: before a cursor, after one, or the last. */
  page(where, signal) {
    return call("GET", this.url("/page", where), undefined, { signal });
  }

  /** The cursor of the first line after one that is wanted, null where there is none; `looking(cursor)` hears how far
   * it is. */
  async next(after, more, signal, looking) {
    for (;;) {
      const found = await call("GET", this.url("/first", { ...more, after }), undefined, { signal });
      if (found.cursor !== null || !found.more) return found.cursor;
      after = found.looked;
      looking(after);
    }
  }

  /** The same before a cursor. */
  async before(cursor, more, signal, looking) {
    let before = cursor;
    while (before > 1) {
      const found = await this.page({ ...more, before, limit: 1 }, signal);
      if (found.lines.length) return found.lines[0][0];
      before = found.first;
      looking(before);
    }
    return null;
  }

  /** Everything behind a cursor as it comes, each line once, over all interruptions: `taken(lines, cursor)`. `ended(summary)`
   * when the job is over and the last line was taken. Answers with a function that ends it. */
  follow(after, taken, ended) {
    let cursor = after;
    const end = connectWhileSeen(() => {
      const stream = new EventSource(this.url("", { follow: "true", batch: "true", after: cursor }));
      stream.addEventListener("lines", (event) => {
        const reached = Number(event.lastEventId);
        if (reached <= cursor) return;
        const known = cursor;
        cursor = reached;
        const lines = JSON.parse(event.data);
        taken(known && lines.length && lines[0][0] <= known ? lines.filter(([one]) => one > known) : lines, cursor);
      });
      stream.addEventListener("end", (event) => {
        end();
        ended(JSON.parse(event.data));
      });
      return stream;
    });
    return end;
  }
}
