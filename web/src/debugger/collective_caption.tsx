// Below the stage at a collective: what it is, what it costs, and the stepper through its hops.

import { chunkCount, hopTransfers, operandSlot } from "../shared/hop_schedule.ts";
import { parseDevices } from "../shared/recording.ts";
import { formatBytes, formatNumber, formatSeconds, plural } from "./format.ts";
import { chunkNumbers } from "./hop_numbers.ts";
import { phaseText } from "./collective_overview.tsx";
import { chunkOf, collectiveKind, transferText } from "./hop_state.ts";
import { pmeanText, resultHop } from "./navigation.ts";
import { LARGE_GROUP, useDebugger } from "./state.ts";

export function CollectiveCaption() {
  const state = useDebugger();
  const [run, step] = [state.run.value, state.step.value];
  if (run === null || step === null) return null;
  if (step.waiting !== null) {
    const { devices, missing, text } = step.waiting;
    return (
      <div class="dbg-caption is-bad">
        <p><strong>Deadlock: {deviceText(devices)} {parseDevices(devices).length === 1 ? "waits" : "wait"} at line {step.line} for {deviceText(missing)}.</strong></p>
        <p>{text}</p>
        {run.recording.failure?.fix && <p>Try: {run.recording.failure.fix}</p>}
      </div>
    );
  }
  const collective = step.collective;
  if (collective === null || state.isHidden.value) return null;
  const last = resultHop(step);
  const { hop } = state.position.value;
  const group = state.collectiveGroup.value;
  const transfers = hop >= 1 && hop < last ? hopTransfers(collective, hop) : [];
  const transfer = transfers[0];
  // Fewer elements than devices: not every device sends in every hop.
  const isUneven = collectiveKind(collective.op) === "reduce" && chunkCount(collective) < collective.group_size;
  const numbers = transfer && chunkNumbers(run, collective, group, operandSlot(collective, hop - 1, transfer[0], chunkOf(transfer)), chunkOf(transfer));
  const numbersText = numbers ? numbers.map((number) => formatNumber(number)).join(", ") : "";
  return (
    <div class="dbg-caption">
      <p class="dbg-facts">
        <strong>{collective.op} over {collective.axes.join(", ")}</strong>
        {pmeanText(step) && <span title="JAX runs a pmean as a psum; the division is a separate step.">{pmeanText(step)}</span>}
        <span>{plural(collective.n_groups, "group")} of {collective.group_size}</span>
        <span>{collective.algorithm}, {plural(collective.n_hops, "hop")}</span>
        <span>{formatBytes(collective.wire_bytes)} sent per device{isUneven && " on average"}</span>
        <span>{collective.seconds === null ? "choose a chip for the time" : `${formatSeconds(collective.seconds)}${run.recording.hardware ? ` on ${run.recording.hardware}` : ""}`}</span>
      </p>
      {last > 0 && (
        <div class="dbg-hops">
          <label>
            <span class="visually-hidden">Hop</span>
            <input type="range" min={0} max={last} value={hop} aria-valuetext={hopLabel(hop, last)} onInput={(event) => state.goTo(state.position.value.step, Number(event.currentTarget.value))} />
          </label>
          <span class="dbg-hop-label">{hopLabel(hop, last)}</span>
          {state.showsOneGroup.value && collective.groups.length > 1 && (
            <label class="dbg-select"><span>Group</span>
              <select value={state.selectedGroup.value} onChange={(event) => (state.selectedGroup.value = Number(event.currentTarget.value))}>
                {collective.groups.map((members, index) => <option key={index} value={index}>{index + 1} of {collective.n_groups}: {members[0]}, {members[1]}, {"\u2026"}</option>)}
              </select>
            </label>
          )}
          <span class="dbg-transfer">{transfer && collective.group_size > LARGE_GROUP ? phaseText(collective, hop) : transfer ? `${transferText(transfer, group, collective, numbersText)}${transfers.length > 1 ? "; the others likewise" : ""}` : hop === 0 ? "Step forward to move the blocks." : "Every device has its result."}</span>
        </div>
      )}
      {last === 0 && collective.group_size > 1 && <p class="muted">The compiler chooses who sends to whom: the hops are not shown.</p>}
    </div>
  );
}

function deviceText(devices: string): string {
  return `device${parseDevices(devices).length === 1 ? "" : "s"} ${devices.replaceAll(",", ", ")}`;
}

function hopLabel(hop: number, last: number): string {
  return hop === 0 ? "before" : hop === last ? "result" : `hop ${hop} of ${last - 1}`;
}
