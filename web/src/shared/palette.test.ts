// The colors of palette.ts are those of render/palette.py: both are compared with the same samples.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as palette from "./palette";

type Sample = { axis: number | null; coordinate: number; size: number; light: string; dark: string };
type Samples = { shades: Sample[]; surfaces: Record<string, [string, string]> };

const samples = JSON.parse(readFileSync("../tests/render/palette_samples.json", "utf-8")) as Samples;

test("every sampled coordinate has the color of the Python palette", () => {
  for (const { axis, coordinate, size, light, dark } of samples.shades) {
    const color = (isDark: boolean) =>
      axis === null
        ? palette.neutralColor(coordinate, size, isDark)
        : palette.axisColor(axis, coordinate, size, isDark);
    assert.deepEqual([color(false), color(true)], [light, dark], `axis ${axis}, ${coordinate} of ${size}`);
  }
});

test("text and surfaces have the colors of the Python palette", () => {
  const surfaces = {
    paper: palette.PAPER,
    ink: palette.INK,
    faint: palette.FAINT,
    line: palette.LINE,
    panel: palette.PANEL,
    wrong: palette.WRONG,
    alarm: palette.ALARM,
  };
  assert.deepEqual(surfaces, samples.surfaces);
});

test("a cell has a color for each axis that shards it, in mesh order", () => {
  const mesh = [
    ["data", 2],
    ["model", 4],
  ] as const;
  assert.deepEqual(palette.cellColors(mesh, [1, 3], ["model", "data"], false), [
    palette.axisColor(0, 1, 2, false),
    palette.axisColor(1, 3, 4, false),
  ]);
  assert.deepEqual(palette.cellColors(mesh, [1, 3], ["model"], true), [palette.axisColor(1, 3, 4, true)]);
  assert.deepEqual(palette.cellColors(mesh, [1, 3], [], false), [palette.neutralColor(0, 2, false)]);
});
