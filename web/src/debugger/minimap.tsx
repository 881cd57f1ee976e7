// A small picture of all tiles with the visible part framed; a click moves there.

import type { Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { readTheme } from "./canvas_theme.ts";
import type { View } from "./device_painter.ts";
import type { Viewport } from "./device_view.tsx";
import type { TileLayout } from "./tile_layout.ts";

const LONG_SIDE = 120;

export function Minimap({ layout, view, viewport }: { layout: TileLayout; view: View; viewport: Signal<Viewport> }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const scale = LONG_SIDE / Math.max(layout.width, layout.height);
  const [width, height] = [Math.max(24, layout.width * scale), Math.max(24, layout.height * scale)];

  useEffect(() => {
    const element = canvas.current!;
    const theme = readTheme(element);
    element.width = width * 2;
    element.height = height * 2;
    const context = element.getContext("2d")!;
    context.scale(2, 2);
    context.fillStyle = theme.lineStrong;
    for (const tile of layout.tiles) {
      context.fillRect(tile.x * scale, tile.y * scale, Math.max(1, layout.tileWidth * scale - 0.5), Math.max(1, layout.tileHeight * scale - 0.5));
    }
    context.strokeStyle = theme.accent;
    context.lineWidth = 2;
    context.strokeRect((-view.offsetX / view.scale) * scale, (-view.offsetY / view.scale) * scale, (view.width / view.scale) * scale, (view.height / view.scale) * scale);
  });

  const move = (event: PointerEvent) => {
    if (event.buttons !== 1) return;
    viewport.value = { ...viewport.value, centerX: event.offsetX / scale, centerY: event.offsetY / scale };
  };
  return (
    <canvas
      class="dbg-minimap"
      ref={canvas}
      style={{ width: `${width}px`, height: `${height}px` }}
      role="img"
      aria-label="Map of all devices with the visible part framed"
      onPointerDown={move}
      onPointerMove={move}
    />
  );
}
