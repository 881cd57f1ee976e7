// Text fields with their errors, sliders for mesh axes, steppers for dimensions.

import type { ComponentChildren } from "preact";
import type { LabError } from "../shared/lab_error.ts";
import type { ArrayType, Mesh } from "../shared/mesh.ts";
import { parseDtype } from "../shared/dtype.ts";
import { axisNameColor } from "./scene.ts";
import { MAX_TEXT, arrayTypeText, meshText } from "./state.ts";

interface TextFieldProperties {
  readonly id: string;
  readonly label: string;
  readonly value: string;
  readonly help: string;
  readonly error: LabError | undefined;
  /** Marked as invalid although the error is written at another field. */
  readonly isMarked?: boolean;
  readonly onInput: (value: string) => void;
  readonly children?: ComponentChildren;
}

export function TextField({ id, label, value, help, error, isMarked = false, onInput, children }: TextFieldProperties) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        name={id}
        class="code"
        type="text"
        value={value}
        maxLength={MAX_TEXT}
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        aria-invalid={error !== undefined || isMarked}
        aria-describedby={`${id}-help${error ? ` ${id}-error` : ""}`}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      {error ? <ErrorText id={`${id}-error`} error={error} /> : null}
      <span id={`${id}-help`} class={error ? "visually-hidden" : "field-help"}>
        {help}
      </span>
      {children}
    </div>
  );
}

/** The parts of an error; a syntax error shows the text with marks below the wrong place. */
function ErrorText({ id, error }: { id: string; error: LabError }) {
  const lines = error.where.split("\n");
  const marked = lines.length > 1 ? lines.slice(1).map((line) => line.slice(9)).join("\n") : null;
  return (
    <div id={id} class="field-error" role="alert">
      <p>{error.what}</p>
      {marked && <pre>{marked}</pre>}
      {error.fix && <p class="field-fix">Try: {error.fix}</p>}
    </div>
  );
}

const MAX_SLIDER = 9; // 2**9 = 512

interface MeshControlsProperties {
  readonly mesh: Mesh;
  readonly dark: boolean;
  readonly onChange: (text: string) => void;
}

export function MeshControls({ mesh, dark, onChange }: MeshControlsProperties) {
  const replace = (index: number, size: number) =>
    onChange(meshText(mesh.axes.map(([name, old], axis) => [name, axis === index ? Math.max(1, size) : old])));
  return (
    <div class="mesh-controls">
      {mesh.axes.map(([name, size], index) => (
        <div class="axis-row" key={name}>
          <span class="axis-label">
            <span class="swatch" style={{ background: axisNameColor(mesh, name, dark) }} />
            {name}
          </span>
          <input
            type="range"
            min={0}
            max={MAX_SLIDER}
            step={1}
            value={Math.min(MAX_SLIDER, Math.log2(size))}
            aria-label={`Size of mesh axis ${name}, as a power of two`}
            aria-valuetext={`${size} devices`}
            onInput={(event) => replace(index, 2 ** Number(event.currentTarget.value))}
          />
          <output>{size}</output>
          <button
            type="button"
            class="quiet small"
            aria-label={`Remove mesh axis ${name}`}
            title="Remove"
            onClick={() => onChange(meshText(mesh.axes.filter((_, axis) => axis !== index)))}
          >
            ×
          </button>
        </div>
      ))}
      <button type="button" class="small" disabled={mesh.names.length >= 6} onClick={() => onChange(meshText([...mesh.axes, [freeName(mesh), 2]]))}>
        Add mesh axis
      </button>
    </div>
  );
}

function freeName(mesh: Mesh): string {
  const names = ["data", "model", "fsdp", "expert", "seq", "stage", "pod"];
  return names.find((name) => !mesh.has(name)) ?? `axis${mesh.names.length}`;
}

const DTYPES = ["f32", "bf16", "f16", "f8e4m3fn", "s32", "s8", "s4", "pred"];

interface ArrayControlsProperties {
  readonly array: ArrayType;
  readonly onChange: (text: string) => void;
}

export function ArrayControls({ array, onChange }: ArrayControlsProperties) {
  const replace = (dim: number, size: bigint) =>
    onChange(arrayTypeText({ ...array, shape: array.shape.map((old, index) => (index === dim ? size : old)) }));
  const dtypes = DTYPES.includes(array.dtype.short) ? DTYPES : [array.dtype.short, ...DTYPES];
  return (
    <div class="array-controls">
      {array.shape.slice(0, 8).map((size, dim) => (
        <span class="stepper" key={dim} role="group" aria-label={`Size of dimension ${dim}`}>
          <span class="slot-name">dim {dim}</span>
          <button type="button" class="small" disabled={size < 2n || size % 2n !== 0n} aria-label={`÷2: halve dimension ${dim}`} title="Halve" onClick={() => replace(dim, size / 2n)}>
            ÷2
          </button>
          <output>{`${size}`}</output>
          <button type="button" class="small" disabled={size > 2n ** 40n} aria-label={`×2: double dimension ${dim}`} title="Double" onClick={() => replace(dim, size * 2n)}>
            ×2
          </button>
        </span>
      ))}
      <span class="array-buttons">
        <label class="inline">
          dtype{" "}
          <select value={array.dtype.short} onChange={(event) => onChange(arrayTypeText({ ...array, dtype: parseDtype(event.currentTarget.value) }))}>
            {dtypes.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <button type="button" class="small" disabled={array.shape.length >= 6} onClick={() => onChange(arrayTypeText({ ...array, shape: [...array.shape, 64n] }))}>
          Add dimension
        </button>
        <button type="button" class="small" disabled={array.shape.length === 0} onClick={() => onChange(arrayTypeText({ ...array, shape: array.shape.slice(0, -1) }))}>
          Remove last
        </button>
      </span>
    </div>
  );
}
