// Keeps the page true: the server sends the parts that changed. A page that nobody sees lets go of its connection
// (a browser has six to one host) and catches up when it is seen again.
import { toSignIn } from "./api.js";
import { say } from "./banner.js";
import { morph } from "./morph.js";
import { localize } from "./times.js";

const HIDDEN_MS = 15_000;
const GONE_MS = 1_500;
const OVER_MS = 500;

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
    const opened = open();
    stream = opened;
    watch(opened, () => {
      if (stream !== opened) return; // let go of meanwhile
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
  const leaving = (event) => {
    if (event.target.matches('[action="/sign-out"]')) drop(); // its end is not to be answered while that page comes
  };
  const seen = () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(drop, HIDDEN_MS);
    else connect();
  };
  document.addEventListener("visibilitychange", seen);
  document.addEventListener("submit", leaving);
  window.addEventListener("pagehide", drop);
  window.addEventListener("pageshow", connect);
  connect();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", seen);
    document.removeEventListener("submit", leaving);
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
  stream.addEventListener("session", (event) => {
    const known = document.querySelector('meta[name="csrf-token"]').content;
    if (event.data !== known) say("session", "This browser has signed in anew, maybe as somebody else.", "", { label: "Reload", run: () => location.reload() });
  });
  const ask = async () => {
    try {
      const answer = await fetch("/trainyard/v1/me", { cache: "no-store" });
      if (answer.status === 401) {
        toSignIn();
        return;
      }
    } catch {
      // It is away: the banner says so, and the next attempt comes by itself.
    }
    forgetLater(stream);
    lost();
  };
  stream.addEventListener("error", () => {
    if (!broken.has(stream)) {
      broken.add(stream);
      timer = setTimeout(gone, GONE_MS);
    }
    if (stream.readyState === EventSource.CLOSED) ask(); // refused: the server is starting, or this session is over
  });
  stream.addEventListener("over", () => {
    // The session was ended, maybe in another tab, which may just be signing in anew; or it wants more time, which
    // the question gives it.
    stream.close();
    setTimeout(ask, OVER_MS);
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
