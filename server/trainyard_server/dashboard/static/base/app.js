// Loaded on every page.
import { followCopies } from "./copy.js";
import { followKeys } from "./keys.js";
import { followTrackingLinks } from "./links.js";
import { follow } from "./live.js";
import { followTheme } from "./theme.js";
import { followTimes } from "./times.js";

followTrackingLinks();
followTimes();
followTheme();
followCopies();
followKeys();
if (document.body.hasAttribute("data-live")) follow();
