// The program on the left: editor or read-only text, with the marks of the current step and the totals of a line.

import { useSignal, useSignalEffect, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { NO_MARKS, type LineMarks } from "../editor/line_markers.ts";
import { PythonEditor, type LineDiagnostic } from "../editor/python_editor.ts";
import { axisColor } from "../shared/palette.ts";
import { themeVersion, readTheme } from "./canvas_theme.ts";
import { formatBytes, formatCount, formatSeconds, plural } from "./format.ts";
import type { LineTotals } from "./loaded_recording.ts";
import { useDebugger, type DebuggerState } from "./state.ts";

export interface SourcePaneProps {
  /** The text being edited; null shows the recorded program only. */
  text: Signal<string> | null;
  /** Why the lines have no marks while the text is not the recorded one. */
  unmarkedText: string;
  diagnostics?: Signal<LineDiagnostic[]>;
  onRun?: () => void;
}

export function SourcePane({ text, unmarkedText, diagnostics, onRun }: SourcePaneProps) {
  const state = useDebugger();
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<PythonEditor | null>(null);
  const file = useSignal(0);
  const sources = state.run.value?.recording.sources ?? [];

  useEffect(() => {
    editor.current = new PythonEditor({
      parent: host.current!,
      text: text?.peek() ?? sources[0]?.text ?? "",
      label: text === null ? "Program" : "Program. Escape, then Tab, leaves the editor.",
      isReadOnly: text === null,
      isWrapped: true,
      onChange: (changed) => text !== null && file.peek() === 0 && (text.value = changed),
      onSelectLine: (line) => selectLine(state, file.peek(), line),
      ...(onRun ? { onRun } : {}),
    });
    return () => editor.current?.destroy();
  }, []);
  // Follow the step into another file of the program.
  useSignalEffect(() => {
    const line = state.activeLine.value;
    if (line !== null && line.file >= 0) file.value = line.file;
  });
  useSignalEffect(() => {
    const run = state.run.value;
    const recorded = run?.recording.sources[file.value]?.text;
    const shown = text !== null && file.value === 0 ? text.value : (recorded ?? "");
    const view = editor.current;
    if (view === null) return;
    view.setText(shown);
    if (text !== null) view.setReadOnly(file.value !== 0);
    themeVersion.value;
    const isRecorded = recorded !== undefined && recorded === shown;
    view.setMarks(isRecorded ? lineMarks(state, file.value, host.current!) : NO_MARKS);
    const own = isRecorded ? recordedDiagnostics(state, file.value) : [];
    view.setDiagnostics([...own, ...(diagnostics?.value ?? [])]);
    const line = state.activeLine.value;
    if (isRecorded && line !== null && line.file === file.value) view.revealLine(line.line);
  });

  const isEdited = text !== null && sources[0] !== undefined && text.value !== sources[0].text;
  return (
    <section class="dbg-source" aria-label="Program">
      {sources.length > 1 && (
        <div class="dbg-files" role="group" aria-label="Files">
          {sources.map((source, index) => (
            <button type="button" key={source.name} aria-pressed={file.value === index} onClick={() => (file.value = index)}>{source.name}</button>
          ))}
        </div>
      )}
      <div class="dbg-editor" ref={host} />
      <LineCard unmarkedText={isEdited ? unmarkedText : null} />
      {text !== null && <p class="dbg-editor-keys"><kbd>Ctrl</kbd> <kbd>Enter</kbd> run {"\u00b7"} <kbd>Esc</kbd> <kbd>Tab</kbd> leave</p>}
    </section>
  );
}

function selectLine(state: DebuggerState, file: number, line: number): void {
  const run = state.run.value;
  const totals = run?.lineTotals(file, line);
  if (!totals) {
    state.selectedLine.value = null;
    return;
  }
  // Steps of the line itself come before steps of the functions that it calls.
  const own = totals.steps.find((index) => run!.steps[index]!.line === line && run!.steps[index]!.file === file);
  state.goTo(own ?? totals.steps[0]!);
  state.selectedLine.value = { file, line };
}

function lineMarks(state: DebuggerState, file: number, element: Element): LineMarks {
  const [run, step, value] = [state.run.value, state.step.value, state.value.value];
  if (run === null || step === null) return NO_MARKS;
  const theme = readTheme(element);
  const collectives: LineMarks["collectives"] = new Map();
  for (const index of run.collectiveSteps()) {
    const collective = run.steps[index]!;
    if (collective.file !== file || collective.line < 1) continue;
    const axis = run.axisIndex(collective.collective!.axes[0] ?? "");
    const totals = run.lineTotals(file, collective.line)!;
    collectives.set(collective.line, {
      color: axis < 0 ? theme.muted : axisColor(axis, 1, 2, theme.isDark),
      label: [...blockedText(totals), ...(totals.collectives.length > 0 ? [`${plural(totals.collectives.length, "collective")}${isUnrevealed(state, totals) ? "" : `, ${formatBytes(totals.wireBytes)} sent per device`}`] : [])].join("; "),
    });
  }
  return {
    current: step.file === file ? step.line : 0,
    callers: step.frames.filter(([frameFile]) => frameFile === file).map(([, line]) => line),
    selected: state.selectedLine.value?.file === file ? state.selectedLine.value.line : 0,
    name: value?.name ?? null,
    type: state.isHidden.value ? null : (value?.type ?? null),
    isBad: value?.disagrees ?? false,
    collectives,
  };
}

/** Whether a figure of a line would answer a question that the reader has not answered yet. */
function isUnrevealed(state: DebuggerState, totals: LineTotals): boolean {
  return totals.steps.some((index) => state.unrevealed.value.has(index));
}

/** "1 collective never completes" */
function blockedText({ blocked }: LineTotals): string[] {
  return blocked.length === 0 ? [] : [`${plural(blocked.length, "collective")} never ${blocked.length === 1 ? "completes" : "complete"}, nothing sent`];
}

function recordedDiagnostics(state: DebuggerState, file: number): LineDiagnostic[] {
  const recording = state.run.value!.recording;
  const severity = (name: string) => (name === "error" || name === "warning" ? name : "info");
  const diagnostics = [...recording.findings, ...state.observations.value]
    .filter((finding) => finding.file === file)
    .map((finding): LineDiagnostic => ({ line: finding.line, severity: severity(finding.severity), message: `${finding.message}\n${finding.fix ? `Try: ${finding.fix}` : ""}`.trim() }));
  const failure = recording.failure;
  if (failure !== null && failure.file === file) diagnostics.push({ line: failure.line, severity: "error", message: `${failure.message}\n${failure.fix ? `Try: ${failure.fix}` : ""}`.trim() });
  return diagnostics;
}

function LineCard({ unmarkedText }: { unmarkedText: string | null }) {
  const state = useDebugger();
  const [run, line] = [state.run.value, state.activeLine.value];
  if (run === null) return <p class="dbg-line-card">Run the program to step through it. <kbd>Ctrl</kbd> <kbd>Enter</kbd> runs it.</p>;
  if (unmarkedText !== null) return <p class="dbg-line-card is-edited">{unmarkedText}</p>;
  const totals = line === null ? null : run.lineTotals(line.file, line.line);
  if (run.steps.length === 0) return <p class="dbg-line-card">The program did not run.</p>;
  if (line === null || totals === null) return <p class="dbg-line-card">This step is outside of your file.</p>;
  const isGuessing = isUnrevealed(state, totals);
  return (
    <p class="dbg-line-card">
      <strong>Line {line.line}</strong>
      <span>{plural(totals.steps.length, "operation")}</span>
      {totals.flops > 0 && <span>{formatCount(totals.flops)} FLOP</span>}
      {blockedText(totals).map((text) => <span key={text} class="bad">{text}</span>)}
      {totals.collectives.length > 0 && <span>{plural(totals.collectives.length, "collective")}{!isGuessing && <>, {formatBytes(totals.wireBytes)} sent</>}</span>}
      {totals.seconds > 0 && !isGuessing && <span>{formatSeconds(totals.seconds)}</span>}
    </p>
  );
}
