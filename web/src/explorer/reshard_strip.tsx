// From layout A to layout B: a small picture of each layout, with the collective that leads to the next on an arrow.

import { Fragment } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Layout } from "../shared/mesh.ts";
import { costText, reshard, sendersText, type ReshardStep } from "../shared/reshard.ts";
import { bytesText } from "../shared/units.ts";
import { arrayScene } from "./array_scene.ts";
import { axisNameColor, type Scene, type SceneStyle } from "./scene.ts";
import { SceneCanvas } from "./scene_canvas.tsx";

interface Properties {
  readonly before: Layout;
  readonly after: Layout;
  readonly dark: boolean;
}

interface Path {
  readonly before: Layout;
  readonly after: Layout;
  readonly steps: readonly ReshardStep[];
}

/** The search takes up to 20 ms: it waits until a drag or a slider rests, so that the pictures follow at once. */
function usePath(before: Layout, after: Layout): Path {
  const [path, setPath] = useState<Path>(() => ({ before, after, steps: reshard(before, after) }));
  useEffect(() => {
    if (path.before === before && path.after === after) return;
    const timer = setTimeout(() => setPath({ before, after, steps: reshard(before, after) }), 50);
    return () => clearTimeout(timer);
  }, [before, after]);
  return path;
}

export function ReshardStrip({ before: currentBefore, after: currentAfter, dark }: Properties) {
  const { before, after, steps } = usePath(currentBefore, currentAfter);
  const total = steps.reduce((sum, step) => sum + step.sentBytes, 0n);
  const isUneven = steps.some((step) => step.nSenders !== 0 && step.nSenders < before.nDevices);
  return (
    <section class="reshard" aria-label="From layout A to layout B">
      <h2>
        From A to B{" "}
        <span class="muted">
          {steps.length === 0
            ? "no communication: each device already holds its shard"
            : total === 0n
              ? "free: no device sends anything"
              : `each device sends ${isUneven ? "at most " : ""}${bytesText(total)}`}
        </span>
      </h2>
      <div class="reshard-scroll" tabIndex={0} role="group" aria-label="Layouts and the collectives between them">
        <ol class="reshard-steps">
          <li class="thumbnail">
            <Thumbnail layout={before} name="A" dark={dark} />
          </li>
          {steps.map((step, index) => (
            <Fragment key={index}>
              <li class="reshard-step">
                <StepText step={step} dark={dark} />
              </li>
              <li class="thumbnail">
                <Thumbnail layout={step.after} name={index === steps.length - 1 ? "B" : ""} dark={dark} />
              </li>
            </Fragment>
          ))}
          {steps.length === 0 && (
            <Fragment>
              <li class="reshard-step">
                <p class="step-kind">nothing</p>
                <Arrow />
              </li>
              <li class="thumbnail">
                <Thumbnail layout={after} name="B" dark={dark} />
              </li>
            </Fragment>
          )}
        </ol>
      </div>
    </section>
  );
}

function StepText({ step, dark }: { step: ReshardStep; dark: boolean }) {
  const { mesh } = step.before;
  const dims = step.dim === null ? "" : step.toDim === null ? `dim ${step.dim}` : `dim ${step.dim} to dim ${step.toDim}`;
  return (
    <Fragment>
      <p class="step-kind">{step.kind}</p>
      <p class="step-axes">
        over{" "}
        {step.meshAxes.map((name) => (
          <span class="axis-label" key={name}>
            <span class="swatch" style={{ background: axisNameColor(mesh, name, dark) }} />
            {name}
          </span>
        ))}
        {dims && <span class="muted"> {dims}</span>}
      </p>
      <Arrow />
      <p class="step-cost">{step.sentBytes ? bytesText(step.sentBytes) : "free"}</p>
      <p class="step-rule">{stepRule(step)}</p>
    </Fragment>
  );
}

function stepRule(step: ReshardStep): string {
  const rule = costText(step).replace(/^[^:]*: /, "");
  return step.nSenders < step.before.nDevices && step.nSenders ? `${sendersText(step)} ${rule}` : rule;
}

function Arrow() {
  return (
    <svg class="arrow" viewBox="0 0 120 12" aria-hidden="true" preserveAspectRatio="none">
      <path d="M0 6H112" vector-effect="non-scaling-stroke" />
      <path d="M106 1L114 6L106 11" vector-effect="non-scaling-stroke" />
    </svg>
  );
}

function Thumbnail({ layout, name, dark }: { layout: Layout; name: string; dark: boolean }) {
  return (
    <figure>
      <SceneCanvas
        build={(width, style) => thumbnailScene(layout, width, style)}
        inputs={[layout]}
        dark={dark}
        highlight={null}
        label={`Shards of ${layout.spec}`}
      />
      <figcaption>
        {name && <strong>{name} </strong>}
        <code>{`${layout.spec}`}</code> <span class="nowrap">{bytesText(layout.bytesPerDevice)}</span>
      </figcaption>
    </figure>
  );
}

/** The picture of the array without its labels. */
function thumbnailScene(layout: Layout, width: number, style: SceneStyle): Scene {
  const scene = arrayScene(layout, width + 60, 150, style);
  const left = Math.min(...scene.cells.map((cell) => cell.x));
  const top = Math.min(...scene.cells.map((cell) => cell.y));
  const right = Math.max(...scene.cells.map((cell) => cell.x + cell.width));
  const bottom = Math.max(...scene.cells.map((cell) => cell.y + cell.height));
  const scale = Math.min(width / (right - left), 110 / (bottom - top));
  const place = (value: number, origin: number) => (value - origin) * scale;
  const cells = scene.cells.map((cell) => ({
    ...cell,
    x: place(cell.x, left),
    y: place(cell.y, top),
    width: cell.width * scale,
    height: cell.height * scale,
    label: "",
    ...(cell.faces && {
      faces: cell.faces.map((face) => ({
        ...face,
        points: face.points.map((value, index) => place(value, index % 2 ? top : left)),
      })),
    }),
  }));
  return { ...scene, width, height: (bottom - top) * scale + 1, cells, texts: [], swatches: [], note: "" };
}
