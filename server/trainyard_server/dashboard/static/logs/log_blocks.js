// Rows in blocks: the browser lays out visible ones only, and whole blocks are dropped when there are too many.

const SIZE = 200;

export class Blocks {
  #blocks = []; // {element, rows}

  /** `make(entry)` returns a row; `view` scrolls, `list` holds the blocks. */
  constructor(view, list, make) {
    this.view = view;
    this.list = list;
    this.make = make;
    this.count = 0;
  }

  clear() {
    this.list.replaceChildren();
    this.#blocks = [];
    this.count = 0;
  }

  /** The cursors of the first and the last row; 0 where there is none. */
  get first() {
    return Number(this.list.firstElementChild?.firstElementChild?.dataset.c ?? 0);
  }

  get last() {
    return Number(this.list.lastElementChild?.lastElementChild?.dataset.c ?? 0);
  }

  append(entries) {
    for (let at = 0; at < entries.length; ) {
      let block = this.#blocks.at(-1);
      if (!block || block.rows >= SIZE) {
        block = this.#block();
        this.#blocks.push(block);
        this.list.append(block.element);
      }
      const some = entries.slice(at, at + SIZE - block.rows);
      this.#fill(block, some);
      at += some.length;
    }
  }

  /** Visible rows keep their position. */
  prepend(entries) {
    this.#keepingPosition(() => {
      for (let end = entries.length; end > 0; end -= SIZE) {
        const block = this.#block();
        this.#blocks.unshift(block);
        this.list.prepend(block.element);
        this.#fill(block, entries.slice(Math.max(0, end - SIZE), end));
        this.#measure(block);
      }
    });
  }

  /** Drops the first blocks until there are at most so many rows. Returns whether any was dropped. */
  dropFirst(most) {
    if (this.count <= most || this.#blocks.length < 2) return false;
    this.#keepingPosition(() => {
      while (this.count > most && this.#blocks.length > 1) this.#drop(this.#blocks.shift());
    });
    return true;
  }

  dropLast(most) {
    if (this.count <= most || this.#blocks.length < 2) return false;
    while (this.count > most && this.#blocks.length > 1) this.#drop(this.#blocks.pop());
    return true;
  }

  /** The row of a cursor, or the first one after it, else null. */
  rowAt(cursor) {
    const block = this.#blocks.find(({ element }) => Number(element.lastElementChild.dataset.c) >= cursor);
    return block ? [...block.element.children].find((row) => Number(row.dataset.c) >= cursor) : null;
  }

  /** The first visible row, else null. */
  seen() {
    const top = this.view.getBoundingClientRect().top;
    const block = this.#blocks.find(({ element }) => element.getBoundingClientRect().bottom > top);
    return block ? [...block.element.children].find((row) => row.getBoundingClientRect().bottom > top) : null;
  }

  /** Calls `work` with every row, a few blocks at a time, visible ones first, while `going()`. */
  async each(work, going) {
    const top = this.view.getBoundingClientRect().top;
    const near = (block) => Math.abs(block.element.getBoundingClientRect().top - top);
    const order = this.#blocks.map((block) => [near(block), block]).sort(([one], [other]) => one - other);
    for (const [at, [, block]] of order.entries()) {
      if (at % 5 === 4) await new Promise((resolve) => setTimeout(resolve));
      if (!going()) return;
      for (const row of block.element.children) work(row);
    }
  }

  #block() {
    const element = document.createElement("div");
    element.className = "log-block";
    return { element, rows: 0 };
  }

  #fill(block, entries) {
    const rows = document.createDocumentFragment();
    for (const entry of entries) rows.append(this.make(entry));
    block.element.append(rows);
    block.rows += entries.length;
    this.count += entries.length;
    block.element.style.setProperty("--rows", block.rows);
  }

  #drop(block) {
    block.element.remove();
    this.count -= block.rows;
  }

  // The size of a block that was not visible yet, or the page would jump when it is.
  #measure({ element }) {
    element.classList.add("measured");
    element.style.containIntrinsicSize = `auto ${element.offsetWidth}px auto ${element.offsetHeight}px`;
    element.classList.remove("measured");
  }

  #keepingPosition(change) {
    const row = this.seen();
    const before = row?.getBoundingClientRect().top;
    change();
    if (row?.isConnected) this.view.scrollTop += row.getBoundingClientRect().top - before;
  }
}
