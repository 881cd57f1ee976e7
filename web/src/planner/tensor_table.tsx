// The tensors of a plan: sortable, complete names, with what changed since the pinned plan.

import { useMemo, useState } from "preact/hooks";
import { withCommas } from "../shared/python_text.ts";
import { bytesText } from "../shared/units.ts";
import { differenceClass, differenceText } from "./plan_pictures.tsx";
import type { PlanView, RowView } from "./plan_view.ts";

type Column = "path" | "n_tensors" | "bytes_per_device" | "n_replicas" | "wasted_bytes";

const COLUMNS: readonly { column: Column; name: string; isNumber: boolean }[] = [
  { column: "path", name: "Tensor", isNumber: false },
  { column: "n_tensors", name: "Number", isNumber: true },
  { column: "bytes_per_device", name: "Per device", isNumber: true },
  { column: "n_replicas", name: "Copies", isNumber: true },
  { column: "wasted_bytes", name: "Used by copies", isNumber: true },
];

interface Properties {
  readonly plan: PlanView;
  readonly pinned: PlanView | null;
  readonly selected: string | null;
  readonly onSelect: (path: string | null) => void;
}

export function TensorTable({ plan, pinned, selected, onSelect }: Properties) {
  const [sort, setSort] = useState<{ column: Column; isDescending: boolean }>({ column: "bytes_per_device", isDescending: true });
  const rows = useMemo(() => sortRows(plan.rows, sort.column, sort.isDescending), [plan, sort]);
  const pinnedRows = useMemo(() => new Map((pinned?.rows ?? []).map((row) => [row.path, row])), [pinned]);
  const header = ({ column, name, isNumber }: (typeof COLUMNS)[number]) => (
    <th
      scope="col"
      key={column}
      class={isNumber ? "number" : ""}
      aria-sort={sort.column === column ? (sort.isDescending ? "descending" : "ascending") : "none"}
    >
      <button
        type="button"
        class="sort"
        onClick={() => setSort({ column, isDescending: sort.column === column ? !sort.isDescending : isNumber })}
      >
        {name}
        <span aria-hidden="true">{sort.column === column ? (sort.isDescending ? " ↓" : " ↑") : ""}</span>
      </button>
    </th>
  );
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Tensors">
      <table class="tensors">
        <thead>
          <tr>
            {header(COLUMNS[0]!)}
            <th scope="col">Type and sharding</th>
            {COLUMNS.slice(1).map(header)}
            {pinned && <th scope="col" class="number">Since pinned</th>}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.path} class={selected === row.path ? "selected" : ""} onPointerEnter={() => onSelect(row.path)} onPointerLeave={() => onSelect(null)}>
              <th scope="row">
                <code>{row.path}</code>
                {row.numbers && <span class="muted"> {row.numbers}</span>}
                {row.skipped.map((text) => (
                  <span class="skipped" key={text}>
                    {text}
                  </span>
                ))}
              </th>
              <td>
                <code class={changedClass(pinnedRows.get(row.path), row, pinned)}>{breakAtCommas(row.array_type)}</code>
              </td>
              <td class="number">{withCommas(row.n_tensors)}</td>
              <td class="number">{bytesText(row.bytes_per_device)}</td>
              <td class="number">{withCommas(row.n_replicas)}</td>
              <td class="number">{row.wasted_bytes ? bytesText(row.wasted_bytes) : "none"}</td>
              {pinned && <Difference row={row} old={pinnedRows.get(row.path)} />}
            </tr>
          ))}
        </tbody>
      </table>
      {plan.n_rows > plan.rows.length && (
        <p class="muted">
          The largest {plan.rows.length} of {withCommas(plan.n_rows)} groups.
        </p>
      )}
    </div>
  );
}

/** A long type wraps between dimensions, and nowhere else. */
function breakAtCommas(type: string) {
  return type.split(",").flatMap((part, index) => (index === 0 ? [part] : [",", <wbr key={index} />, part]));
}

function Difference({ row, old }: { row: RowView; old: RowView | undefined }) {
  if (!old) return <td class="number more">new</td>;
  const difference = row.bytes_per_device - old.bytes_per_device;
  return <td class={`number ${differenceClass(difference)}`}>{differenceText(difference)}</td>;
}

function changedClass(old: RowView | undefined, row: RowView, pinned: PlanView | null): string {
  return pinned && old && old.array_type !== row.array_type ? "changed" : "";
}

export function sortRows(rows: readonly RowView[], column: Column, isDescending: boolean): RowView[] {
  const sign = isDescending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [left, right] = [a[column], b[column]];
    const order = typeof left === "string" ? left.localeCompare(right as string) : left - (right as number);
    return sign * order || a.path.localeCompare(b.path);
  });
}
