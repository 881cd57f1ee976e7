// Whether the page is dark, as a hook: the system decides unless the person switched.

import { useEffect, useState } from "preact/hooks";

export function isDarkTheme(): boolean {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function useDarkTheme(): boolean {
  const [dark, setDark] = useState(isDarkTheme);
  useEffect(() => {
    const update = () => setDark(isDarkTheme());
    const query = matchMedia("(prefers-color-scheme: dark)");
    const observer = new MutationObserver(update);
    query.addEventListener("change", update);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      query.removeEventListener("change", update);
      observer.disconnect();
    };
  }, []);
  return dark;
}
