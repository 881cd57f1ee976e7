import assert from "node:assert/strict";
import { test } from "node:test";
import { makeLayout, parseArray, parseMesh, parseSpec } from "./mesh.ts";
import { costText, reshard } from "./reshard.ts";
import { bytesText } from "./units.ts";

function layoutOf(spec: string) {
  const { shape, dtype } = parseArray("8x16");
  return makeLayout(shape, parseSpec(spec), parseMesh("model=4"), dtype);
}

test("columns to rows is one all_to_all, with its rule", () => {
  const [step, ...rest] = reshard(layoutOf("None,model"), layoutOf("model"));
  assert.deepEqual(rest, []);
  assert.equal(step!.kind, "all_to_all");
  assert.equal(costText(step!), "each device sends 96 bytes: (g-1)/g of its shard, on a ring of g=4");
});

test("bytes are rounded as Python rounds them", () => {
  assert.deepEqual([1250, 1150, 1350, 999_960, 96, 1].map(bytesText), ["1.2 kB", "1.1 kB", "1.4 kB", "1.0 MB", "96 bytes", "1 byte"]);
});
