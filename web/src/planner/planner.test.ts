import assert from "node:assert/strict";
import { test } from "node:test";
import { DEFAULT_FIELDS, adviceBody, planBody, readFields, writeFields } from "./plan_fields.ts";
import { planStatus } from "./plan_status.ts";
import type { PlanView, RowView } from "./plan_view.ts";
import { readModelFiles } from "./plan_requests.ts";
import { sortRows } from "./tensor_table.tsx";
import { squarify } from "./treemap.ts";

test("the query of fields gives the fields back", () => {
  const fields = { ...DEFAULT_FIELDS, strategy: "fsdp+tensor", rules: '[[rules]]\npath = "a&b=c"', remat: "full" };
  assert.deepEqual(readFields(`?${writeFields(fields)}`), fields);
  assert.deepEqual(readFields(""), DEFAULT_FIELDS);
});

test("a body leaves out what is empty, and rules replace the strategy", () => {
  const body = planBody({ ...DEFAULT_FIELDS, batch: "1,024", hardware: "", rules: "[[rules]]" }, null);
  assert.deepEqual(body, { model: "llama3-8b", mesh: "fsdp=8", rules: "[[rules]]", optimizer: "adamw", batch: 1024, sequence: 4096 });
  assert.deepEqual(adviceBody(DEFAULT_FIELDS, null, 512), { model: "llama3-8b", optimizer: "adamw", batch: 16, sequence: 4096, hardware: "tpu-v5p", devices: 512 });
});

test("a treemap fills the rectangle with areas in proportion", () => {
  const sizes = [60, 30, 20, 10, 5, 1];
  const areas = squarify(sizes, 300, 200);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  for (const area of areas) {
    assert.ok(Math.abs(area.width * area.height - (sizes[area.index]! * 60_000) / total) < 1e-6);
    assert.ok(area.x > -1e-9 && area.x + area.width < 300 + 1e-6 && area.y + area.height < 200 + 1e-6);
  }
  assert.equal(areas.length, sizes.length);
  assert.deepEqual(squarify([], 10, 10), []);
});

test("rows are sorted by the column, then by name", () => {
  const row = (path: string, bytes: number) => ({ path, bytes_per_device: bytes }) as RowView;
  const rows = [row("b", 1), row("a", 1), row("c", 2)];
  assert.deepEqual(sortRows(rows, "bytes_per_device", true).map((item) => item.path), ["c", "a", "b"]);
  assert.deepEqual(sortRows(rows, "path", false).map((item) => item.path), ["a", "b", "c"]);
});

test("only the header of a safetensors file is read", async () => {
  const header = '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}';
  const length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(header.length), true);
  const file = new File([length.buffer, header, new Uint8Array(8)], "m.safetensors");
  const model = await readModelFiles([file, new File(["{}"], "config.json")]);
  assert.deepEqual(model, { headers: [{ file: "m.safetensors", header, data_bytes: 8 }], config: "{}" });
  await assert.rejects(readModelFiles([new File(["GGUF...."], "m.safetensors")]), /not a safetensors file/);
});

test("a plan can be pinned only with the settings that it was computed for", () => {
  const plan = { model: "m" } as PlanView;
  const [old, now] = [DEFAULT_FIELDS, { ...DEFAULT_FIELDS, batch: "32" }];
  const shown = { plan, fields: old, upload: null };
  assert.deepEqual(planStatus({ fields: old, upload: null }, shown, null), { plan, planned: { fields: old, plan }, problem: null, isBusy: false });
  assert.deepEqual(planStatus({ fields: now, upload: null }, shown, null), { plan, planned: null, problem: null, isBusy: true });
  const upload = { headers: [], config: "{}" };
  assert.equal(planStatus({ fields: old, upload }, shown, null).isBusy, true);
});

test("a failed plan is not under way, and the plan before cannot be pinned", () => {
  const problem = { message: "no", where: "", fix: "" };
  const shown = { plan: { model: "m" } as PlanView, fields: DEFAULT_FIELDS, upload: null };
  const now = { ...DEFAULT_FIELDS, mesh: "x" };
  const failed = planStatus({ fields: now, upload: null }, shown, { problem, fields: now, upload: null });
  assert.deepEqual(failed, { plan: shown.plan, planned: null, problem, isBusy: false });
  const next = planStatus({ fields: { ...now }, upload: null }, shown, { problem, fields: now, upload: null });
  assert.deepEqual([next.problem, next.isBusy], [problem, true]);
});
