// Page of one's own tokens: makes one and shows its secret this once; revokes.
import { ApiError, call } from "../base/api.js";
import { note } from "../base/banner.js";
import { localize } from "../base/times.js";

const DAY_S = 86400;
const TOKENS = "/trainyard/v1/tokens";

document.getElementById("new-token").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const days = Number(form.elements.days.value);
  const wanted = { description: form.elements.description.value.trim(), expires_in_s: days ? days * DAY_S : null };
  await answered(async () => {
    show((await call("POST", TOKENS, wanted)).secret);
    form.reset();
  });
});

document.getElementById("token-list").addEventListener("click", async (event) => {
  const id = event.target.closest("[data-revoke]")?.dataset.revoke;
  if (!id || !confirm(`Revoke the token ${id}? What uses it stops working at once.`)) return;
  const path = `${TOKENS}/${encodeURIComponent(id)}`;
  await answered(async () => {
    const { tokens } = await call("GET", `${path}/made`);
    const named = tokens.map((token) => `${token.token_id} of ${token.owner}`).join(", ");
    const question = `Valid tokens were made with ${id}: ${named}. Revoke them too? Cancel revokes ${id} alone.`;
    await call("DELETE", tokens.length && confirm(question) ? `${path}?recursive=true` : path);
  });
});

/** Does something and reads the list anew. */
async function answered(act) {
  try {
    await act();
    const page = new DOMParser().parseFromString(await (await fetch(location.pathname, { cache: "no-store" })).text(), "text/html");
    const list = page.getElementById("token-list");
    if (!list) return;
    localize(list);
    document.getElementById("token-list").replaceChildren(...list.childNodes);
  } catch (error) {
    note(error instanceof ApiError ? error.message : "The server does not answer.", "bad");
  }
}

function show(secret) {
  document.getElementById("secret").textContent = secret;
  document.getElementById("copy-secret").dataset.copy = secret;
  document.getElementById("made").hidden = false;
}
