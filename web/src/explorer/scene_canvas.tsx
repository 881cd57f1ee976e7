// A canvas that shows a scene: sharp on dense screens, as wide as its place, with pointer and arrow keys.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { cellAt, drawScene, fontOf, type Highlight } from "./draw_scene.ts";
import type { Scene, SceneCell, SceneStyle } from "./scene.ts";

interface Properties {
  readonly build: (width: number, style: SceneStyle) => Scene;
  /** The scene is built again if one of these changes. */
  readonly inputs: readonly unknown[];
  readonly dark: boolean;
  readonly highlight: Highlight | null;
  readonly label: string;
  /** A cell was pointed at or reached with the keyboard; null: none. */
  readonly onSelect?: (cell: SceneCell | null) => void;
}

const widths = new Map<string, number>();
let ruler: CanvasRenderingContext2D | null = null;

/** The width of a text in pixels. */
export function measureText(text: string, size: number): number {
  const key = `${size} ${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    ruler ??= document.createElement("canvas").getContext("2d")!;
    ruler.font = fontOf(size, 500);
    width = ruler.measureText(text).width;
    if (widths.size > 10_000) widths.clear();
    widths.set(key, width);
  }
  return width;
}

/** Forgets measured widths, after the page's font has loaded. */
export function forgetTextWidths(): void {
  widths.clear();
}

export function SceneCanvas({ build, inputs, dark, highlight, label, onSelect }: Properties) {
  const holder = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const focused = useRef(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(holder.current!);
    return () => observer.disconnect();
  }, []);
  const scene = useMemo(
    () => (width > 0 ? build(width, { dark, measure: measureText }) : null),
    [width, dark, ...inputs],
  );
  useLayoutEffect(() => {
    if (scene) paint(canvas.current!, scene, dark, highlight);
  }, [scene, dark, highlight]);

  const select = (event: PointerEvent) => {
    if (!scene || !onSelect) return;
    const box = canvas.current!.getBoundingClientRect();
    onSelect(cellAt(scene, event.clientX - box.left, event.clientY - box.top));
  };
  const move = (event: KeyboardEvent) => {
    if (!scene || !onSelect) return;
    const next = nextCell(scene, focused.current, event.key);
    if (next === null) return;
    event.preventDefault();
    focused.current = next;
    onSelect(scene.cells[next] ?? null);
  };
  return (
    <div class="scene" ref={holder}>
      <canvas
        ref={canvas}
        role="application"
        aria-roledescription="picture"
        aria-label={label}
        tabIndex={onSelect ? 0 : undefined}
        onPointerMove={select}
        onPointerDown={select}
        onPointerLeave={() => onSelect?.(null)}
        onKeyDown={move}
        onFocus={(event) => {
          if ((event.target as HTMLElement).matches(":focus-visible")) onSelect?.(scene?.cells[focused.current] ?? null);
        }}
        onBlur={() => onSelect?.(null)}
      />
      {scene?.note && <p class="scene-note">{scene.note}</p>}
    </div>
  );
}

const panelColors = new Map<boolean, string>();

/** The color of the panel around a canvas, read once for each theme. */
function panelColor(canvas: HTMLCanvasElement, dark: boolean): string {
  let color = panelColors.get(dark);
  if (color === undefined) panelColors.set(dark, (color = getComputedStyle(canvas).getPropertyValue("--panel").trim()));
  return color;
}

function paint(canvas: HTMLCanvasElement, scene: Scene, dark: boolean, highlight: Highlight | null): void {
  const density = window.devicePixelRatio || 1;
  const [pixelWidth, pixelHeight] = [Math.round(scene.width * density), Math.round(scene.height * density)];
  // Setting a size clears the canvas and costs time even if it does not change.
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
    canvas.width = pixelWidth;
    canvas.height = pixelHeight;
    canvas.style.width = `${scene.width}px`;
    canvas.style.height = `${scene.height}px`;
  }
  // An opaque canvas is copied to the screen instead of blended with it.
  const context = canvas.getContext("2d", { alpha: false })!;
  context.setTransform(density, 0, 0, density, 0, 0);
  context.fillStyle = panelColor(canvas, dark);
  context.fillRect(0, 0, scene.width, scene.height);
  drawScene(context, scene, { dark, measure: measureText }, highlight);
}

/** The index of the next cell in the direction of an arrow key. */
export function nextCell(scene: Scene, current: number, key: string): number | null {
  if (key === "Home") return 0;
  if (key === "End") return scene.cells.length - 1;
  const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  const from = scene.cells[current];
  if (!direction || !from) return direction ? 0 : null;
  const [dx, dy] = direction as [number, number];
  let best: { index: number; distance: number } | null = null;
  scene.cells.forEach((cell, index) => {
    const x = cell.x + cell.width / 2 - from.x - from.width / 2;
    const y = cell.y + cell.height / 2 - from.y - from.height / 2;
    const along = x * dx + y * dy;
    const across = Math.abs(x * dy) + Math.abs(y * dx);
    if (along < 0.5 || across > along * 2) return;
    const distance = along + 2 * across;
    if (best === null || distance < best.distance) best = { index, distance };
  });
  return best === null ? current : (best as { index: number }).index;
}
