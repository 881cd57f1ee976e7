import assert from "node:assert/strict";
import { test } from "node:test";
import { Spec, makeLayout, parseArray, parseMesh, parseSpec } from "../shared/mesh.ts";
import { arrayScene } from "./array_scene.ts";
import { cellAt } from "./draw_scene.ts";
import { meshScene } from "./mesh_scene.ts";
import { makeBins } from "./scene.ts";
import { nextCell } from "./scene_canvas.tsx";
import { moveByKey } from "./spec_board.tsx";
import { DEFAULT_TEXTS, computeView, moveAxis, readTexts, specText, summaryText, writeTexts } from "./state.ts";

const STYLE = { dark: false, measure: (text: string, size: number) => text.length * size * 0.55 };

function layoutOf(array: string, spec: string, mesh: string) {
  const { shape, dtype } = parseArray(array);
  return makeLayout(shape, parseSpec(spec), parseMesh(mesh), dtype);
}

test("the URL of a state gives the state back", () => {
  for (const to of [null, "P()", "(data, model), None"]) {
    const texts = { mesh: "data=2,'a b'=4", array: "bf16[8, 6]", spec: "None, (data)", to };
    assert.deepEqual(readTexts(writeTexts(texts)), texts);
  }
  assert.deepEqual(readTexts(""), DEFAULT_TEXTS);
  assert.equal(readTexts(`?mesh=${"x".repeat(5000)}`).mesh.length, 400);
});

test("an invalid text keeps the last valid layout and reports where it is wrong", () => {
  const valid = computeView(DEFAULT_TEXTS, null);
  const invalid = computeView({ ...DEFAULT_TEXTS, mesh: "data=2,model=" }, valid);
  assert.equal(invalid.layout, valid.layout);
  assert.equal(invalid.errors.mesh?.code, "layout.invalid_syntax");
  assert.match(invalid.errors.mesh!.where, /\n {22}\^$/);
  const huge = computeView({ ...DEFAULT_TEXTS, array: `${2n ** 127n}x${2n ** 127n}` }, valid);
  assert.equal(huge.errors.array?.code, "layout.invalid_size");
});

test("the summary is one sentence", () => {
  assert.equal(summaryText(layoutOf("bf16[4096, 16384]", "None, model", "data=2,model=4")), "Each of 8 devices holds bf16[4096, 4096], 33.6 MB; 2 copies of each shard.");
  assert.equal(summaryText(layoutOf("f32[8]", "x", "x=4")), "Each of 4 devices holds f32[2], 8 bytes; no copies.");
});

test("an axis moves between dimensions and keeps its place among others", () => {
  const spec = parseSpec("(data, model), None");
  assert.equal(specText(moveAxis(spec, 2, "data", 1)), "model, data");
  assert.equal(specText(moveAxis(spec, 2, "model", 0, 0)), "(model, data)");
  assert.equal(specText(moveAxis(spec, 2, "data", null)), "model");
});

test("arrow keys move an axis through all dimensions and back out", () => {
  let spec = new Spec([]);
  const places: string[] = [];
  for (let step = 0; step < 3; step++) {
    spec = moveByKey(spec, 2, "x", "ArrowRight")!;
    places.push(specText(spec));
  }
  assert.deepEqual(places, ["x", "None, x", ""]);
  assert.equal(specText(moveByKey(new Spec([]), 2, "x", "ArrowLeft")!), "None, x");
  assert.equal(specText(moveByKey(parseSpec("(x, y)"), 2, "y", "ArrowUp")!), "(y, x)");
  assert.equal(moveByKey(parseSpec("(x, y)"), 2, "x", "ArrowUp"), null);
});

test("bins cover every position once", () => {
  for (const count of [1, 7, 64, 1000]) {
    const bins = makeBins(count, 300, 5, 2);
    assert.equal(bins.reduce((total, bin) => total + bin.count, 0), count);
    assert.ok(bins.length <= 60);
  }
});

test("the picture of the array has one cell for each shard, colored as its devices", () => {
  for (const [array, spec, mesh] of [
    ["f32[16]", "x", "x=8"],
    ["f32[16, 12]", "x, y", "x=4,y=3"],
    ["f32[16, 12, 8]", "x, None, y", "x=4,y=2"],
    ["f32[4, 4, 8, 8]", "x, y, z", "x=2,y=2,z=2"],
  ] as const) {
    const layout = layoutOf(array, spec, mesh);
    const scene = arrayScene(layout, 500, 400, STYLE);
    const ids = new Set(scene.cells.map((cell) => cell.id));
    assert.equal(ids.size, layout.nShards, array);
    const devices = new Map(meshScene(layout, 500, 400, STYLE).cells.map((cell) => [cell.id, cell.colors]));
    for (let device = 0; device < layout.nDevices; device++) {
      const shard = layout.shardNumber(layout.shardCoordinates(device));
      const cell = scene.cells.find((candidate) => candidate.id === shard)!;
      assert.deepEqual(cell.colors, devices.get(device), `${array} device ${device}`);
    }
  }
});

test("a summary of many shards stays below a few thousand cells and says so", () => {
  const scene = arrayScene(layoutOf("f32[65536, 65536, 4096]", "a, b, c", "a=64,b=64,c=64"), 500, 400, STYLE);
  assert.ok(scene.cells.length <= 4096);
  assert.match(scene.note, /262,144 shards/);
});

test("the cell under the pointer and the next cell of an arrow key", () => {
  const scene = meshScene(layoutOf("f32[8]", "x", "x=2,y=3"), 500, 400, STYLE);
  for (const [index, cell] of scene.cells.entries()) {
    assert.equal(cellAt(scene, cell.x + cell.width / 2, cell.y + cell.height / 2), scene.cells[index]);
  }
  assert.equal(scene.cells[nextCell(scene, 0, "ArrowRight")!]!.id, 1);
  assert.equal(scene.cells[nextCell(scene, 0, "ArrowDown")!]!.id, 3);
  assert.equal(scene.cells[nextCell(scene, 0, "End")!]!.id, 5);
  assert.equal(nextCell(scene, 0, "a"), null);
});
