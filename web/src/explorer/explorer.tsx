// The layout explorer: what each device holds of one array, computed while one types or drags.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { deviceText } from "../shared/layout_text.ts";
import { parseArray, type Layout, type Spec } from "../shared/mesh.ts";
import { withCommas } from "../shared/python_text.ts";
import { bytesText, devicesText, indexText } from "../shared/units.ts";
import { arrayScene } from "./array_scene.ts";
import { ArrayControls, MeshControls, TextField } from "./controls.tsx";
import type { Highlight } from "./draw_scene.ts";
import { meshScene } from "./mesh_scene.ts";
import { pythonCode } from "./python_code.ts";
import { ReshardStrip } from "./reshard_strip.tsx";
import { SceneCanvas, forgetTextWidths } from "./scene_canvas.tsx";
import type { SceneCell } from "./scene.ts";
import { SpecBoard } from "./spec_board.tsx";
import { computeView, readTexts, specText, summaryText, writeTexts, type ExplorerTexts, type ExplorerView, type Field } from "./state.ts";
import { useDarkTheme } from "./theme.ts";

const EXAMPLES: readonly [string, ExplorerTexts][] = [
  ["Megatron MLP weight", { mesh: "data=2,model=4", array: "bf16[4096, 16384]", spec: "None, model", to: null }],
  ["Batch of activations", { mesh: "data=4,model=2", array: "bf16[32, 2048, 4096]", spec: "data, None, model", to: null }],
  ["FSDP weight, gathered", { mesh: "fsdp=8", array: "bf16[8192, 8192]", spec: "fsdp", to: "P()" }],
  ["Rows to columns", { mesh: "data=2,model=4", array: "f32[4096, 8192]", spec: "model", to: "None, model" }],
  ["Experts", { mesh: "expert=8,model=4", array: "bf16[64, 4096, 2048]", spec: "expert, None, model", to: null }],
  ["KV cache, rank 4", { mesh: "data=4,model=4", array: "bf16[32, 8, 8192, 128]", spec: "data, model", to: null }],
  ["512 devices", { mesh: "fsdp=64,tensor=8", array: "bf16[8192, 28672]", spec: "fsdp, tensor", to: null }],
];

/** A device or a shard that is pointed at. */
type Pointed = { readonly kind: "device" | "shard"; readonly id: number; readonly count: number } | null;

export function Explorer() {
  const [texts, setTexts] = useState<ExplorerTexts>(() => readTexts(location.search));
  const previous = useRef<ExplorerView | null>(null);
  const view = useMemo(() => (previous.current = computeView(texts, previous.current)), [texts]);
  const dark = useDarkTheme();
  const fontVersion = useFontVersion();
  const [pointed, setPointed] = useState<Pointed>(null);
  useUrl(texts, setTexts);

  const change = (part: Partial<ExplorerTexts>) => {
    setPointed(null);
    setTexts((old) => ({ ...old, ...part }));
  };
  const { layout, target, errors } = view;
  const isInvalid = Boolean(errors.mesh || errors.array || errors.spec);
  const highlights = useMemo(() => highlightsOf(layout, pointed), [layout, pointed]);
  const select = (kind: "device" | "shard") => (cell: SceneCell | null) =>
    setPointed((old) => {
      const next = cell ? { kind, id: cell.id, count: cell.count } : null;
      return old?.kind === next?.kind && old?.id === next?.id ? old : next;
    });
  return (
    <div class="explorer">
      <div class="stage">
        <header class="stage-head">
          <h1>Layout explorer</h1>
          <a class="to-settings" href="#settings">
            Array, mesh and specs
          </a>
          <p class="summary" aria-live="polite">
            {isInvalid ? `The ${invalidFields(errors)} not valid; the last valid layout is shown.` : summaryText(layout)}
          </p>
        </header>
        <p class="board-hint">Drag a mesh axis onto an array dimension to shard it. <span class="muted">By keyboard: Tab to an axis, then the arrow keys.</span></p>
        <SpecBoard name="layout A" mesh={layout.mesh} shape={layout.shape} spec={layout.spec} dark={dark} onChange={(spec: Spec) => change({ spec: specText(spec) })} />
        <Facts layout={layout} isStale={isInvalid} />
        <div class={`pictures${isInvalid ? " stale" : ""}`}>
          <figure class="picture">
            <figcaption>
              <h2>Array</h2>
              <code>{`${layout.dtype.short}[${layout.shape.join(", ")}]`}</code>
              <span class="muted">{withCommas(layout.nShards)} shard{layout.nShards === 1 ? "" : "s"}</span>
            </figcaption>
            <SceneCanvas build={(width, style) => arrayScene(layout, width, pictureHeight(width), style)} inputs={[layout, fontVersion]} dark={dark} highlight={highlights.shards} label={`The array with its ${withCommas(layout.nShards)} shards. Arrow keys move from shard to shard.`} onSelect={select("shard")} />
          </figure>
          <figure class="picture">
            <figcaption>
              <h2>Mesh</h2>
              <code>{`${layout.mesh}`}</code>
              <span class="muted">{withCommas(layout.nDevices)} device{layout.nDevices === 1 ? "" : "s"}</span>
            </figcaption>
            <SceneCanvas build={(width, style) => meshScene(layout, width, pictureHeight(width), style)} inputs={[layout, fontVersion]} dark={dark} highlight={highlights.devices} label={`The mesh with its ${withCommas(layout.nDevices)} devices. Arrow keys move from device to device.`} onSelect={select("device")} />
          </figure>
        </div>
        <p class="pointed" aria-live="polite">
          {pointed ? pointedText(layout, pointed) : "Point at a device or a shard, or reach it with Tab and the arrow keys, to see what belongs together."}
        </p>
        <Legend layout={layout} />
        {target && <ReshardStrip before={layout} after={target} dark={dark} />}
        <DeviceTable layout={layout} target={target} />
      </div>
      <aside class="inspector" id="settings" aria-label="Array, mesh and specs">
        <div class="field">
          <label for="example">Start from</label>
          <select
            id="example"
            value=""
            onChange={(event) => {
              const example = EXAMPLES[Number(event.currentTarget.value)];
              if (example) change(example[1]);
            }}
          >
            <option value="">An example …</option>
            {EXAMPLES.map(([name], index) => (
              <option key={name} value={index}>
                {name}
              </option>
            ))}
          </select>
        </div>
        <TextField id="array" label="Array" value={texts.array} help="Such as bf16[4096, 16384] or 4096x16384:bf16." error={errors.array} isMarked={doesNotDivide(errors)} onInput={(array) => change({ array })}>
          <ArrayControls array={errors.array ? layout : parseArray(texts.array)} onChange={(array) => change({ array })} />
        </TextField>
        <TextField id="mesh" label="Mesh" value={texts.mesh} help="Name and size of each axis, such as data=2,model=4." error={errors.mesh} onInput={(mesh) => change({ mesh })}>
          <MeshControls mesh={layout.mesh} dark={dark} onChange={(mesh) => change({ mesh })} />
        </TextField>
        <TextField id="spec" label="Spec A" value={texts.spec} help="One entry for each dimension, such as None, model or (data, model), None." error={errors.spec} onInput={(spec) => change({ spec })} />
        {texts.to === null ? (
          <button type="button" onClick={() => change({ to: "P()" })}>
            Reshard to a layout B
          </button>
        ) : (
          <div class="layout-b">
            <TextField id="to" label="Spec B" value={texts.to} help="The layout to reshard to; P() is replicated." error={errors.to} onInput={(to) => change({ to })} />
            {target && <SpecBoard name="layout B" mesh={layout.mesh} shape={layout.shape} spec={target.spec} dark={dark} onChange={(spec: Spec) => change({ to: specText(spec) || "P()" })} />}
            <p class="layout-b-buttons">
              <button type="button" class="small" onClick={() => change({ spec: texts.to!, to: texts.spec || "P()" })}>
                Swap A and B
              </button>
              <button type="button" class="small" onClick={() => change({ to: null })}>
                Remove B
              </button>
            </p>
          </div>
        )}
        <PythonCode code={pythonCode(layout, target)} />
      </aside>
    </div>
  );
}

function pictureHeight(width: number): number {
  return Math.min(430, Math.max(250, width * 0.8));
}

const FIELD_NAMES: readonly [Field, string][] = [["array", "array"], ["mesh", "mesh"], ["spec", "spec"]];

/** "array is", "array and spec are": the fields that say what is not valid. */
function invalidFields(errors: ExplorerView["errors"]): string {
  const names = FIELD_NAMES.filter(([field]) => errors[field]).map(([, name]) => name);
  if (names.length === 1 && doesNotDivide(errors)) return "array and the spec do not fit together: the layout is";
  return `${names.join(" and the ")} ${names.length === 1 ? "is" : "are"}`;
}

/** Whether the size of a dimension is at fault as much as the spec. */
function doesNotDivide(errors: ExplorerView["errors"]): boolean {
  return errors.spec?.code === "layout.indivisible" || errors.spec?.code === "layout.spec_too_long";
}

function Facts({ layout, isStale }: { layout: Layout; isStale: boolean }) {
  const facts: [string, string, string][] = [
    ["Per device", bytesText(layout.bytesPerDevice), `[${layout.shardShape.join(", ")}]`],
    ["Full array", bytesText(layout.arrayBytes), `${withCommas(layout.nShards)} shard${layout.nShards === 1 ? "" : "s"}`],
    ["On all devices", bytesText(layout.totalBytes), layout.nReplicas > 1 ? `${withCommas(layout.nReplicas)} copies of each shard` : "no copies"],
  ];
  return (
    <dl class={`facts${isStale ? " stale" : ""}`}>
      {facts.map(([name, value, detail]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            {value} <span class="muted">{detail}</span>
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Legend({ layout }: { layout: Layout }) {
  return (
    <p class="legend muted">
      Each mesh axis has a hue; the shade is the coordinate along it.
      {layout.spec.meshAxes.length > 1 && " The first sharding axis fills a box, further ones are bands at its lower edge."}
      {layout.nReplicas > 1 && (
        <span>
          {" "}
          <span class="legend-hatch texture-replica" aria-hidden="true" /> Hatched: copies on several devices.
        </span>
      )}
    </p>
  );
}

/** The first devices as a table: the pictures for people who do not see them. */
function DeviceTable({ layout, target }: { layout: Layout; target: Layout | null }) {
  const [isOpen, setOpen] = useState(false);
  const count = Math.min(layout.nDevices, 64);
  return (
    <details class="device-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>What each device holds, as a table</summary>
      {isOpen && (
        <div class="table-scroll" tabIndex={0} role="region" aria-label="What each device holds">
          <table>
            <thead>
              <tr>
                <th scope="col">Device</th>
                {layout.mesh.names.map((name) => (
                  <th scope="col" key={name}>
                    {name}
                  </th>
                ))}
                <th scope="col">Holds{target ? " in A" : ""}</th>
                {target && <th scope="col">Holds in B</th>}
                <th scope="col">Same shard on</th>
              </tr>
            </thead>
            <tbody>
              {Array.from({ length: count }, (_, device) => (
                <tr key={device}>
                  <th scope="row">{device}</th>
                  {layout.mesh.coordinate(device).map((step, axis) => (
                    <td key={axis}>{step}</td>
                  ))}
                  <td>
                    <code>{indexText(layout.index(device), layout.shape)}</code>
                  </td>
                  {target && (
                    <td>
                      <code>{indexText(target.index(device), target.shape)}</code>
                    </td>
                  )}
                  <td>{layout.nReplicas > 1 ? devicesText(layout.shardDevices(layout.shardCoordinates(device)), layout.nReplicas) : "no other device"}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {layout.nDevices > count && <p class="muted">The first {count} of {withCommas(layout.nDevices)} devices.</p>}
        </div>
      )}
    </details>
  );
}

function PythonCode({ code }: { code: string }) {
  const [message, setMessage] = useState("");
  const copy = async (text: string, what: string) => {
    try {
      await navigator.clipboard.writeText(text);
      setMessage(`${what} copied.`);
    } catch {
      setMessage("The browser does not allow copying: select the text instead.");
    }
    setTimeout(() => setMessage(""), 3000);
  };
  return (
    <section class="python-code">
      <h2>As Python</h2>
      <pre tabIndex={0} aria-label="Python code of this layout">
        <code>{code}</code>
      </pre>
      <p class="copy-buttons">
        <button type="button" class="small" onClick={() => copy(code, "Code")}>
          Copy as Python
        </button>
        <button type="button" class="small" onClick={() => copy(location.href, "Link")}>
          Copy link
        </button>
        <span class="muted" role="status">
          {message}
        </span>
      </p>
    </section>
  );
}

interface Highlights {
  readonly shards: Highlight | null;
  readonly devices: Highlight | null;
}

const NONE: ReadonlySet<number> = new Set();
const MAX_HIGHLIGHTED = 8192;

function highlightsOf(layout: Layout, pointed: Pointed): Highlights {
  if (!pointed) return { shards: null, devices: null };
  const shard = pointed.kind === "device" ? layout.shardCoordinates(pointed.id) : shardCoordinates(layout, pointed.id);
  const devices = new Set<number>();
  for (const device of layout.shardDevices(shard)) {
    devices.add(device);
    if (devices.size === MAX_HIGHLIGHTED) break;
  }
  const shards = new Set([layout.shardNumber(shard)]);
  const main = pointed.kind === "device" ? new Set([pointed.id]) : devices;
  const others = pointed.kind === "device" ? devices : NONE;
  return { shards: { main: shards, others: NONE }, devices: { main, others } };
}

function shardCoordinates(layout: Layout, number: number): number[] {
  const coordinates = new Array<number>(layout.shape.length);
  let rest = number;
  for (let dim = layout.shape.length - 1; dim >= 0; dim--) {
    coordinates[dim] = rest % layout.shardCounts[dim]!;
    rest = Math.floor(rest / layout.shardCounts[dim]!);
  }
  return coordinates;
}

function pointedText(layout: Layout, pointed: NonNullable<Pointed>): string {
  const several = pointed.count > 1 ? ` This box stands for ${withCommas(pointed.count)} neighbors; the first is described.` : "";
  if (pointed.kind === "device") return `${sentences(deviceText(layout, pointed.id))}${several}`;
  const coordinates = shardCoordinates(layout, pointed.id);
  const index = indexText(layout.shardIndex(coordinates), layout.shape);
  return `Shard ${pointed.id}, ${index}, is on ${devicesText(layout.shardDevices(coordinates), layout.nReplicas)}.${several}`;
}

function sentences(lines: readonly string[]): string {
  return lines.map((line) => `${line[0]!.toUpperCase()}${line.slice(1)}.`).join(" ");
}

/** Keeps the URL equal to the state, and the state equal to the URL after Back and Forward. */
function useUrl(texts: ExplorerTexts, setTexts: (texts: ExplorerTexts) => void): void {
  useEffect(() => {
    // Browsers limit how often the URL may change; a drag changes it many times a second.
    const timer = setTimeout(() => history.replaceState(null, "", writeTexts(texts)), 120);
    return () => clearTimeout(timer);
  }, [texts]);
  useEffect(() => {
    const read = () => setTexts(readTexts(location.search));
    addEventListener("popstate", read);
    return () => removeEventListener("popstate", read);
  }, []);
}

/** Changes once the page's font has loaded: widths were measured with another one. */
function useFontVersion(): number {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    void document.fonts.ready.then(() => {
      forgetTextWidths();
      setVersion(1);
    });
  }, []);
  return version;
}
