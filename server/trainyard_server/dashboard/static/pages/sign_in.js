// A link with a code after its # signs in at once. The code is removed from the address, so that no history has it.
const code = location.hash.slice(1);
const form = document.getElementById("sign-in");
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
