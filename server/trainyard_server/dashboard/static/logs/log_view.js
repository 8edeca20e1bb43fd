// Window on a log: the rows in the page, fetching more near an edge, and following new lines.
import { Blocks } from "./log_blocks.js";
import { Rows } from "./log_rows.js";

const PAGE = 400;
const MOST = 20_000; // rows in the page at a time
const AT_ONCE = 500; // rows added in one frame
const LEAP = 3_000; // queued lines above which following skips to the newest
const RETRY_MS = 2_000;
const NEAR = 1_200; // pixels from an edge at which more is fetched

export class LogView {
  #blocks;
  #loading = new AbortController();
  #fetching = false;
  #endStream = null;
  #queue = [];
  #outcome = null; // the summary, until the last line is drawn
  #drawing = false;
  #earlier = false; // whether there are lines before those in the page
  #later = false; // whether there are lines after them that the stream does not deliver
  #low = 1; // the first cursor that was read
  #high = 0; // the last one
  #top = 0;
  #held = false; // paused by hand: scrolling to the end does not follow again
  #touched = 0;

  /** `changed()` is called when the state of the view may have changed; `failed(error)` when a call fails. */
  constructor(view, list, { changed, failed }) {
    this.view = view;
    this.rows = new Rows();
    this.#blocks = new Blocks(view, list, (entry) => this.#make(entry));
    this.changed = changed;
    this.failed = failed;
    this.following = false;
    this.fresh = 0; // rows added since it was paused
    this.summary = null; // of a job that has ended, once its last line is drawn
    this.marked = 0; // the cursor of the line in the address
    this.searched = 0; // the cursor that a search through lines without a match has reached
    new ResizeObserver(() => this.following && this.#toEnd()).observe(list); // as rows are laid out, and the window
    view.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    view.addEventListener("wheel", (event) => event.deltaY < 0 && this.#leave(), { passive: true });
    view.addEventListener("touchmove", () => (this.#touched = Date.now()), { passive: true });
    view.addEventListener("keydown", (event) => ["ArrowUp", "PageUp"].includes(event.key) && this.#leave());
  }

  get count() {
    return this.#blocks.count;
  }

  get first() {
    return this.#blocks.first;
  }

  get last() {
    return this.#blocks.last;
  }

  /** Whether the page has the log's first line, and its newest one. */
  get extent() {
    return { begins: !this.#earlier, ends: !this.#later };
  }

  get busy() {
    return this.#fetching;
  }

  /** Opens a source at its end (cursor null), at its beginning (0) or at a cursor; `mark` marks the line there. */
  async open(source, cursor = null, mark = false) {
    this.#stop();
    this.source = source;
    this.#blocks.clear();
    this.#queue = [];
    this.fresh = 0;
    this.summary = this.#outcome = null;
    this.#earlier = this.#later = false;
    const { signal } = (this.#loading = new AbortController());
    await this.#fetch(signal, async () => {
      try {
        if (cursor === null) await this.#openEnd(signal);
        else await this.#openAt(cursor, mark, signal);
      } catch (error) {
        if (error.status !== 0 && error.status !== 503) throw error;
        setTimeout(() => signal.aborted || this.open(source, cursor, mark), RETRY_MS); // a banner is shown
      }
    });
  }

  async #openEnd(signal) {
    const page = await this.source.page({ limit: PAGE }, signal);
    this.#low = page.first;
    this.#high = page.last;
    this.#earlier = page.earlier;
    this.#blocks.append(page.lines);
    this.following = true;
    this.#held = false;
    this.#toEnd();
    this.#attach();
  }

  async #openAt(cursor, mark, signal) {
    const after = await this.source.page({ after: Math.max(0, cursor - 1), limit: PAGE }, signal);
    const before = cursor > 1 ? await this.source.page({ before: cursor, limit: PAGE / 2 }, signal) : { lines: [], first: 1, earlier: false };
    this.#low = before.first;
    this.#high = after.last;
    this.#earlier = before.earlier;
    this.#later = after.later;
    this.#blocks.append([...before.lines, ...after.lines]);
    this.following = false;
    this.#held = true;
    if (mark) this.mark(cursor);
    this.#reveal(cursor);
    if (!this.#later) this.#attach();
  }

  /** Follows from the newest line. */
  follow() {
    if (this.#later) return this.open(this.source);
    this.following = true;
    this.#held = false;
    this.fresh = 0;
    this.#flush();
    this.#toEnd();
    this.changed();
    return undefined;
  }

  pause() {
    this.following = false;
    this.#held = true;
    this.changed();
  }

  /** Scrolls to a line, fetching it if it is not in the page. */
  async show(cursor) {
    const isLoaded = this.count && cursor >= this.first && cursor <= this.last;
    if (!isLoaded) return this.open(this.source, cursor, true);
    this.following = false;
    this.#held = true;
    this.mark(cursor);
    this.#reveal(cursor);
    this.changed();
    return undefined;
  }

  /** Whether a line is visible. */
  shows(cursor) {
    if (!cursor || cursor < this.first || cursor > this.last) return false;
    const row = this.#blocks.rowAt(cursor).getBoundingClientRect();
    const view = this.view.getBoundingClientRect();
    return row.bottom > view.top && row.top < view.bottom;
  }

  /** Marks a line; 0: none. */
  mark(cursor) {
    this.view.querySelector(".marked")?.classList.remove("marked");
    this.marked = cursor;
    const row = this.#blocks.rowAt(cursor);
    if (row && Number(row.dataset.c) === cursor) row.classList.add("marked");
  }

  #reveal(cursor) {
    const row = this.#blocks.rowAt(cursor);
    if (!row) return;
    // Twice: the rows between are laid out only when they are near.
    for (let i = 0; i < 2; i += 1) row.scrollIntoView({ block: "center", inline: "nearest" });
    this.#top = this.view.scrollTop;
  }

  /** The cursor of the first visible line. */
  seen() {
    return Number(this.#blocks.seen()?.dataset.c ?? 0);
  }

  /** Writes every row again: `work` is "what" (the text) or "when" (the time). */
  refresh(work) {
    const { signal } = this.#loading;
    return this.#blocks.each((row) => this.rows[work](row), () => !signal.aborted);
  }

  close() {
    this.#stop();
  }

  #make(entry) {
    const row = this.rows.make(entry);
    if (entry[0] === this.marked) row.classList.add("marked");
    return row;
  }

  #stop() {
    this.#loading.abort();
    this.#endStream?.();
    this.#endStream = null;
  }

  #attach() {
    const { signal } = this.#loading;
    const onLines = (lines, cursor) => {
      if (signal.aborted) return;
      for (const line of lines) this.#queue.push(line);
      this.#high = cursor;
      this.#draw();
    };
    this.#endStream = this.source.follow(this.#high, onLines, (summary) => {
      this.#endStream = null;
      this.#outcome = summary;
      this.#draw();
    });
  }

  // Adds queued lines, once a frame.
  #draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#flush(AT_ONCE);
      if (this.#queue.length) this.#draw();
      else this.summary = this.#outcome;
      this.changed();
    });
  }

  #flush(most = Infinity) {
    if (this.following && this.#queue.length > LEAP) {
      // Too fast to read: lines before the newest are fetched when the reader scrolls back.
      this.#queue = this.#queue.slice(-AT_ONCE);
      this.#blocks.clear();
      this.#low = this.#queue[0][0];
      this.#earlier = true;
    }
    const some = this.#queue.splice(0, most);
    if (!some.length) return;
    this.#blocks.append(some);
    if (this.following) {
      if (this.#blocks.dropFirst(MOST)) this.#cutBefore();
      this.#toEnd();
    } else {
      this.fresh += some.length;
      if (this.count > MOST) this.#cutBehind();
    }
  }

  #cutBefore() {
    this.#earlier = true;
    this.#low = this.first;
  }

  // Too many rows while the reader is at earlier ones: the newest are dropped, and fetched again when needed.
  #cutBehind() {
    this.#blocks.dropLast(MOST);
    this.#queue = [];
    this.#endStream?.();
    this.#endStream = null;
    this.#high = this.last;
    this.#later = true;
  }

  #toEnd() {
    this.view.scrollTop = this.view.scrollHeight;
    this.#top = this.view.scrollTop;
  }

  #leave() {
    if (!this.following || this.view.scrollHeight <= this.view.clientHeight) return;
    this.following = false;
    this.#held = false;
    this.changed();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.view;
    const up = scrollTop < this.#top - 1;
    const down = scrollTop > this.#top + 1;
    const atEnd = scrollTop + clientHeight >= scrollHeight - 8;
    this.#top = scrollTop;
    if (up && !atEnd && this.following && Date.now() - this.#touched < 3_000) this.#leave();
    else if (up && !atEnd && this.following && !this.#drawing) this.#leave();
    else if (down && atEnd && !this.following && !this.#held && !this.#later) this.follow();
    if (down) this.#held &&= !atEnd || this.#later;
    if (scrollTop < NEAR) this.#fetchEarlier();
    if (this.#later && scrollTop + clientHeight > scrollHeight - NEAR) this.#fetchLater();
  }

  /** Fetches earlier lines if the loaded ones do not fill the window. */
  fill() {
    if (this.view.scrollTop < NEAR) this.#fetchEarlier();
  }

  #fetchEarlier() {
    if (!this.#earlier || this.#fetching) return;
    const { signal } = this.#loading;
    this.#fetch(signal, async () => {
      // A filter may match little: goes on while the reader stays at the top.
      do {
        const before = this.#low;
        const page = await this.source.page({ before, limit: PAGE }, signal);
        if (this.#low !== before) return; // the first lines were dropped meanwhile: these do not adjoin any more
        this.#low = page.first;
        this.#earlier = page.earlier;
        this.searched = page.first;
        if (page.lines.length) {
          this.#blocks.prepend(page.lines);
          if (this.following) this.#toEnd();
          else if (this.count > MOST) this.#cutBehind();
          this.#top = this.view.scrollTop;
        }
        this.changed();
      } while (this.#earlier && this.view.scrollTop < 100 && !signal.aborted && this.count < MOST / 2);
    });
  }

  #fetchLater() {
    if (!this.#later || this.#fetching) return;
    const { signal } = this.#loading;
    this.#fetch(signal, async () => {
      do {
        const page = await this.source.page({ after: this.#high, limit: PAGE }, signal);
        this.#high = page.last;
        this.#later = page.later;
        this.searched = page.last;
        this.#blocks.append(page.lines);
        if (this.#blocks.dropFirst(MOST)) this.#cutBefore();
        this.#top = this.view.scrollTop;
        this.changed();
      } while (this.#later && this.view.scrollTop + this.view.clientHeight > this.view.scrollHeight - 100 && !signal.aborted);
      if (!this.#later) {
        this.#held = false;
        this.#attach();
      }
    });
  }

  async #fetch(signal, work) {
    this.#fetching = true;
    this.changed();
    try {
      await work();
    } catch (error) {
      if (error.name !== "AbortError") this.failed(error);
    } finally {
      if (this.#loading.signal === signal) {
        this.#fetching = false;
        this.searched = 0;
        this.changed();
      }
    }
  }
}
