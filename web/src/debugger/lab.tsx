// The program lab: the viewer with an editor, runs, breaks and comparisons around it.

import { useSignal } from "@preact/signals";
import { formatBytes, formatSeconds, splitMessage } from "./format.ts";
import { Guide } from "./guide.tsx";
import { BreakPanel, ComparePanel } from "./lab_panels.tsx";
import type { Fault, LabState } from "./lab_state.ts";
import { RunBar } from "./run_bar.tsx";
import { Viewer } from "./viewer.tsx";

export function Lab({ lab }: { lab: LabState }) {
  const isDropping = useSignal(false);
  const tabs = [
    { id: "break", label: "Break it", content: () => <BreakPanel lab={lab} /> },
    { id: "compare", label: "Compare", content: () => <ComparePanel lab={lab} /> },
  ];
  return (
    <div
      class={`dbg${isDropping.value ? " dbg-drop" : ""}`}
      onDragOver={(event) => {
        if (!event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        isDropping.value = true;
      }}
      onDragLeave={() => (isDropping.value = false)}
      onDrop={(event) => {
        isDropping.value = false;
        const file = event.dataTransfer?.files[0];
        if (file === undefined) return;
        event.preventDefault();
        void lab.openFile(file);
      }}
    >
      <RunBar lab={lab} />
      <Guide lab={lab} />
      {lab.isRunning.value && <div class="dbg-progress" />}
      <Viewer
        state={lab.viewer}
        text={lab.text}
        diagnostics={lab.diagnostics}
        onRun={() => void lab.run()}
        tabs={tabs}
        notice={<Notices lab={lab} />}
        isStale={lab.isStale.value}
        unmarkedText={lab.unmarkedText.value}
        placeholder={<Welcome lab={lab} />}
      />
    </div>
  );
}

function Notices({ lab }: { lab: LabState }) {
  const fault = lab.fault.value;
  const broken = lab.brokenBy.value;
  const failure = lab.viewer.run.value?.recording.failure ?? null;
  // The caption below the devices says who waits for whom.
  const isDeadlock = lab.viewer.run.value?.steps.some((step) => step.waiting !== null) ?? false;
  const cancelled = lab.cancelled.value;
  return (
    <>
      {cancelled !== null && !lab.isRunning.value && (
        <div class="dbg-notice is-quiet" role="status">
          <div><strong>Cancelled after {formatSeconds(cancelled.seconds)}.</strong> The program was stopped and its run is not recorded.{(lab.viewer.run.value?.steps.length ?? 0) > 0 && " The devices show the result of an earlier run."}</div>
          <button type="button" onClick={() => (lab.cancelled.value = null)}>Close</button>
        </div>
      )}
      {lab.isStale.value && cancelled === null && (
        <div class="dbg-notice is-quiet" role="status">
          {lab.isRestored.value ? <div><strong>Your changes from before the reload are in the editor.</strong> The devices show the recording that you changed; press Run.</div>
            : lab.isRunning.value ? <div><strong>Running{"\u2026"}</strong> The devices show the result of the previous run.</div>
            : lab.hasFailed.value ? <div><strong>This run failed.</strong> The devices show the result of an earlier run.</div>
            : <div><strong>Result of the previous run.</strong> The program has changed since; press Run.</div>}
          {lab.isRestored.value && <button type="button" onClick={() => lab.returnToRecording()}>Back to the recording</button>}
        </div>
      )}
      {fault !== null && (
        <div class="dbg-notice is-bad" role="alert">
          <div><Message {...fault} /></div>
          <button type="button" onClick={() => (lab.fault.value = null)}>Close</button>
        </div>
      )}
      {broken !== null && (
        <div class="dbg-notice" role="status">
          <div><strong>Broken on purpose:</strong> {broken.edit.label}. {breakOutcome(lab)}</div>
          <button type="button" onClick={() => lab.restore()}>Restore</button>
        </div>
      )}
      {fault === null && cancelled === null && !lab.hasFailed.value && failure !== null && failure.kind !== "truncated" && !isDeadlock && (
        <div class={`dbg-notice is-bad${lab.isStale.value ? " is-earlier" : ""}`} role="status"><div><Message message={failure.message} where="" fix={failure.fix} /></div></div>
      )}
      {lab.meshNote.value && (
        <div class="dbg-notice" role="status">
          <div>{lab.meshNote.value}</div>
          <button type="button" onClick={() => (lab.meshNote.value = "")}>Close</button>
        </div>
      )}
      <ComparisonNotice lab={lab} />
    </>
  );
}

function Message({ message, where, fix }: Fault) {
  const [first, rest] = splitMessage(message);
  return (
    <>
      <strong>{first}</strong>
      {where && <div>{where}</div>}
      {fix && <div>Try: {fix}</div>}
      {rest && <details><summary>Full message</summary><div class="dbg-message">{rest}</div></details>}
    </>
  );
}

function breakOutcome(lab: LabState): string {
  const run = lab.viewer.run.value;
  if (run?.steps.some((step) => step.waiting !== null)) return "Some devices hang forever.";
  if (run?.recording.failure) return "JAX rejects the program.";
  const divergent = lab.viewer.divergent.value.size;
  return divergent > 0 ? `${divergent} of ${run?.deviceCount} devices differ here.` : "Step on to see which devices become incorrect.";
}

function ComparisonNotice({ lab }: { lab: LabState }) {
  const [before, after] = [lab.viewer.baseline.value, lab.viewer.run.value];
  if (before === null || after === null || before === after || lab.brokenBy.value !== null) return null;
  const [a, b] = [before.recording.totals, after.recording.totals];
  return (
    <div class="dbg-notice is-quiet" role="status">
      <div>
        Run B against A: sent {formatBytes(a.wire_bytes)} {"\u2192"} {formatBytes(b.wire_bytes)}, time {formatSeconds(a.step_s)} {"\u2192"} {formatSeconds(b.step_s)}, memory {formatBytes(a.peak_bytes)} {"\u2192"} {formatBytes(b.peak_bytes)}
      </div>
      <button type="button" onClick={() => (lab.viewer.baseline.value = null)}>End the comparison</button>
    </div>
  );
}

function Welcome({ lab }: { lab: LabState }) {
  if (lab.isRunning.value) return <p class="dbg-empty" role="status">The program runs on virtual devices{"\u2026"}</p>;
  return (
    <div class="dbg-welcome">
      <h2>See every device of your program</h2>
      <p>Choose a program, or open or drop your own file. Set a mesh and run it: it runs confined on this machine, on as many virtual devices as the mesh has.</p>
      <p>Record a function <code>step</code> with a function <code>step_args()</code> that returns its arguments, or let the text call the program itself.</p>
      <ul>
        <li>Step through the lines and see what each device holds.</li>
        <li>At a collective, watch which device sends what to which.</li>
        <li>Break it, and see which devices compute incorrect values or hang.</li>
      </ul>
    </div>
  );
}
