// The right column: values by name, collectives, findings. Each row leads to its step and is highlighted with its line.

import type { ComponentChildren } from "preact";
import { useSignal, type Signal } from "@preact/signals";
import { formatBytes, formatSeconds, plural, splitMessage } from "./format.ts";
import { copiesText } from "./loaded_recording.ts";
import { prefersReducedMotion, useDebugger } from "./state.ts";

export interface PanelTab {
  id: string;
  label: string;
  count?: number | null;
  content: () => ComponentChildren;
}

export function Tabs({ tabs, label, selection, onSelect }: { tabs: PanelTab[]; label: string; selection?: Signal<string>; onSelect?: (id: string) => void }) {
  const own = useSignal(tabs[0]?.id ?? "");
  const selected = selection ?? own;
  const current = tabs.find((tab) => tab.id === selected.value) ?? tabs[0];
  const select = (id: string) => {
    selected.value = id;
    onSelect?.(id);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const direction = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (direction === 0) return;
    event.preventDefault();
    event.stopPropagation();
    const index = tabs.findIndex((tab) => tab.id === current?.id);
    const next = tabs[(index + direction + tabs.length) % tabs.length]!;
    select(next.id);
    document.getElementById(`dbg-tab-${next.id}`)?.focus();
  };
  return (
    <>
      <div class="dbg-tabs" role="tablist" aria-label={label} onKeyDown={onKeyDown}>
        {tabs.map((tab) => (
          <button
            type="button"
            role="tab"
            key={tab.id}
            id={`dbg-tab-${tab.id}`}
            aria-selected={tab.id === current?.id}
            aria-controls="dbg-tab-panel"
            tabIndex={tab.id === current?.id ? 0 : -1}
            onClick={() => select(tab.id)}
          >
            {tab.label}{tab.count ? <span class="count">{tab.count}</span> : null}
          </button>
        ))}
      </div>
      <div class="dbg-tab-panel" role="tabpanel" id="dbg-tab-panel" aria-labelledby={`dbg-tab-${current?.id}`} tabIndex={0}>{current?.content()}</div>
    </>
  );
}

export function ValuesPanel() {
  const state = useDebugger();
  const run = state.run.value;
  if (run === null) return null;
  const live = run.liveValues(state.position.value.step);
  const shown = state.shown.value;
  const current = state.value.value?.id;
  return (
    <>
      {run.steps.length === 0 && <p class="dbg-hint">The program did not run, so there are no values.</p>}
      <p class="dbg-hint" hidden={run.steps.length === 0}>Values that have a name at this step. Choose one to keep it on the stage while you step.</p>
      <ul class="dbg-rows">
        {live.map((entry) => {
          const value = run.values[entry.value]!;
          const isWatched = shown.kind === "name" && shown.name === entry.name;
          return (
            <li key={entry.name}>
              <button
                type="button"
                class={`dbg-row${value.id === current ? " is-current" : ""}`}
                aria-pressed={isWatched}
                onClick={() => {
                  state.shown.value = isWatched ? { kind: "follow" } : { kind: "name", name: entry.name };
                  if (!isWatched) revealStage();
                }}
              >
                <span class="dbg-row-title">{entry.name}{isWatched && <span class="badge">watched</span>}</span>
                <code>{value.type}</code>
                <span class="dbg-row-note">
                  {value.disagrees ? <b class="bad">copies disagree</b> : value.partial_over.length ? `partial sum over ${value.partial_over.join(", ")}` : copiesText(run, value)}
                </span>
              </button>
            </li>
          );
        })}
      </ul>
    </>
  );
}

export function CollectivesPanel() {
  const state = useDebugger();
  const run = state.run.value;
  if (run === null) return null;
  const steps = run.collectiveSteps();
  const blocked = steps.filter((index) => run.steps[index]!.waiting !== null).length;
  const totals = run.recording.totals;
  const active = state.activeSteps.value;
  const unrevealed = state.unrevealed.value;
  return (
    <>
      <p class="dbg-hint">{unrevealed.size > 0 ? `${plural(unrevealed.size, "collective")} to predict. What each one sends is here once you have committed a guess.` : steps.length === 0 ? "No device sends anything." : `Per device: ${formatBytes(totals.wire_bytes)} sent in ${plural(steps.length - blocked, "collective")}${blocked > 0 ? `, ${blocked} more never ${blocked === 1 ? "completes" : "complete"}` : ""}, ${formatSeconds(totals.communication_s)} of communication in ${formatSeconds(totals.step_s)}, peak memory ${formatBytes(totals.peak_bytes)}.`}</p>
      <ul class="dbg-rows">
        {steps.map((index) => {
          const step = run.steps[index]!;
          const collective = step.collective!;
          const isCurrent = index === state.position.value.step;
          return (
            <li key={index}>
              <button
                type="button"
                class={`dbg-row${isCurrent ? " is-current" : ""}${active.has(index) || state.hoveredStep.value === index ? " is-active" : ""}`}
                aria-current={isCurrent ? "step" : undefined}
                onClick={() => {
                  state.goTo(index, 0);
                  revealStage();
                }}
                onMouseEnter={() => (state.hoveredStep.value = index)}
                onMouseLeave={() => (state.hoveredStep.value = null)}
              >
                <span class="dbg-row-title">
                  {collective.axes.map((axis) => <i key={axis} class={`axis-dot axis-dot-${run.axisIndex(axis) % 8}`} />)}
                  {unrevealed.has(index) ? "a collective" : collective.op} over {collective.axes.join(", ")}
                </span>
                <span class="dbg-row-figure">{unrevealed.has(index) ? "?" : step.waiting !== null ? <b class="bad">blocked</b> : <>{formatBytes(collective.wire_bytes)}{collective.seconds !== null && <>, {formatSeconds(collective.seconds)}</>}</>}</span>
                <span class="dbg-row-note">{step.line > 0 ? `line ${step.line}` : "outside your file"}{step.phase === "backward" ? ", backward" : ""}</span>
              </button>
            </li>
          );
        })}
      </ul>
    </>
  );
}

export function FindingsPanel() {
  const state = useDebugger();
  const run = state.run.value;
  if (run === null) return null;
  const { findings, failure, notes, truncated } = run.recording;
  const select = (file: number, line: number) => {
    const first = run.lineTotals(file, line)?.steps[0];
    if (first !== undefined) state.goTo(first);
    state.selectedLine.value = line > 0 ? { file, line } : null;
    revealStage();
  };
  return (
    <>
      {failure !== null && (
        <article class="dbg-finding is-error">
          <h3>{splitMessage(failure.message)[0]}</h3>
          {splitMessage(failure.message)[1] && <details><summary>Full message</summary><div class="dbg-message">{splitMessage(failure.message)[1]}</div></details>}
          {failure.where && <p>{failure.where}</p>}
          {failure.fix && <p><b>Try:</b> {failure.fix}</p>}
          {failure.line > 0 && <button type="button" class="link" onClick={() => select(failure.file, failure.line)}>line {failure.line}</button>}
        </article>
      )}
      {findings.map((finding, index) => (
        <article key={index} class={`dbg-finding is-${finding.severity}`}>
          <p class="dbg-finding-code">{finding.severity} <code>{finding.code}</code></p>
          <p>{splitMessage(finding.message)[0]}</p>
          {splitMessage(finding.message)[1] && <details><summary>Full message</summary><div class="dbg-message">{splitMessage(finding.message)[1]}</div></details>}
          {finding.fix && <p><b>Try:</b> {finding.fix}</p>}
          {finding.line > 0 && <button type="button" class="link" onClick={() => select(finding.file, finding.line)}>line {finding.line}</button>}
        </article>
      ))}
      {state.observations.value.map((observation) => (
        <article key={observation.step} class={`dbg-finding is-${observation.severity}`}>
          <p class="dbg-finding-code">seen in this run: {observation.code}</p>
          <p>{observation.message}</p>
          <button type="button" class="link" onClick={() => {
            state.goTo(observation.step);
            revealStage();
          }}>{observation.line > 0 ? `line ${observation.line}` : "show it"}</button>
        </article>
      ))}
      {failure === null && findings.length === 0 && state.observations.value.length === 0 && <p class="dbg-hint">No findings.</p>}
      {[...notes, ...(truncated ? [truncated] : [])].map((note) => <p key={note} class="dbg-hint">{note}</p>)}
    </>
  );
}

/** What the program printed; a line of `jax.debug.print` begins with the device that printed it. */
export function PrintedPanel() {
  const output = useDebugger().run.value?.recording.output?.trimEnd() ?? "";
  if (!output) return <p class="dbg-hint">The program printed nothing.</p>;
  return (
    <section class="dbg-output" aria-label="Printed">
      <p class="dbg-hint">What print and jax.debug.print wrote, in order.</p>
      <pre class="code" tabIndex={0}>{output}</pre>
    </section>
  );
}

/** On a narrow screen the stage is above the lists: show it when a row changes it. */
function revealStage(): void {
  const stage = document.querySelector(".dbg-stage");
  if (stage === null || stage.getBoundingClientRect().bottom > 120) return;
  stage.scrollIntoView({ block: "start", behavior: prefersReducedMotion() ? "auto" : "smooth" });
}
