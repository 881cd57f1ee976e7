// Runs before the page is painted, so that a chosen theme does not flash.

const theme = localStorage.getItem("theme");
// Notes for browsers without scripts are hidden at once, not when the other scripts have loaded.
document.documentElement.classList.add("runs-scripts");
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
