// The server's own API, as this page's reader.

export class ApiError extends Error {
  /** @param {number} status of HTTP, 0 where the server did not answer @param {object} body the error's envelope */
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

// A browser drops what is under way when a network comes or goes, such as one of containers: what only reads may be
// asked again.
const PAUSES_MS = [200, 800];

/** Calls the API and answers with its JSON. Throws ApiError with the server's own sentence. */
export async function call(method, path, body = undefined, { signal } = {}) {
  const headers = { Accept: "application/json", "X-CSRF-Token": document.querySelector('meta[name="csrf-token"]').content };
  let payload = body;
  if (body !== undefined && !(body instanceof Blob)) {
    headers["Content-Type"] = "application/json";
    payload = JSON.stringify(body);
  }
  const answer = await asked(path, { method, headers, body: payload, signal, cache: "no-store" });
  const said = await answer.json().catch(() => ({}));
  if (answer.status === 401) toSignIn();
  if (!answer.ok) throw new ApiError(answer.status, said.error?.message ?? `The server answered with ${answer.status}.`, said);
  return said;
}

/** This session is over: on to the sign-in page, and from there back here. */
export function toSignIn() {
  location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
}

async function asked(path, request) {
  const pauses = request.method === "GET" ? [...PAUSES_MS] : [];
  for (;;) {
    try {
      return await fetch(path, request);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (pauses.length === 0) throw new ApiError(0, "The server does not answer.", {});
      await new Promise((resolve) => setTimeout(resolve, pauses.shift()));
    }
  }
}

/** `projects/P/jobs/J` with both names safe in a path. */
export function jobPath(project, job) {
  return `projects/${encodeURIComponent(project)}/jobs/${encodeURIComponent(job)}`;
}
