// Loaded by every page: htmx for forms and live parts, and the theme switch.

import "htmx.org";

const themeSwitch = document.querySelector<HTMLButtonElement>("#theme-switch");
themeSwitch?.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});
