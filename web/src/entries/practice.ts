// Loaded by the practice pages: live results by server-sent events, panes, autosave, local times.

import htmx from "htmx.org";
import "htmx.org/dist/ext/hx-sse.js";
import { enableAnnouncements } from "../practice/announcements.ts";
import { showLocalTimes } from "../practice/local_times.ts";
import { enableProblemPage } from "../practice/problem_page.ts";

// site.js has loaded htmx before this file: by now htmx may have processed the page without the extension, and a
// judgement that is under way when the page opens would never be connected. Elements are not connected twice.
htmx.process(document.body);
document.documentElement.classList.add("has-scripts");
showLocalTimes(document);
document.addEventListener("htmx:after:swap", () => showLocalTimes(document));
enableProblemPage();
enableAnnouncements();
