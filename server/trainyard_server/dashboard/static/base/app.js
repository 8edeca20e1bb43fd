// Loaded on every page.
import { followCopies } from "./copy.js";
import { followKeys } from "./keys.js";
import { follow } from "./live.js";
import { followTheme } from "./theme.js";
import { followTimes } from "./times.js";

followTimes();
followTheme();
followCopies();
followKeys();
if (document.body.hasAttribute("data-live")) follow();
