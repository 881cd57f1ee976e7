// The device view as a table: one row for each group of devices with equal values.

import type { Value } from "../shared/recording.ts";
import { parseDevices } from "../shared/recording.ts";
import { formatNumber, readNumber } from "./format.ts";
import type { LoadedRecording } from "./loaded_recording.ts";

const MOST_NUMBERS = 64;

export function DeviceTable({ run, value, divergent }: { run: LoadedRecording; value: Value; divergent: ReadonlySet<number> }) {
  const hidden = value.n_groups - value.groups.length;
  return (
    <div class="dbg-table" tabIndex={0} role="region" aria-label="Values per device">
      <table>
        <caption class="visually-hidden">{value.name ?? "value"} {value.type} on each device</caption>
        <thead>
          <tr><th>Devices</th><th class="number">Equal on</th><th class="number">Min</th><th class="number">Mean</th><th class="number">Max</th><th>Values</th></tr>
        </thead>
        <tbody>
          {value.groups.map((group, index) => {
            const isDivergent = parseDevices(group.devices).some((device) => divergent.has(device));
            return (
              <tr key={group.devices} class={value.disagrees || isDivergent ? "is-bad" : ""}>
                <th scope="row">{group.devices}{isDivergent && <span class="badge bad">differs from run A</span>}</th>
                <td class="number">{"\u00d7"}{group.n}</td>
                {[group.min, group.mean, group.max].map((number, at) => <td class="number" key={at}>{cellText(number)}</td>)}
                <td class="numbers">{numbersText(run, value, index)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {hidden > 0 && <p class="muted">{hidden} more groups are not in the recording.</p>}
    </div>
  );
}

function cellText(number: number | string | null): string {
  const read = readNumber(number);
  return read === null ? "" : formatNumber(read);
}

function numbersText(run: LoadedRecording, value: Value, group: number): string {
  const numbers = run.groupNumbers(value, group);
  if (numbers === null) return "";
  const cells = value.groups[group]!.cells!;
  const columns = cells.shape[cells.shape.length - 1] ?? 1;
  const texts = Array.from({ length: Math.min(numbers.length, MOST_NUMBERS) }, (_, index) => formatNumber(numbers[index]!));
  const rows: string[] = [];
  for (let start = 0; start < texts.length; start += columns) rows.push(texts.slice(start, start + columns).join("  "));
  const rest = numbers.length > MOST_NUMBERS ? " \u2026" : "";
  return `${cells.of === "block mean" ? "block means: " : ""}${rows.join("\n")}${rest}`;
}
