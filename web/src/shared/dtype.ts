// Dtypes: a name and the number of bits per element in device memory. A port of sharding/dtype.py.

import { LabError } from "./lab_error.ts";
import { nearestName } from "./nearest.ts";
import { repr, strip, truncate } from "./python_text.ts";

export interface Dtype {
  readonly name: string;
  readonly short: string;
  readonly bits: number;
}

const BY_NAME = buildTable();

/** Returns the dtype of a name, a short name or an alias. */
export function parseDtype(name: string): Dtype {
  const dtype = BY_NAME.get(name) ?? BY_NAME.get(strip(name).toLowerCase());
  if (dtype) return dtype;
  const nearest = nearestName(truncate(name, 80), BY_NAME.keys());
  const suggestion = nearest === null ? "" : ` Did you mean ${repr(nearest)}?`;
  throw new LabError("layout.unknown_dtype", `Unknown dtype ${truncate(repr(name), 80)}.${suggestion}`, {
    fix: "a name such as 'bfloat16' or 'f32'.",
  });
}

/** The bytes of elements, packed: two int4 take one byte. */
export function dtypeBytes(dtype: Dtype, elements: bigint): bigint {
  return (elements * BigInt(dtype.bits) + 7n) / 8n;
}

function buildTable(): Map<string, Dtype> {
  const dtypes: Dtype[] = [];
  const add = (name: string, short: string, bits: number) => dtypes.push({ name, short, bits });
  add("bool", "pred", 8);
  add("bfloat16", "bf16", 16);
  for (const bits of [16, 32, 64]) add(`float${bits}`, `f${bits}`, bits);
  for (const bits of [64, 128]) add(`complex${bits}`, `c${bits}`, bits);
  const integerBits = [1, 2, 4, 8, 16, 32, 64];
  for (const bits of integerBits) {
    add(`int${bits}`, `s${bits}`, bits);
    add(`uint${bits}`, `u${bits}`, bits);
  }
  for (const kind of ["e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]) {
    add(`float8_${kind}`, `f8${kind}`, 8);
  }
  for (const kind of ["e2m3fn", "e3m2fn"]) add(`float6_${kind}`, `f6${kind}`, 6);
  add("float4_e2m1fn", "f4e2m1fn", 4);
  for (const [kind, bits] of [["fry", 64], ["rbg", 128], ["urbg", 128]] as const) {
    add(`key<${kind}>`, `key<${kind}>`, bits);
  }
  const table = new Map<string, Dtype>();
  for (const dtype of dtypes) table.set(dtype.name, dtype).set(dtype.short, dtype);
  const aliases: [string, string][] = [
    ...integerBits.map((bits): [string, string] => [`i${bits}`, `int${bits}`]),
    ["half", "float16"],
    ["single", "float32"],
    ["double", "float64"],
    ["bool_", "bool"],
    ["fp16", "float16"],
    ["fp32", "float32"],
    ["fp64", "float64"],
    ["key", "key<fry>"],
    ["csingle", "complex64"],
    ["cdouble", "complex128"],
  ];
  for (const [alias, name] of aliases) table.set(alias, table.get(name)!);
  return table;
}
