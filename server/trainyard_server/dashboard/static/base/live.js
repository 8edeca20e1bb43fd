// Keeps the page up to date: the server sends the rows and the parts that changed. A hidden page closes its connection (a browser
// opens six to one host) and connects again when it is visible.
import { toSignIn } from "./api.js";
import { setBanner } from "./banner.js";
import { morph, morphRows } from "./morph.js";
import { localize } from "./times.js";

const HIDDEN_MS = 15_000;
const GONE_MS = 1_500;
const ENDED_MS = 500;
const AGAIN_MS = 2_000;
const LIMITED_MS = 10_000;

/** Follows this page; `trainyard:parts` is dispatched at the document after each change, with the names of the parts. */
export function follow() {
  connectWhileSeen(() => {
    const stream = new EventSource(`/live${location.pathname}${location.search}`);
    stream.addEventListener("parts", (event) => {
      const parts = JSON.parse(event.data);
      for (const [name, { frame, rows }] of Object.entries(parts)) {
        const element = document.getElementById(`live-${name}`);
        if (!element) continue;
        if (frame === undefined) morphRows(element, rows);
        else morph(element, frame, rows);
        localize(element);
      }
      document.dispatchEvent(new CustomEvent("trainyard:parts", { detail: Object.keys(parts) }));
    });
    return stream;
  });
}

/** Keeps the EventSource of `open` connected while the page is visible; a banner shows while the server is away.
 * `onclose(stream)` is called before a stream is closed. Returns a function that ends it. */
export function connectWhileSeen(open, onclose = () => {}) {
  let stream = null;
  let hiding = 0;
  let ended = false;

  const connect = () => {
    if (stream || ended) return;
    const opened = open();
    stream = opened;
    watch(opened, (pause) => {
      if (stream !== opened) return; // closed meanwhile
      stream = null;
      setTimeout(connect, pause);
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
    if (event.target.matches('[action="/sign-out"]')) drop(); // no banner while the next page loads
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
  let limited = false;
  const gone = () => {
    if (!broken.has(stream) || limited) return;
    setBanner("gone", "The server does not answer. This page may be out of date; it updates by itself when the server is back.", "bad");
  };
  stream.addEventListener("open", () => {
    clearTimeout(timer);
    forget(stream);
  });
  stream.addEventListener("hello", (event) => {
    const known = document.querySelector('meta[name="static-version"]').content;
    if (event.data && event.data !== known) setBanner("new", "The server has been updated.", "", { label: "Reload", run: () => location.reload() });
  });
  stream.addEventListener("session", (event) => {
    const known = document.querySelector('meta[name="csrf-token"]').content;
    if (event.data !== known) setBanner("session", "This browser has signed in again, maybe as another person.", "", { label: "Reload", run: () => location.reload() });
  });
  const checkSession = async () => {
    try {
      const answer = await fetch("/trainyard/v1/me", { cache: "no-store" });
      if (answer.status === 401) {
        toSignIn();
        return;
      }
      const status = answer.ok ? await statusOf(stream.url) : answer.status;
      if (status === 404) {
        forget(stream);
        setBanner("deleted", "This job was deleted.", "bad", { label: "All jobs", run: () => location.assign("/") });
        return; // there is nothing to connect to any more
      }
      limited = status === 429;
      if (limited) setBanner("gone", "You have too many live pages open: close some. This page updates by itself then.", "bad");
    } catch {
      // The server is away: the banner is shown, and the next attempt comes by itself.
    }
    const pause = limited ? LIMITED_MS : AGAIN_MS;
    setTimeout(() => forget(stream), pause + AGAIN_MS); // the banner stays until the next stream has connected
    lost(pause);
  };
  stream.addEventListener("error", () => {
    if (!broken.has(stream)) {
      broken.add(stream);
      timer = setTimeout(gone, GONE_MS);
    }
    if (stream.readyState === EventSource.CLOSED) checkSession(); // refused: the server is starting, or this session has ended
  });
  stream.addEventListener("over", () => {
    // The session was ended, maybe in another tab that is just signing in again; or it is to be extended, which the
    // request does.
    stream.close();
    setTimeout(checkSession, ENDED_MS);
  });
}

async function statusOf(url) {
  const request = new AbortController();
  const answer = await fetch(url, { cache: "no-store", signal: request.signal });
  request.abort(); // it is a stream without an end
  return answer.status;
}

function forget(stream) {
  broken.delete(stream);
  if (broken.size === 0) setBanner("gone", "");
}
