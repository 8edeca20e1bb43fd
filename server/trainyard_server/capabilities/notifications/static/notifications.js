// Notifications page: sends a test to a channel, and says what came of it.
import { ApiError, call } from "../base/api.js";
import { note } from "../base/banner.js";

document.getElementById("live-channels").addEventListener("click", async (event) => {
  const button = event.target.closest("[data-test]");
  if (!button) return;
  const { test: channel, project } = button.dataset;
  button.disabled = true;
  try {
    const { error } = await call("POST", `/trainyard/v1/projects/${encodeURIComponent(project)}/channels/${encodeURIComponent(channel)}:test`, {});
    note(error ? `${channel} did not accept the test: ${error}.` : `${channel} accepted the test.`, error ? "bad" : "");
  } catch (error) {
    note(error instanceof ApiError ? error.message : "The server does not answer.", "bad");
  } finally {
    button.disabled = false;
  }
});
