// Log lines from the API: pages of stored lines, and a stream of new ones.
import { call } from "../base/api.js";
import { connectWhileSeen } from "../base/live.js";

export class Source {
  /** `filters` are query parameters of the API: task (a list), run, severity, since, search. */
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

  /** The cursor of the first match after a cursor, else null. `onProgress(cursor)` is called during the search. */
  async next(after, more, signal, onProgress) {
    for (;;) {
      const answer = await call("GET", this.url("/first", { ...more, after }), undefined, { signal });
      if (answer.cursor !== null || !answer.more) return answer.cursor;
      after = answer.looked;
      onProgress(after);
    }
  }

  /** The cursor of the last match before a cursor, else null. */
  async before(cursor, more, signal, onProgress) {
    let before = cursor;
    while (before > 1) {
      const answer = await this.page({ ...more, before, limit: 1 }, signal);
      if (answer.lines.length) return answer.lines[0][0];
      before = answer.first;
      onProgress(before);
    }
    return null;
  }

  /** Calls `onLines(lines, cursor)` with every line after a cursor, each once, over all interruptions, and `onEnd(summary)`
   * after the last line of a job that has ended. Returns a function that stops it. */
  follow(after, onLines, onEnd) {
    let cursor = after;
    const end = connectWhileSeen(() => {
      const stream = new EventSource(this.url("", { follow: "true", batch: "true", after: cursor }));
      stream.addEventListener("lines", (event) => {
        const reached = Number(event.lastEventId);
        if (reached <= cursor) return;
        const known = cursor;
        cursor = reached;
        const lines = JSON.parse(event.data);
        onLines(known && lines.length && lines[0][0] <= known ? lines.filter(([one]) => one > known) : lines, cursor);
      });
      stream.addEventListener("end", (event) => {
        end();
        onEnd(JSON.parse(event.data));
      });
      return stream;
    });
    return end;
  }
}
