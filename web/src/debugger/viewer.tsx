// One recording: program, stage, lists, scrubber and timeline. The lab adds an editor and runs around it.

import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { LineDiagnostic } from "../editor/python_editor.ts";
import { watchTheme } from "./canvas_theme.ts";
import { CollectiveCaption } from "./collective_caption.tsx";
import { DeviceView } from "./device_view.tsx";
import { formatBytes, formatSeconds } from "./format.ts";
import { meshText } from "./mesh_grid.ts";
import { CollectivesPanel, FindingsPanel, PrintedPanel, Tabs, ValuesPanel, type PanelTab } from "./side_panels.tsx";
import { SourcePane } from "./source_pane.tsx";
import { DebuggerContext, type DebuggerState } from "./state.ts";
import { Timeline } from "./timeline.tsx";
import { Transport } from "./transport.tsx";

export interface ViewerProps {
  state: DebuggerState;
  text?: Signal<string> | null;
  diagnostics?: Signal<LineDiagnostic[]>;
  onRun?: () => void;
  tabs?: PanelTab[];
  /** Above the stage, such as a notice about a broken copy. */
  notice?: ComponentChildren;
  /** Whether the recording is of an earlier program; then it is dimmed. */
  isStale?: boolean;
  /** Why the lines of a program that is not the recorded one have no marks. */
  unmarkedText?: string;
  /** In place of the stage while there is no recording. */
  placeholder?: ComponentChildren;
}

export function Viewer({ state, text = null, diagnostics, onRun, tabs = [], notice, isStale = false, unmarkedText = "", placeholder }: ViewerProps) {
  useEffect(watchTheme, []);
  const work = useRef<HTMLDivElement>(null);
  // On the document, so that the keys also work before anything has the focus.
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (target === document.body || work.current?.contains(target)) handleKey(event, state);
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
  const run = state.run.value;
  const collectives = run?.collectiveSteps().length ?? 0;
  const findings = (run?.recording.findings.length ?? 0) + (run?.recording.failure ? 1 : 0) + state.observations.value.length;
  const printed = run?.recording.output?.trimEnd() ?? "";
  const printedLines = printed ? printed.split("\n").length : 0;
  const allTabs: PanelTab[] = [
    { id: "values", label: "Values", content: () => <ValuesPanel /> },
    { id: "collectives", label: "Collectives", count: collectives, content: () => <CollectivesPanel /> },
    { id: "findings", label: "Findings", count: findings, content: () => <FindingsPanel /> },
    ...(printedLines > 0 ? [{ id: "printed", label: "Printed", count: printedLines, content: () => <PrintedPanel /> }] : []),
    ...tabs,
  ];
  return (
    <DebuggerContext.Provider value={state}>
      <div class={`dbg-work${isStale ? " is-stale" : ""}`} ref={work}>
        <SourcePane text={text} unmarkedText={unmarkedText} {...(diagnostics ? { diagnostics } : {})} {...(onRun ? { onRun } : {})} />
        <section class="dbg-stage" aria-label="Devices">
          {notice}
          {run === null ? placeholder : isStale && run.steps.length === 0 ? (
            <p class="dbg-empty">There is no recording of this program.</p>
          ) : (
            <><DeviceView /><CollectiveCaption /></>
          )}
        </section>
        <section class="dbg-side" aria-label="Details">
          <Tabs tabs={allTabs} label="Details" selection={state.panel} />
        </section>
        {run !== null && run.steps.length > 0 && (
          <section class="dbg-dock" aria-label="Steps and timeline">
            <Transport />
            <Timeline />
          </section>
        )}
      </div>
    </DebuggerContext.Provider>
  );
}

/** Arrow keys step, space plays; not while typing, and not where a control uses the key itself. */
export function handleKey(event: KeyboardEvent, state: DebuggerState): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || target.shadowRoot !== null) return;
  if (target.closest("textarea, select, input:not([type=range]), [contenteditable=true]")) return;
  const isRange = target instanceof HTMLInputElement && target.type === "range";
  const isButton = target.closest("button, a, summary") !== null;
  // The scrubber's own arrow keys move by stops; ours also pass through the hops of a collective.
  const isScrubber = isRange && target.closest(".dbg-track") !== null;
  if (isRange && !isScrubber) return;
  const keys: Record<string, () => void> = {
    ArrowRight: () => (event.shiftKey ? state.nextStop(1) : state.next()),
    ArrowLeft: () => (event.shiftKey ? state.nextStop(-1) : state.previous()),
    Home: () => state.goTo(state.stops.value[0] ?? 0, 0),
    End: () => state.goTo((state.run.value?.steps.length ?? 1) - 1),
    ...(isButton ? {} : { " ": () => state.togglePlay() }),
  };
  const action = keys[event.key];
  if (action === undefined) return;
  event.preventDefault();
  action();
}

export function RunSummary({ state }: { state: DebuggerState }) {
  const run = state.run.value;
  if (run === null) return null;
  const { totals, hardware } = run.recording;
  return (
    <dl class="dbg-summary" aria-label="This run">
      <div><dt>Mesh</dt><dd>{meshText(run.mesh)}</dd></div>
      <div><dt>Devices</dt><dd>{run.deviceCount}</dd></div>
      <div><dt>Sent per device</dt><dd>{formatBytes(totals.wire_bytes)}</dd></div>
      {totals.step_s > 0 && <div><dt>Time{hardware ? ` on ${hardware}` : ""}</dt><dd>{formatSeconds(totals.step_s)}</dd></div>}
      {totals.peak_bytes > 0 && <div><dt>Peak memory</dt><dd>{formatBytes(totals.peak_bytes)}</dd></div>}
    </dl>
  );
}
