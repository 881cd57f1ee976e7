// Loaded by the practice pages: live results by server-sent events, panes, autosave, local times.

import "htmx.org";
import "htmx.org/dist/ext/hx-sse.js";
import { showLocalTimes } from "../practice/local_times.ts";
import { enableProblemPage } from "../practice/problem_page.ts";

document.documentElement.classList.add("has-scripts");
showLocalTimes(document);
document.addEventListener("htmx:after:swap", () => showLocalTimes(document));
enableProblemPage();
