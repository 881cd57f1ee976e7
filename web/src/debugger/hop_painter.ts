// Draws the hops of a collective: what each device holds, chunk by chunk, and the chunks on their way.

import { chunkCount, hasResultBuffer, hopTransfers, operandSlot, resultSlot, type Slot } from "../shared/hop_schedule.ts";
import type { Collective } from "../shared/recording.ts";
import type { CanvasTheme } from "./canvas_theme.ts";
import { roundedRect } from "./device_painter.ts";
import { formatNumber } from "./format.ts";
import { originColor } from "./holdings_matrix.ts";
import { chunkNumbers } from "./hop_numbers.ts";
import { chunkOf, collectiveKind } from "./hop_state.ts";
import type { LoadedRecording } from "./loaded_recording.ts";
import type { Tile, TileLayout } from "./tile_layout.ts";

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface HopRequest {
  context: CanvasRenderingContext2D;
  theme: CanvasTheme;
  run: LoadedRecording;
  collective: Collective;
  layout: TileLayout;
  /** 1 is the first hop. */
  hop: number;
  progress: number;
  /** Without motion: arrows instead of moving blocks. */
  isStatic: boolean;
  groups: number[][];
}

export class HopPainter {
  private readonly placeOf = new Map<number, { group: number; position: number }>();
  private readonly tileOf = new Map<number, Tile>();
  private readonly kind;
  private readonly chunks;
  private readonly hasResult;

  constructor(private readonly request: HopRequest) {
    request.groups.forEach((group, index) => group.forEach((device, position) => this.placeOf.set(device, { group: index, position })));
    for (const tile of request.layout.tiles) this.tileOf.set(tile.devices[0] ?? -1, tile);
    this.kind = collectiveKind(request.collective.op);
    this.chunks = chunkCount(request.collective);
    this.hasResult = hasResultBuffer(request.collective);
  }

  /** The chunks that a device holds: before the hop while blocks move, after it when they have arrived. */
  paintTile(tile: Tile): void {
    const place = this.placeOf.get(tile.devices[0] ?? -1);
    if (place === undefined) return;
    const { collective, hop, progress } = this.request;
    const hops = progress >= 1 ? hop : hop - 1;
    for (let chunk = 0; chunk < this.chunks; chunk += 1) {
      this.paintChunk(operandSlot(collective, hops, place.position, chunk), chunk, this.slotBox(tile, chunk, false), place.group);
      if (this.hasResult) this.paintChunk(resultSlot(collective, hops, place.position, chunk), chunk, this.slotBox(tile, chunk, true), place.group);
    }
  }

  private paintChunk(slot: Slot, chunk: number, box: Box, group: number): void {
    this.paintSlot(slot, box, group);
    const { run, collective, groups } = this.request;
    const numbers = chunkNumbers(run, collective, groups[group] ?? [], slot, chunk);
    if (numbers !== null) this.paintNumbers(numbers, box);
  }

  /** The numbers of a small chunk, such as the partial sum so far; in a narrow box from bottom to top. */
  private paintNumbers(numbers: number[], box: Box): void {
    const { context, theme } = this.request;
    const isUpright = box.width < 30;
    const [length, depth] = isUpright ? [box.height, box.width] : [box.width, box.height];
    const line = Math.min(16, (depth - 2) / numbers.length);
    const size = Math.min(12.5, line * 0.82);
    if (size < 7 || length < 26) return;
    const texts = numbers.map((number) => formatNumber(number, Math.max(4, Math.floor(length / (size * 0.62)))));
    context.save();
    context.translate(box.x + box.width / 2, box.y + box.height / 2);
    if (isUpright) context.rotate(-Math.PI / 2);
    context.font = `600 ${size}px ${theme.textFont}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    texts.forEach((text, index) => {
      const y = (index - (texts.length - 1) / 2) * line;
      const width = Math.min(length - 2, context.measureText(text).width + 6);
      // On paper, because the bands below have colors of any lightness.
      context.globalAlpha = 0.82;
      context.fillStyle = theme.panel;
      context.fillRect(-width / 2, y - line / 2 + 0.5, width, line - 1);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.fillText(text, 0, y + 0.5, length - 4);
    });
    context.restore();
  }

  private slotBox(tile: Tile, chunk: number, isResult: boolean): Box {
    const { layout } = this.request;
    const rows = this.hasResult ? 2 : 1;
    const top = tile.y + layout.headerHeight + 4;
    const height = (layout.tileHeight - layout.headerHeight - 8 - (rows - 1) * 3) / rows;
    const gap = this.chunks > 24 ? 0 : this.chunks > 12 ? 1 : 3;
    const width = (layout.tileWidth - 8 - gap * (this.chunks - 1)) / this.chunks;
    return { x: tile.x + 4 + chunk * (width + gap), y: top + (isResult ? height + 3 : 0), width, height };
  }

  /**
   * One chunk. In a reduction it is a meter with one band per device of the group: a band is filled once that device's
   * share is in the sum, so a full meter is a complete sum. Elsewhere the chunk has the color of its origin.
   */
  private paintSlot(slot: Slot, box: Box, group: number): void {
    const { context, theme, collective } = this.request;
    context.fillStyle = theme.sunken;
    roundedRect(context, box.x, box.y, box.width, box.height, Math.min(3, box.width / 3));
    context.fill();
    if (slot.length > 0) {
      context.save();
      context.clip();
      if (this.kind === "reduce" || this.kind === "reduce_scatter") {
        const band = box.height / collective.group_size;
        for (const position of slot) {
          context.fillStyle = this.originColor(group, position);
          context.fillRect(box.x, box.y + box.height - (position + 1) * band, box.width, band + 0.3);
        }
      } else {
        context.fillStyle = this.originColor(group, slot[0]!);
        context.fillRect(box.x, box.y, box.width, box.height);
      }
      context.restore();
    }
    const isComplete = slot.length === collective.group_size && (this.kind === "reduce" || this.kind === "reduce_scatter");
    context.strokeStyle = isComplete ? theme.ink : theme.line;
    context.lineWidth = isComplete ? 1.5 : 1;
    if (box.width > 3) {
      roundedRect(context, box.x, box.y, box.width, box.height, Math.min(3, box.width / 3));
      context.stroke();
    }
  }

  private originColor(group: number, position: number): string {
    const { run, collective, groups, theme } = this.request;
    return originColor(run, collective, groups[group] ?? [], position, theme.isDark);
  }

  paintTransfers(): void {
    const { collective, hop, groups } = this.request;
    const transfers = hopTransfers(collective, hop);
    groups.forEach((group, groupIndex) => {
      for (const transfer of transfers) {
        const from = this.tileOf.get(group[transfer[0]] ?? -1);
        const to = this.tileOf.get(group[transfer[1]] ?? -1);
        if (from === undefined || to === undefined || from === to) continue;
        const chunk = chunkOf(transfer);
        const target = this.kind === "all_to_all" ? transfer[0] : chunk;
        const start = this.slotBox(from, chunk, false);
        const end = this.slotBox(to, target, this.hasResult);
        const slot = operandSlot(collective, hop - 1, transfer[0], chunk);
        this.paintTransfer(start, end, slot, chunk, groupIndex, transfer[3] === "add");
      }
    });
  }

  private paintTransfer(start: Box, end: Box, slot: Slot, chunk: number, group: number, isAdded: boolean): void {
    const { context, theme, progress, isStatic, run, collective, groups } = this.request;
    const hasNumbers = chunkNumbers(run, collective, groups[group] ?? [], slot, chunk) !== null;
    // A number stands in the middle of a chunk: the arrow goes above it.
    const height = hasNumbers ? 0.2 : 0.5;
    const from = { x: start.x + start.width / 2, y: start.y + start.height * height };
    const to = { x: end.x + end.width / 2, y: end.y + end.height * height };
    const bend = bendPoint(from, to);
    const isMoving = progress < 1;
    context.save();
    context.strokeStyle = theme.ink;
    context.globalAlpha = isStatic || !isMoving ? 0.75 : 0.28;
    context.lineWidth = 1.3;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.quadraticCurveTo(bend.x, bend.y, to.x, to.y);
    context.stroke();
    paintArrowHead(context, bend, to, theme.ink);
    context.restore();
    if (!isMoving) return;
    const eased = progress < 0.5 ? 2 * progress * progress : 1 - (2 - 2 * progress) ** 2 / 2;
    const at = curvePoint(from, bend, to, eased);
    const width = Math.max(start.width, 7);
    const box = { x: at.x - width / 2, y: at.y - start.height * height, width, height: start.height };
    context.save();
    context.shadowColor = "rgb(0 0 0 / 35%)";
    context.shadowBlur = 8;
    context.shadowOffsetY = 2;
    context.fillStyle = theme.panel;
    roundedRect(context, box.x, box.y, box.width, box.height, 3);
    context.fill();
    context.restore();
    this.paintChunk(slot, chunk, box, group);
    if (isAdded && width >= 12 && !/max|min/.test(this.request.collective.op)) {
      context.fillStyle = theme.ink;
      context.font = `700 12px ${theme.textFont}`;
      context.textAlign = "center";
      context.fillText("+", box.x - 7, box.y + box.height / 2);
    }
  }
}

interface Point {
  x: number;
  y: number;
}

/** Arcs bow to one side, and long ones further, so that the way back around a ring does not cover the way there. */
function bendPoint(from: Point, to: Point): Point {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const bow = Math.min(46, 10 + length * 0.12) * (dx < 0 || (dx === 0 && dy < 0) ? 1.25 : 1);
  return { x: (from.x + to.x) / 2 + (dy / length) * bow, y: (from.y + to.y) / 2 - (dx / length) * bow };
}

function curvePoint(from: Point, bend: Point, to: Point, t: number): Point {
  const blend = (a: number, b: number, c: number) => (1 - t) ** 2 * a + 2 * (1 - t) * t * b + t ** 2 * c;
  return { x: blend(from.x, bend.x, to.x), y: blend(from.y, bend.y, to.y) };
}

function paintArrowHead(context: CanvasRenderingContext2D, from: Point, to: Point, color: string): void {
  const angle = Math.atan2(to.y - from.y, to.x - from.x);
  context.fillStyle = color;
  context.beginPath();
  context.moveTo(to.x, to.y);
  context.lineTo(to.x - 8 * Math.cos(angle - 0.4), to.y - 8 * Math.sin(angle - 0.4));
  context.lineTo(to.x - 8 * Math.cos(angle + 0.4), to.y - 8 * Math.sin(angle + 0.4));
  context.fill();
}
