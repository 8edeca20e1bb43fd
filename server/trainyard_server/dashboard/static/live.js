// Keeps the page true: the server sends the parts that changed. A page that nobody sees lets go of its connection
// (a browser has six to one host) and catches up when it is seen again.
import { say } from "./banner.js";
import { morph } from "./morph.js";
import { localize } from "./times.js";

const HIDDEN_MS = 15_000;
const GONE_MS = 1_500;

/** Follows this page; `trainyard:parts` is dispatched at the document after each change, with the names of the parts. */
export function follow() {
  connectWhileSeen(() => {
    const stream = new EventSource(`/live${location.pathname}${location.search}`);
    stream.addEventListener("parts", (event) => {
      const parts = JSON.parse(event.data);
      for (const [name, html] of Object.entries(parts)) {
        const element = document.getElementById(`live-${name}`);
        if (!element) continue;
        morph(element, html);
        localize(element);
      }
      document.dispatchEvent(new CustomEvent("trainyard:parts", { detail: Object.keys(parts) }));
    });
    return stream;
  });
}

/** Keeps what `open` connects (an EventSource) alive while the page is seen; says so while the server is away.
 * `onclose(stream)` is called before a stream is let go. Answers with a function that ends it all. */
export function connectWhileSeen(open, onclose = () => {}) {
  let stream = null;
  let hiding = 0;
  let ended = false;

  const connect = () => {
    if (stream || ended) return;
    stream = open();
    watch(stream, () => {
      stream = null;
      setTimeout(connect, 2_000);
    });
  };
  const drop = () => {
    if (!stream) return;
    onclose(stream);
    stream.close();
    forget(stream);
    stream = null;
  };
  const seen = () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(drop, HIDDEN_MS);
    else connect();
  };
  document.addEventListener("visibilitychange", seen);
  window.addEventListener("pagehide", drop);
  window.addEventListener("pageshow", connect);
  connect();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", seen);
    drop();
  };
}

const broken = new Set();

function watch(stream, lost) {
  let timer = 0;
  const gone = () => {
    if (!broken.has(stream)) return;
    say("gone", "The server does not answer. What you see may be old; this page goes on by itself as soon as it is back.", "bad");
  };
  stream.addEventListener("open", () => {
    clearTimeout(timer);
    forget(stream);
  });
  stream.addEventListener("hello", (event) => {
    const known = document.querySelector('meta[name="static-version"]').content;
    if (event.data && event.data !== known) say("new", "The server has been updated.", "", { label: "Reload", run: () => location.reload() });
  });
  stream.addEventListener("error", async () => {
    if (!broken.has(stream)) {
      broken.add(stream);
      timer = setTimeout(gone, GONE_MS);
    }
    if (stream.readyState !== EventSource.CLOSED) return; // it tries again by itself
    // The server refused: it is starting, or this session is over.
    try {
      const answer = await fetch("/trainyard/v1/me", { cache: "no-store" });
      if (answer.status === 401) {
        location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
        return;
      }
    } catch {
      // It is away: the banner says so, and the next attempt comes by itself.
    }
    forgetLater(stream);
    lost();
  });
}

function forget(stream) {
  broken.delete(stream);
  if (broken.size === 0) say("gone", "");
}

// A stream that is replaced: the banner stays until its successor has connected.
function forgetLater(stream) {
  setTimeout(() => forget(stream), 4_000);
}
