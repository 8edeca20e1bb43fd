import { trackingPath } from "../base/links.js";

// A link with a code after its # signs in at once. The code is removed from the address, so that no history has it.
// A link that MLflow's client has printed is where the person wants to go.
const form = document.getElementById("sign-in");
const tracked = trackingPath(location.hash);
const code = tracked ? "" : location.hash.slice(1);
if (tracked) form.elements.next.value = tracked;
if (code) {
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.code.value = code;
  form.elements.token.required = false;
  form.hidden = true;
  document.getElementById("by-code").hidden = false;
  form.submit();
} else {
  form.elements.token.focus();
}
