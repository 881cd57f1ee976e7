// Tabs of the lab: break the program on purpose, and compare two runs.

import { useEffect } from "preact/hooks";
import { compareRecordings } from "./compare_runs.ts";
import { formatBytes, formatSeconds } from "./format.ts";
import type { LabState } from "./lab_state.ts";
import type { LoadedRecording } from "./loaded_recording.ts";
import { meshText } from "./mesh_grid.ts";

export function BreakPanel({ lab }: { lab: LabState }) {
  const edits = lab.edits.value;
  const hasRun = lab.viewer.run.value !== null;
  useEffect(() => {
    if (hasRun) void lab.loadEdits();
  }, [hasRun, edits === null, lab.isStale.value]);
  if (!hasRun) return <p class="dbg-hint">Run the program first; then break it here.</p>;
  if (edits === null && lab.isStale.value && !lab.isRunning.value) return <p class="dbg-hint">The program has changed: run it, then break it.</p>;
  if (edits === null || edits === "loading") return <p class="dbg-hint">Looking for places to break{"\u2026"}</p>;
  if (edits === "waiting") {
    return (
      <>
        <p class="dbg-hint">The server has too many of your jobs at the moment.</p>
        <button type="button" onClick={() => lab.retryEdits()}>Look for places to break again</button>
      </>
    );
  }
  if (edits.length === 0) return <p class="dbg-hint">There is no collective, axis or branch to break in this program.</p>;
  const current = lab.brokenBy.value?.edit.id;
  return (
    <>
      {lab.isStale.value && !lab.isRunning.value && <p class="dbg-hint">The program has changed: run it, then break it.</p>}
      <p class="dbg-hint">Each button makes one mistake in a copy of the program and runs it. Devices with incorrect values are red, devices that hang say so.</p>
      <ul class="dbg-rows dbg-choices">
        {/* Not "disabled" during the run: that would take the focus away from the button that started it. */}
        {edits.map((edit) => (
          <li key={edit.id}>
            <button type="button" class={`dbg-row${edit.id === current ? " is-current" : ""}`} aria-disabled={lab.isStale.value} onClick={() => !lab.isStale.value && void lab.breakIt(edit)}>
              <span class="dbg-row-title">{edit.label}</span>
              <span class="dbg-row-note">{edit.description}</span>
            </button>
          </li>
        ))}
      </ul>
    </>
  );
}

const NEVER = "never completes";

/** Whether the run hangs: its times are those until then, and would make it look faster than the other run. */
function isBlocked(run: LoadedRecording): boolean {
  return run.steps.some((step) => step.waiting !== null);
}

export function ComparePanel({ lab }: { lab: LabState }) {
  const [before, after] = [lab.viewer.baseline.value, lab.viewer.run.value];
  if (after === null) return <p class="dbg-hint">Run the program first.</p>;
  if (before === null || before === after) {
    return (
      <>
        <p class="dbg-hint">{before === null ? "Keep this run as A, change the program, the specs or the mesh, and run again: the difference appears here." : "This run is A. Change the program, the specs or the mesh, and run again."}</p>
        {before === null && <button type="button" disabled={lab.isStale.value} onClick={() => lab.pin()}>Pin this run as A</button>}
      </>
    );
  }
  const comparison = compareRecordings(before, after);
  return (
    <>
      <TotalsTable before={before} after={after} />
      <h3>Collectives</h3>
      {comparison.collectives.length === 0 ? <p class="dbg-hint">None in either run.</p> : (
        <table class="dbg-compare">
          <thead><tr><th>Collective</th><th class="number">A</th><th class="number">B</th><th class="number">Bytes B {"\u2212"} A</th></tr></thead>
          <tbody>
            {comparison.collectives.map((row) => (
              <tr key={row.label}>
                <td>{row.label}{row.before === 0 && <span class="gained"> gained</span>}{row.after === 0 && <span class="lost"> lost</span>}{row.blockedAfter > 0 && <span class="lost"> never completes</span>}</td>
                <td class="number">{row.before}</td>
                <td class="number">{row.after}</td>
                <td class="number">{signedBytes(row.bytesAfter - row.bytesBefore)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <h3>Results</h3>
      {after.recording.failure !== null && <p class="dbg-hint">Run B ends with an error{isBlocked(after) ? ": its devices hang" : ""}, so there is no result to compare.</p>}
      <ul class="dbg-rows">
        {comparison.outputs.map((output, index) => (
          <li key={index}>
            <button type="button" class="dbg-row" onClick={() => showOutput(lab, index)}>
              <span class="dbg-row-title">{output.name || "result"}</span>
              <span class="dbg-row-note">{outputText(output.devices.length, output.shapesDiffer, before, after)}</span>
            </button>
          </li>
        ))}
      </ul>
      <button type="button" onClick={() => (lab.viewer.baseline.value = null)}>End the comparison</button>
    </>
  );
}

function outputText(count: number, shapesDiffer: boolean, before: LoadedRecording, after: LoadedRecording): string {
  if (before.deviceCount !== after.deviceCount) return "the meshes differ: values are not compared";
  if (shapesDiffer) return "local shapes differ";
  return count === 0 ? "the same on every device" : `differs on ${count} of ${after.deviceCount} devices`;
}

function showOutput(lab: LabState, index: number): void {
  const run = lab.viewer.run.value!;
  const output = run.recording.outputs[index];
  const step = run.steps.findIndex((entry) => output !== undefined && entry.writes.includes(output.value));
  if (step < 0) return;
  lab.viewer.goTo(step);
  lab.viewer.shown.value = { kind: "id", id: output!.value };
}

function TotalsTable({ before, after }: { before: LoadedRecording; after: LoadedRecording }) {
  const [a, b] = [before.recording.totals, after.recording.totals];
  const rows: [string, string, string][] = [
    ["Sent per device", formatBytes(a.wire_bytes), formatBytes(b.wire_bytes)],
    ["Communication", isBlocked(before) ? NEVER : formatSeconds(a.communication_s), isBlocked(after) ? NEVER : formatSeconds(b.communication_s)],
    ["Time per step", isBlocked(before) ? NEVER : formatSeconds(a.step_s), isBlocked(after) ? NEVER : formatSeconds(b.step_s)],
    ["Peak memory", formatBytes(a.peak_bytes), formatBytes(b.peak_bytes)],
  ];
  if (meshText(before.mesh) !== meshText(after.mesh)) rows.unshift(["Mesh", meshText(before.mesh), meshText(after.mesh)]);
  return (
    <table class="dbg-compare">
      <thead><tr><td></td><th class="number">Run A</th><th class="number">Run B</th></tr></thead>
      <tbody>{rows.map(([label, left, right]) => <tr key={label}><th scope="row">{label}</th><td class="number">{left}</td><td class="number">{right}</td></tr>)}</tbody>
    </table>
  );
}

function signedBytes(count: number): string {
  return count === 0 ? "0" : `${count > 0 ? "+" : "\u2212"}${formatBytes(Math.abs(count))}`;
}
