// The state of the explorer: four texts, in the URL. Everything else follows from them.

import { LabError } from "../shared/lab_error.ts";
import { Spec, makeLayout, parseArray, parseMesh, parseSpec, product, type ArrayType, type Layout } from "../shared/mesh.ts";
import { bytesText, countText, shapeText } from "../shared/units.ts";

export interface ExplorerTexts {
  readonly mesh: string;
  readonly array: string;
  readonly spec: string;
  /** The spec of layout B; null while there is only one layout. */
  readonly to: string | null;
}

export type Field = "mesh" | "array" | "spec" | "to";

/** What was last valid of each text, and the errors of the texts as they are now. */
export interface ExplorerView {
  readonly layout: Layout;
  readonly target: Layout | null;
  readonly errors: Partial<Record<Field, LabError>>;
}

export const DEFAULT_TEXTS: ExplorerTexts = { mesh: "data=2,model=4", array: "bf16[4096, 16384]", spec: "None, model", to: null };
export const MAX_TEXT = 400; // characters of one field, as on the server
const LARGEST_ARRAY = 2n ** 200n; // elements: texts of bytes stay finite

export function readTexts(search: string): ExplorerTexts {
  const parameters = new URLSearchParams(search);
  const read = (name: string) => parameters.get(name)?.slice(0, MAX_TEXT);
  // A form without scripts always sends `to`; empty means no second layout, and P() is the replicated one.
  const to = read("to");
  return {
    mesh: read("mesh") ?? DEFAULT_TEXTS.mesh,
    array: read("array") ?? DEFAULT_TEXTS.array,
    spec: read("spec") ?? (parameters.has("mesh") || parameters.has("array") ? "" : DEFAULT_TEXTS.spec),
    to: to ? to : null,
  };
}

/** The query of a state; brackets and commas stay readable. */
export function writeTexts(texts: ExplorerTexts): string {
  const pairs = [
    ["mesh", texts.mesh],
    ["array", texts.array],
    ["spec", texts.spec],
    ...(texts.to === null ? [] : [["to", texts.to || "P()"]]),
  ];
  return `?${pairs.map(([name, value]) => `${name}=${encodeReadably(value!)}`).join("&")}`;
}

function encodeReadably(text: string): string {
  return encodeURIComponent(text).replace(/%2C|%3D|%3A|%5B|%5D|%20/g, (code) => (code === "%20" ? "+" : decodeURIComponent(code)));
}

/** Computes the view of the texts; parts that are invalid keep what the previous view had. */
export function computeView(texts: ExplorerTexts, previous: ExplorerView | null): ExplorerView {
  const errors: Partial<Record<Field, LabError>> = {};
  const attempt = <T>(field: Field, compute: () => T): T | null => {
    try {
      return compute();
    } catch (error) {
      if (!(error instanceof LabError)) throw error;
      errors[field] = error;
      return null;
    }
  };
  const mesh = attempt("mesh", () => parseMesh(texts.mesh));
  const array = attempt("array", () => checkArray(parseArray(texts.array)));
  const spec = attempt("spec", () => parseSpec(texts.spec));
  const layout = mesh && array && spec && attempt("spec", () => makeLayout(array.shape, spec, mesh, array.dtype));
  if (!layout) return { ...(previous ?? emptyView()), errors };
  let target: Layout | null = null;
  if (texts.to !== null) {
    target = attempt("to", () => makeLayout(array.shape, parseSpec(texts.to!), mesh, array.dtype));
  }
  return { layout, target, errors };
}

export function checkArray(array: ArrayType): ArrayType {
  if (product(array.shape) < LARGEST_ARRAY) return array;
  throw new LabError("layout.invalid_size", "The array has 2**200 elements or more.", {
    fix: "a smaller shape, such as 4096x16384:bf16.",
  });
}

/** What is shown before any text was valid. */
function emptyView(): ExplorerView {
  return computeView(DEFAULT_TEXTS, null);
}

/** The sentence that is read out after each change. */
export function summaryText(layout: Layout): string {
  const each = layout.nDevices === 1 ? "The one device holds" : `Each of ${countText(layout.nDevices, "device")} holds`;
  const shard = `${layout.dtype.short}${shapeText(layout.shardShape)}, ${bytesText(layout.bytesPerDevice)}`;
  const copies =
    layout.nShards === 1 && layout.nDevices > 1
      ? "the full array is replicated on every device"
      : layout.nReplicas === 1
        ? "no copies"
        : `${layout.nReplicas.toLocaleString("en-US")} copies of each shard`;
  return `${each} ${shard}; ${copies}.`;
}

/** The spec with a mesh axis moved to a dimension (null: to no dimension), at a position among its axes. */
export function moveAxis(spec: Spec, rank: number, axis: string, dim: number | null, position = Infinity): Spec {
  const axes = Array.from({ length: rank }, (_, index) => (spec.axes[index] ?? []).filter((name) => name !== axis));
  if (dim !== null) axes[dim]!.splice(Math.min(position, axes[dim]!.length), 0, axis);
  return new Spec(trimmed(axes));
}

function trimmed(axes: readonly (readonly string[])[]): (readonly string[])[] {
  const entries = [...axes];
  while (entries.length && !entries.at(-1)!.length) entries.pop();
  return entries;
}

/** A spec as one types it: `None, (data, model)`. */
export function specText(spec: Spec): string {
  const quote = (name: string) => (/^[\p{L}_][\p{L}\p{N}_.-]*$/u.test(name) ? name : name.includes("'") ? `"${name}"` : `'${name}'`);
  return spec.axes
    .map((names) => (names.length === 0 ? "None" : names.length === 1 ? quote(names[0]!) : `(${names.map(quote).join(", ")})`))
    .join(", ");
}

/** An array as one types it: `bf16[4096, 16384]`. */
export function arrayTypeText(array: ArrayType): string {
  return `${array.dtype.short}[${array.shape.join(", ")}]`;
}

export function meshText(axes: readonly (readonly [string, number])[]): string {
  const quote = (name: string) => (/^[\p{L}_][\p{L}\p{N}_.-]*$/u.test(name) ? name : `'${name}'`);
  return axes.map(([name, size]) => `${quote(name)}=${size}`).join(",") || "()";
}
