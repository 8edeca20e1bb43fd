// Calls of the server's API with the session of this page.

export class ApiError extends Error {
  /** @param {number} status of HTTP, 0 where the server did not answer @param {object} body the error's envelope */
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

// Browsers abort requests when a network interface comes or goes, such as one of containers: reads are repeated.
const PAUSES_MS = [200, 800];

/** Calls the API and returns its JSON. Throws ApiError with the server's message. */
export async function call(method, path, body = undefined, { signal } = {}) {
  const headers = { Accept: "application/json", "X-CSRF-Token": document.querySelector('meta[name="csrf-token"]').content };
  let payload = body;
  if (body !== undefined && !(body instanceof Blob)) {
    headers["Content-Type"] = "application/json";
    payload = JSON.stringify(body);
  }
  const answer = await request(path, { method, headers, body: payload, signal, cache: "no-store" });
  const content = await answer.json().catch(() => ({}));
  if (answer.status === 401) toSignIn();
  if (!answer.ok) throw new ApiError(answer.status, content.error?.message ?? `The server answered with ${answer.status}.`, content);
  return content;
}

/** Goes to the sign-in page, which leads back to this page. */
export function toSignIn() {
  location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
}

async function request(path, options) {
  const pauses = options.method === "GET" ? [...PAUSES_MS] : [];
  for (;;) {
    try {
      return await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (pauses.length === 0) throw new ApiError(0, "The server does not answer.", {});
      await new Promise((resolve) => setTimeout(resolve, pauses.shift()));
    }
  }
}

/** `projects/P/jobs/J` with both names escaped. */
export function jobPath(project, job) {
  return `projects/${encodeURIComponent(project)}/jobs/${encodeURIComponent(job)}`;
}
