// Bars against the memory of a device, and the treemap of tensors.

import { useEffect, useRef, useState } from "preact/hooks";
import { TEXTURES, axisColor, neutralColor } from "../shared/palette.ts";
import { bytesText } from "../shared/units.ts";
import { planSetting, type PlanView, type RowView } from "./plan_view.ts";
import { squarify } from "./treemap.ts";

interface BarsProperties {
  readonly plan: PlanView;
  readonly pinned: PlanView | null;
  readonly dark: boolean;
}

export function MemoryBars({ plan, pinned, dark }: BarsProperties) {
  const capacities = [plan, pinned].flatMap((view) => (view?.budget ? [view.budget.hbm_bytes] : []));
  const scale = Math.max(plan.bytes_per_device, pinned?.bytes_per_device ?? 0, ...capacities) * 1.02 || 1;
  return (
    <div class="memory-bars">
      {pinned && <MemoryBar view={pinned} name="Pinned" scale={scale} dark={dark} />}
      <MemoryBar view={plan} name={pinned ? "Now" : "Per device"} scale={scale} dark={dark} />
      <KindTable plan={plan} pinned={pinned} dark={dark} />
    </div>
  );
}

function MemoryBar({ view, name, scale, dark }: { view: PlanView; name: string; scale: number; dark: boolean }) {
  const percent = (bytes: number) => `${(100 * bytes) / scale}%`;
  const { budget } = view;
  return (
    <div class="memory-bar">
      <span class="bar-name">
        {name} <strong>{bytesText(view.bytes_per_device)}</strong>
      </span>
      <div class="bar-track" role="img" aria-label={`${name}: ${view.headline}`}>
        {budget && <span class="bar-capacity" style={{ width: percent(budget.hbm_bytes) }} />}
        <span class="bar-fill">
          {view.kinds.map(
            (kind, index) =>
              kind.bytes_per_device > 0 && (
                <span
                  key={kind.kind}
                  class={`bar-part${view.fits === false ? " over" : ""}`}
                  title={`${kind.label}: ${bytesText(kind.bytes_per_device)}`}
                  style={{ width: percent(kind.bytes_per_device), background: kindColor(index, dark) }}
                >
                  {kind.bytes_per_device / scale > 0.12 && <span class="bar-label">{kind.label}</span>}
                </span>
              ),
          )}
        </span>
        {budget && <span class="bar-limit" style={{ left: percent(budget.usable_bytes) }} />}
      </div>
      {budget && (
        <span class="bar-budget muted">
          of {bytesText(budget.hbm_bytes)} ({budget.hardware}); the line is {bytesText(budget.usable_bytes)}, after {Math.round(budget.headroom * 100)} % headroom
        </span>
      )}
    </div>
  );
}

/** Kinds of memory are shades of slate: hues are for mesh axes. */
function kindColor(index: number, dark: boolean): string {
  return neutralColor(index, 5, dark);
}

function KindTable({ plan, pinned, dark }: BarsProperties) {
  const kinds = plan.kinds.filter((kind, index) => kind.bytes_per_device || pinned?.kinds[index]?.bytes_per_device);
  return (
    <table class="kinds">
      <thead>
        <tr>
          <th scope="col">Kind</th>
          {pinned && <th scope="col" class="number">Pinned</th>}
          <th scope="col" class="number">{pinned ? "Now" : "Per device"}</th>
          {pinned && <th scope="col" class="number">Difference</th>}
        </tr>
      </thead>
      <tbody>
        {kinds.map((kind) => {
          const old = pinned?.kinds.find((other) => other.kind === kind.kind)?.bytes_per_device ?? 0;
          return (
            <tr key={kind.kind}>
              <th scope="row">
                <span class="swatch" style={{ background: kindColor(plan.kinds.indexOf(kind), dark) }} /> {kind.label}
                {kind.kind === "activations" && <span class="muted kind-note"> {planSetting(plan)}</span>}
              </th>
              {pinned && <td class="number">{bytesText(old)}</td>}
              <td class="number">{bytesText(kind.bytes_per_device)}</td>
              {pinned && <td class={`number ${differenceClass(kind.bytes_per_device - old)}`}>{differenceText(kind.bytes_per_device - old)}</td>}
            </tr>
          );
        })}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">Total</th>
          {pinned && <td class="number">{bytesText(pinned.bytes_per_device)}</td>}
          <td class="number">{bytesText(plan.bytes_per_device)}</td>
          {pinned && (
            <td class={`number ${differenceClass(plan.bytes_per_device - pinned.bytes_per_device)}`}>
              {differenceText(plan.bytes_per_device - pinned.bytes_per_device)}
            </td>
          )}
        </tr>
      </tfoot>
    </table>
  );
}

export function differenceText(bytes: number): string {
  if (bytes === 0) return "same";
  return `${bytes > 0 ? "+" : "−"}${bytesText(Math.abs(bytes))}`;
}

export function differenceClass(bytes: number): string {
  return bytes === 0 ? "muted" : bytes > 0 ? "more" : "less";
}

const HEIGHT = 300;
const MAX_AREAS = 60;

interface TreemapProperties {
  readonly plan: PlanView;
  readonly dark: boolean;
  readonly selected: string | null;
  readonly onSelect: (path: string | null) => void;
}

export function Treemap({ plan, dark, selected, onSelect }: TreemapProperties) {
  const holder = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(holder.current!);
    return () => observer.disconnect();
  }, []);
  const rows = plan.rows.filter((row) => row.bytes_per_device > 0).slice(0, MAX_AREAS);
  const areas = squarify(rows.map((row) => row.bytes_per_device), width, HEIGHT);
  const { replica } = TEXTURES;
  return (
    <div class="treemap" ref={holder}>
      <svg width={width} height={HEIGHT} role="img" aria-label="The tensors of one device as areas; the table below has the same figures">
        <defs>
          <pattern id="replica-hatch" width={replica.size} height={replica.size} patternUnits="userSpaceOnUse">
            <path d={replica.path} class="hatch-path" stroke-width={replica.strokeWidth} opacity={replica.opacity} />
          </pattern>
        </defs>
        {areas.map((area) => {
          const row = rows[area.index]!;
          const [fill, ...bands] = rowColors(plan, row, dark);
          const isSelected = selected === row.path;
          const label = fittingName(row, area.width, area.height);
          return (
            <g key={row.path} class={`area${isSelected ? " selected" : ""}`} onPointerEnter={() => onSelect(row.path)} onPointerLeave={() => onSelect(null)}>
              <title>{`${row.path}: ${bytesText(row.bytes_per_device)}`}</title>
              <rect x={area.x + 1} y={area.y + 1} width={Math.max(0, area.width - 2)} height={Math.max(0, area.height - 2)} fill={fill} />
              {row.n_replicas > 1 && (
                <rect x={area.x + 1} y={area.y + 1} width={Math.max(0, area.width - 2)} height={Math.max(0, area.height - 2)} fill="url(#replica-hatch)" />
              )}
              {bands.map((color, index) => (
                <rect key={index} x={area.x + 1} y={area.y + area.height - 1 - 6 * (bands.length - index)} width={Math.max(0, area.width - 2)} height={Math.min(6, area.height / 3)} fill={color} />
              ))}
              {label && (
                <text x={area.x + 8} y={area.y + 19} class="area-name">
                  {label}
                </text>
              )}
              {label && area.height > 42 && area.width > 74 && (
                <text x={area.x + 8} y={area.y + 36} class="area-bytes">
                  {bytesText(row.bytes_per_device)}
                </text>
              )}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

/** The hue of the first sharding axis fills the area, further axes are bands; slate is replicated. */
function rowColors(plan: PlanView, row: RowView, dark: boolean): string[] {
  const colors = plan.mesh.flatMap(([name], axis) => (row.mesh_axes.includes(name) ? [axisColor(axis, 1, 3, dark)] : []));
  return colors.length ? colors : [neutralColor(0, 1, dark)];
}

/** The last words of a path that fit: `mlp.up_proj` of `model.layers.*.mlp.up_proj.weight`. */
function fittingName(row: RowView, width: number, height: number): string {
  if (height < 24) return "";
  const words = row.path.replace(/\.(weight|kernel)$/, "").split(/[./]/);
  const room = (width - 14) / 7.2;
  for (let start = 0; start < words.length; start++) {
    const name = words.slice(start).join(".");
    if (name.length <= room) return name;
  }
  return "";
}
