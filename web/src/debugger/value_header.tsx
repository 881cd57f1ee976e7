// Above the stage: which value is shown, its type and state, and the choice among what the step reads and writes.

import type { Signal } from "@preact/signals";
import { effectiveMode } from "./device_view.tsx";
import { copiesText, valueLabel } from "./loaded_recording.ts";
import { resultHop } from "./navigation.ts";
import { useDebugger, type DeviceViewMode } from "./state.ts";

const MOST_CHIPS = 3;

export function ValueHeader({ leading }: { leading: Signal<number[]> }) {
  const state = useDebugger();
  const [run, step, value] = [state.run.value!, state.step.value, state.value.value];
  if (step === null) return null;
  const chip = (id: number, role: string) => {
    const isShown = value?.id === id;
    return (
      <button type="button" key={`${role}${id}`} class="dbg-chip" aria-pressed={isShown} onClick={() => (state.shown.value = { kind: "id", id })}>
        {valueLabel(run, id)}
      </button>
    );
  };
  const shown = state.shown.value;
  // Entering a shard_map renames nothing: its arguments once are enough.
  const isEntry = step.op === "enter shard_map";
  const reads = isEntry ? [] : unique(step.reads);
  return (
    <header class="dbg-value">
      <div class="dbg-value-title">
        <h2>{value === null ? "no value" : (value.name ?? valueLabel(run, value.id))}</h2>
        {value !== null && <code>{value.type}</code>}
        {value !== null && <ValueBadges />}
      </div>
      <div class="dbg-value-choice">
        {shown.kind === "name" && (
          <button type="button" class="dbg-chip is-watch" onClick={() => (state.shown.value = { kind: "follow" })}>
            watching {shown.name}, stop
          </button>
        )}
        <span class="dbg-flow">
          {reads.slice(0, MOST_CHIPS).map((id) => chip(id, "r"))}
          {reads.length > MOST_CHIPS && <span class="muted">and {reads.length - MOST_CHIPS} more</span>}
          {reads.length > 0 && step.writes.length > 0 && <span class="arrow" aria-hidden="true">{"\u2192"}</span>}
          {unique(step.writes).slice(0, MOST_CHIPS + 1).map((id) => chip(id, "w"))}
        </span>
        <ModeChoice />
      </div>
      {value !== null && <SliceSliders leading={leading} />}
    </header>
  );
}

function ValueBadges() {
  const state = useDebugger();
  const [run, value, step] = [state.run.value!, state.value.value!, state.step.value!];
  const isBefore = step.collective !== null && state.position.value.hop < resultHop(step);
  return (
    <span class="dbg-badges">
      {value.partial_over.length > 0 && <span class="badge texture-partial">partial sum over {value.partial_over.join(", ")}</span>}
      {value.disagrees ? (
        <span class="badge bad">{"\u2260"} copies disagree</span>
      ) : (
        <span class="badge">{copiesText(run, value)}</span>
      )}
      {isBefore && state.position.value.hop === 0 && <span class="badge">before the collective</span>}
      {state.divergent.value.size > 0 && <span class="badge bad">{state.divergent.value.size} of {run.deviceCount} devices differ from run A</span>}
    </span>
  );
}

function ModeChoice() {
  const state = useDebugger();
  const mode = effectiveMode(state);
  const option = (name: DeviceViewMode, label: string) => (
    <button type="button" aria-pressed={mode === name} onClick={() => (state.mode.value = name)}>{label}</button>
  );
  return (
    <span class="dbg-segments" role="group" aria-label="Device view">
      {option("mesh", "Mesh")}
      {option("groups", "Groups")}
      {option("table", "Table")}
    </span>
  );
}

/** Arrays of rank 3 and more: one slider for each leading dimension. */
function SliceSliders({ leading }: { leading: Signal<number[]> }) {
  const state = useDebugger();
  const shape = state.value.value!.groups.find((group) => group.cells)?.cells?.shape ?? [];
  if (shape.length <= 2) return null;
  return (
    <div class="dbg-slices">
      {shape.slice(0, -2).map((size, dim) => (
        <label key={dim}>
          dim {dim}
          <input
            type="range"
            min={0}
            max={size - 1}
            value={Math.min(leading.value[dim] ?? 0, size - 1)}
            onInput={(event) => {
              const next = leading.value.slice();
              next[dim] = Number(event.currentTarget.value);
              leading.value = Array.from({ length: shape.length - 2 }, (_, at) => next[at] ?? 0);
            }}
          />
          <output>{Math.min(leading.value[dim] ?? 0, size - 1)} of {size}</output>
        </label>
      ))}
    </div>
  );
}

function unique(ids: number[]): number[] {
  return [...new Set(ids)];
}
