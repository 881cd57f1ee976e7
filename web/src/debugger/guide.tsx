// Three steps for a first visit: to a collective, through it, and what happens when it is broken. Each is a button.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { LabState } from "./lab_state.ts";
import { pmeanText, resultHop } from "./navigation.ts";

const CLOSED_KEY = "shardlab.lab.guide-closed";

export function Guide({ lab }: { lab: LabState }) {
  const state = lab.viewer;
  const isClosed = useSignal(localStorage.getItem(CLOSED_KEY) !== null);
  const done = useSignal<ReadonlySet<number>>(new Set());
  const run = state.run.value;
  const [step, position] = [state.step.value, state.position.value];
  const isAtCollective = step?.collective != null;
  const isAtResult = isAtCollective && position.hop > 0 && position.hop === resultHop(step ?? undefined);
  const first = run?.collectiveSteps()[0];
  const isBroken = lab.brokenBy.value !== null;
  useEffect(() => {
    const now = [...(isAtCollective ? [1] : []), ...(isAtResult ? [2] : []), ...(isBroken ? [3] : [])];
    if (now.some((number) => !done.value.has(number))) done.value = new Set([...done.value, ...now]);
  }, [isAtCollective, isAtResult, isBroken]);
  if (isClosed.value || run === null || first === undefined || (lab.example.value === null && !isBroken)) return null;
  const name = run.steps[first]!.collective!.op;
  const pmean = pmeanText(run.steps[first]!);
  // Blocks of a collective that never completes do not move.
  const isBlocked = run.steps[first]!.waiting !== null;
  const hasHops = !isBlocked || done.value.has(2);
  const current = [1, 2, 3].find((number) => !done.value.has(number) && (hasHops || number !== 2)) ?? 4;
  const close = () => {
    isClosed.value = true;
    localStorage.setItem(CLOSED_KEY, "1");
  };
  const item = (number: number, label: string, act: () => void) => (
    <li class={done.value.has(number) ? "is-done" : number === current ? "is-current" : ""}>
      <button type="button" onClick={act}><i aria-hidden="true">{done.value.has(number) ? "\u2713" : !hasHops && number === 3 ? 2 : number}</i>{label}{done.value.has(number) && <span class="visually-hidden"> (done)</span>}</button>
    </li>
  );
  return (
    <nav class="dbg-guide" aria-label="First steps">
      <ol>
        {item(1, isBlocked ? `See who waits at the ${name}` : `Go to the ${name}${pmean && ` (${pmean})`}`, () => {
          state.pause();
          state.goTo(first, 0);
        })}
        {hasHops && item(2, "Watch the blocks move", () => {
          if (!isAtCollective) state.goTo(first, 0);
          state.play();
        })}
        {item(3, "Break it: see which devices are incorrect or hang", () => {
          state.pause();
          state.panel.value = "break";
          // The panel is far from this button, for the eyes and for the keyboard.
          requestAnimationFrame(() => document.getElementById("dbg-tab-panel")?.focus());
        })}
      </ol>
      <span class="dbg-guide-keys"><kbd>{"\u2190"}</kbd> <kbd>{"\u2192"}</kbd> step, <kbd>space</kbd> plays</span>
      <button type="button" class="quiet" aria-label="Close the first steps" onClick={close}>{"\u00d7"}</button>
    </nav>
  );
}
