// Colors of the canvas, read from the page's custom properties so that light and dark stay in one place: the CSS.

import { signal } from "@preact/signals";

export interface CanvasTheme {
  isDark: boolean;
  ink: string;
  muted: string;
  line: string;
  lineStrong: string;
  panel: string;
  sunken: string;
  accent: string;
  bad: string;
  badSoft: string;
  textFont: string;
  monoFont: string;
  /** Colors of -1 to 1 in HEAT_STEPS steps, and whether text on them is light. */
  heat: string[];
}

export const HEAT_STEPS = 65;

/** Counts theme changes; a view that reads it is drawn again. */
export const themeVersion = signal(0);

export function watchTheme(): () => void {
  const update = () => (themeVersion.value += 1);
  const media = matchMedia("(prefers-color-scheme: dark)");
  const observer = new MutationObserver(update);
  media.addEventListener("change", update);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
  return () => {
    media.removeEventListener("change", update);
    observer.disconnect();
  };
}

export function readTheme(element: Element): CanvasTheme {
  const style = getComputedStyle(element);
  const token = (name: string, fallback: string) => style.getPropertyValue(name).trim() || fallback;
  const root = document.documentElement.dataset.theme;
  const isDark = root ? root === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  return {
    isDark,
    ink: token("--ink", "#1c1e22"),
    muted: token("--muted", "#5b606b"),
    line: token("--line", "#dcd9d1"),
    lineStrong: token("--line-strong", "#b9b5ab"),
    panel: token("--panel", "#ffffff"),
    sunken: token("--sunken", "#f1efe9"),
    accent: token("--accent", "#2f57b5"),
    bad: token("--bad", "#b3261e"),
    badSoft: token("--bad-soft", "#fbe9e7"),
    textFont: token("--text", "system-ui, sans-serif"),
    monoFont: token("--mono", "monospace"),
    heat: Array.from({ length: HEAT_STEPS }, (_, index) => heatColor((index / (HEAT_STEPS - 1)) * 2 - 1, isDark)),
  };
}

/**
 * The color of a number between -1 and 1.
 *
 * Hues mean mesh axes on every picture, so numbers are drawn in ink: darker is larger. Negative numbers get a quiet
 * violet, which no mesh axis of a usual mesh has; zero is paper.
 */
export function heatColor(fraction: number, isDark: boolean): string {
  const magnitude = Math.min(1, Math.abs(fraction)) ** 0.8;
  const [zero, full] = isDark ? [0.25, 0.8] : [0.972, 0.5];
  const lightness = zero + (full - zero) * magnitude;
  const [chroma, hue] = fraction < 0 ? [0.1 * magnitude, 305] : [0.022 * magnitude, 240];
  return `oklch(${lightness.toFixed(3)} ${chroma.toFixed(3)} ${hue})`;
}

export function heatIndex(value: number, scale: number): number {
  const fraction = Math.max(-1, Math.min(1, value / scale));
  return Math.round(((fraction + 1) / 2) * (HEAT_STEPS - 1));
}

/** Whether text on a heat color needs the light ink. */
export function needsLightText(fraction: number, isDark: boolean): boolean {
  const strength = Math.min(1, Math.abs(fraction)) ** 0.8;
  return isDark ? strength < 0.6 : strength > 0.72;
}
