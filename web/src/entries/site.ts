// Loaded by every page: htmx for forms and live parts, the theme switch, buttons that copy a field, local times.

import "../shared/htmx_gate.ts";
import { showLocalTimes } from "../practice/local_times.ts";

showLocalTimes(document);

const themeSwitch = document.querySelector<HTMLButtonElement>("#theme-switch");
themeSwitch?.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

for (const button of document.querySelectorAll<HTMLButtonElement>("button[data-copy]")) {
  button.hidden = false; // without scripts it could do nothing
  button.addEventListener("click", () => void copyField(button.dataset.copy ?? ""));
}

async function copyField(id: string): Promise<void> {
  const field = document.querySelector<HTMLInputElement>(`#${id}`);
  if (!field) return;
  field.select();
  const isCopied = await writeClipboard(field.value);
  const status = document.querySelector(`[data-copy-status="${id}"]`);
  if (status) status.textContent = isCopied ? "Copied." : "Press Ctrl+C: it is selected.";
}

/** The clipboard interface exists on HTTPS and loopback alone; the older command copies the selection anywhere. */
async function writeClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return document.execCommand("copy");
  }
}
