// Loaded by pages with a program to edit: practice problems and their history.

import { enhanceEditors } from "../editor/enhance.ts";

enhanceEditors();
// htmx replaces parts of a page; new parts may have editors.
document.addEventListener("htmx:load", (event) => enhanceEditors(event.target instanceof Element ? event.target : document));
document.addEventListener("htmx:after:swap", () => enhanceEditors());
