import assert from "node:assert/strict";
import { test } from "node:test";
import { parseDevices } from "../shared/recording.ts";
import { cellIndex, decodeCells, differingCells, rowsPerSlice, sliceGrid } from "./cells.ts";
import { compareRecordings } from "./compare_runs.ts";
import { formatBytes, formatNumber, formatSeconds, splitMessage } from "./format.ts";
import { copiesText, groupLabel, LoadedRecording } from "./loaded_recording.ts";
import { coordinateText, deviceCoordinates, meshGrid, parseMesh, placeDevice } from "./mesh_grid.ts";
import { matrixCells } from "./holdings_matrix.ts";
import { loopPlaces } from "./tile_layout.ts";
import { nearestStop, nextPosition, previousPosition, stepRuns, stopSteps } from "./navigation.ts";
import { functionNames, meshNotice, needsMesh } from "./lab_state.ts";
import { observeRun } from "./observations.ts";
import { encodeFloats, fixtureRecording } from "./recording_fixture.ts";
import { DebuggerState } from "./state.ts";
import { tileLayout, waitingLayout } from "./tile_layout.ts";
import { waitingText } from "./device_painter.ts";
import { timeTicks, timeToX, xToTime, zoomScale } from "./timeline_scale.ts";

test("cells decode as the numbers that were encoded", () => {
  const cells = encodeFloats([1.5, -2, 0, Infinity], [2, 2]);
  assert.deepEqual(Array.from(decodeCells(cells)), [1.5, -2, 0, Infinity]);
  const integers = { shape: [1], of: "all", as: "i8", data: btoa("\x01\x00\x00\x00\x01\x00\x00\x00") } as const;
  assert.deepEqual(Array.from(decodeCells({ ...integers, shape: [1] })), [2 ** 32 + 1]);
});

test("a slice fixes the leading dimensions", () => {
  const numbers = Array.from({ length: 24 }, (_, index) => index);
  const grid = sliceGrid(numbers, [2, 3, 2, 2], [1, 2]);
  assert.deepEqual([grid.rows, grid.columns, Array.from(grid.numbers)], [2, 2, [20, 21, 22, 23]]);
  assert.deepEqual(Array.from(sliceGrid([7], [], []).numbers), [7]);
});

test("differing cells ignore equal NaN and mark each other number", () => {
  const grid = (numbers: number[]) => ({ rows: 1, columns: numbers.length, numbers });
  assert.deepEqual(differingCells([grid([1, NaN, 3]), grid([1, NaN, 4]), grid([0, NaN, 3])]), [true, false, true]);
});

test("a notice names the mesh that was used and the one that the program builds", () => {
  const mesh: [string, number][] = [["data", 4]];
  assert.equal(meshNotice({ mesh }, "data=4"), "");
  assert.equal(meshNotice({ mesh }, ""), "");
  const tooFew = "ValueError: Number of devices 8 must be >= the product of mesh_shape (512,)";
  assert.deepEqual([needsMesh(tooFew, " "), needsMesh(tooFew, "data=4"), needsMesh("ValueError: no", "")], [true, false, false]);
  assert.equal(meshNotice({ mesh, program_mesh: [] }, "data=4"), "");
  assert.equal(
    meshNotice({ mesh, program_mesh: [["data", 8]] }, "data=4"),
    "The program builds the mesh data=8; it ran on data=4, the mesh in the field.",
  );
  assert.equal(meshNotice({ mesh }, "rows=2"), "The program builds its own mesh data=4; the mesh field was not used.");
});

test("device sets are ranges", () => {
  assert.deepEqual(parseDevices("0-3,6,8-9"), [0, 1, 2, 3, 6, 8, 9]);
  assert.deepEqual(parseDevices(""), []);
});

test("device numbers are row-major over the mesh", () => {
  const mesh: [string, number][] = [["data", 2], ["model", 3], ["stage", 4]];
  assert.deepEqual(deviceCoordinates(mesh, 17), [1, 1, 1]);
  assert.equal(coordinateText(mesh, 23), "data=1, model=2, stage=3");
  const grid = meshGrid(mesh);
  assert.deepEqual([grid.rows, grid.columns, grid.blockRows, grid.blockColumns], [2, 3, 1, 4]);
  assert.deepEqual(placeDevice(mesh, grid, 17), { row: 1, column: 1, blockRow: 0, blockColumn: 1 });
});

test("a mesh of one axis is one row", () => {
  const grid = meshGrid([["data", 8]]);
  assert.deepEqual(placeDevice([["data", 8]], grid, 5), { row: 0, column: 5, blockRow: 0, blockColumn: 0 });
});

test("mesh text is parsed, or the fault is named", () => {
  assert.deepEqual(parseMesh("data=4, model=2"), [["data", 4], ["model", 2]]);
  assert.match(parseMesh("data=4,data=2") as string, /twice/);
  assert.match(parseMesh("data:4") as string, /name=size/);
  assert.deepEqual(parseMesh(" "), []);
});

test("no two tiles of a layout overlap and every device has one", () => {
  const recording = new LoadedRecording(fixtureRecording());
  for (const mode of ["mesh", "groups"] as const) {
    const layout = tileLayout(recording, recording.values[2]!, mode);
    assert.deepEqual(layout.tiles.flatMap((tile) => tile.devices).sort((a, b) => a - b), [0, 1, 2, 3, 4, 5, 6, 7]);
    for (const first of layout.tiles) {
      for (const second of layout.tiles) {
        if (first === second) continue;
        const apart =
          first.x + layout.tileWidth <= second.x || second.x + layout.tileWidth <= first.x ||
          first.y + layout.tileHeight <= second.y || second.y + layout.tileHeight <= first.y;
        assert.ok(apart);
      }
    }
  }
});

test("stepping by line stops at the last operation of a line and at each collective", () => {
  const { steps } = fixtureRecording();
  assert.deepEqual(stopSteps(steps, { granularity: "operation", overLoops: false }), [0, 1, 2, 3]);
  assert.deepEqual(stopSteps(steps, { granularity: "line", overLoops: false }), [0, 1, 3]);
});

test("stepping over loops leaves out all iterations after the first", () => {
  const { steps } = fixtureRecording();
  const inLoop = [0, 1, 2].map((iteration) => ({ ...steps[0]!, loop: [["scan", 4, iteration, 3]] as [string, number, number, number][] }));
  const program = [steps[0]!, ...inLoop, steps[3]!];
  assert.deepEqual(stopSteps(program, { granularity: "operation", overLoops: true }), [0, 1, 4]);
  assert.deepEqual(stopSteps(program, { granularity: "operation", overLoops: false }), [0, 1, 2, 3, 4]);
});

test("stepping passes through the hops of a collective and back", () => {
  const { steps } = fixtureRecording();
  const stops = [0, 1, 2, 3];
  let position = nextPosition(steps, stops, { step: 0, hop: 0 }, true);
  assert.deepEqual(position, { step: 1, hop: 0 });
  for (let hop = 1; hop <= 7; hop += 1) position = nextPosition(steps, stops, position, true);
  assert.deepEqual(position, { step: 1, hop: 7 });
  assert.deepEqual(nextPosition(steps, stops, position, true), { step: 2, hop: 0 });
  assert.deepEqual(previousPosition(steps, stops, { step: 2, hop: 0 }, true), { step: 1, hop: 7 });
  assert.deepEqual(nextPosition(steps, stops, { step: 0, hop: 0 }, false), { step: 1, hop: 7 });
  assert.deepEqual(nextPosition(steps, stops, { step: 3, hop: 0 }, true), { step: 3, hop: 0 });
});

test("the nearest stop is at or before the step", () => {
  assert.deepEqual([0, 2, 4, 5, 99].map((step) => nearestStop([1, 4, 9], step)), [0, 0, 1, 1, 2]);
});

test("runs of steps are consecutive", () => {
  const { steps } = fixtureRecording();
  assert.deepEqual(stepRuns(steps, (step) => step.line), [
    { key: 5, first: 0, last: 0 },
    { key: 6, first: 1, last: 1 },
    { key: 7, first: 2, last: 3 },
  ]);
});

test("live values are the last ones written under each name", () => {
  const recording = new LoadedRecording(fixtureRecording());
  assert.deepEqual(recording.liveValues(0).map((live) => [live.name, live.value]), [["x", 0], ["w", 1], ["partial", 2]]);
  assert.deepEqual(recording.liveValues(3).map((live) => live.name), ["x", "w", "partial", "y", "loss"]);
});

test("each device belongs to the group that lists it", () => {
  const recording = new LoadedRecording(fixtureRecording());
  assert.deepEqual([0, 3, 4, 7].map((device) => recording.groupOf(recording.values[3]!, device)), [0, 0, 1, 1]);
});

test("a group of devices is named by its coordinates where it is all devices that have them", () => {
  const run = new LoadedRecording(fixtureRecording());
  const labels = (id: number) => run.values[id]!.groups.map((group) => groupLabel(run, run.values[id]!, group));
  assert.deepEqual(labels(1), ["model 0", "model 1", "model 2", "model 3"]);
  assert.deepEqual(labels(3), ["data 0", "data 1"]);
  assert.deepEqual(labels(2)[5], "5");
});

test("a comparison names collectives gained and lost and devices that differ", () => {
  const before = new LoadedRecording(fixtureRecording());
  const broken = fixtureRecording();
  broken.steps[1]!.collective = null;
  broken.values[4]!.groups[1]!.cells = encodeFloats([9], []);
  const comparison = compareRecordings(before, new LoadedRecording(broken));
  assert.deepEqual(comparison.collectives, [{ label: "psum over model", before: 1, after: 0, bytesBefore: 48, bytesAfter: 0, blockedAfter: 0 }]);
  assert.deepEqual(comparison.outputs, [{ name: "loss", devices: [4, 5, 6, 7], shapesDiffer: false }]);
});

test("a comparison counts the collectives of run B that never complete, and their bytes as not sent", () => {
  const blocked = fixtureRecording();
  blocked.steps[1]!.waiting = { devices: "1-7", missing: "0", text: "" };
  const [row] = compareRecordings(new LoadedRecording(fixtureRecording()), new LoadedRecording(blocked)).collectives;
  assert.deepEqual([row!.before, row!.after, row!.blockedAfter, row!.bytesAfter], [1, 1, 1, 0]);
});

test("a collective is unrevealed until it is predicted, whichever step is shown", () => {
  const state = new DebuggerState();
  state.open(fixtureRecording());
  assert.deepEqual([...state.unrevealed.value], []);
  state.isPredicting.value = true;
  const collectives = state.run.value!.collectiveSteps();
  assert.deepEqual([...state.unrevealed.value], collectives);
  state.position.value = { step: collectives[0]!, hop: 0 };
  assert.ok(state.isHidden.value);
  state.reveal();
  assert.deepEqual([...state.unrevealed.value], collectives.slice(1));
});

test("one axis of 512 devices fills a stage that is wider than high", () => {
  const recording = fixtureRecording();
  recording.mesh = [["data", 512]];
  const run = new LoadedRecording(recording);
  const layout = tileLayout(run, run.values[4]!, "mesh", { stage: [500, 150] });
  assert.equal(layout.tiles.length, 512);
  const ratio = layout.width / layout.height;
  assert.ok(ratio > 2 && ratio < 8, `${ratio}`);
});

test("the color scale reaches over devices whose numbers are left out", () => {
  const recording = fixtureRecording();
  const value = recording.values[4]!;
  value.device_means = encodeFloats([1, 1, 1, 1, 1, 1, 1, 5000], [8]);
  const run = new LoadedRecording(recording);
  assert.equal(run.scaleOf(run.values[4]!), 5000);
  assert.equal(run.deviceMean(run.values[4]!, 7), 5000);
});

test("copies that disagree and the first nan are observed once, where they begin", () => {
  const recording = fixtureRecording();
  recording.findings = [];
  recording.values[3]!.groups[1]!.n_nan = 2;
  const observations = observeRun(new LoadedRecording(recording));
  assert.deepEqual(observations.map(({ step, line, code }) => [step, line, code]), [[1, 6, "first nan"], [3, 7, "copies disagree"]]);
  assert.match(observations[0]!.message, /on device 4-7/);
  assert.deepEqual(observeRun(new LoadedRecording(fixtureRecording())), [], "the finding of line 7 says it already");
});

test("the time scale maps both ways, zooms within its limits and has round ticks", () => {
  const scale = { start: 0, end: 2e-3, width: 400 };
  assert.equal(timeToX(scale, 1e-3), 200);
  assert.equal(xToTime(scale, 100), 5e-4);
  const zoomed = zoomScale(scale, 4, 2e-3, 2e-3);
  assert.ok(Math.abs(zoomed.end - 2e-3) < 1e-12 && Math.abs(zoomed.start - 1.5e-3) < 1e-12);
  assert.deepEqual(zoomScale(zoomed, 0.01, 1e-3, 2e-3), scale);
  assert.deepEqual(timeTicks(scale, 4).map((tick) => Math.round(tick * 1e6) + 0), [0, 500, 1000, 1500, 2000]);
});

test("of a long message the first sentence is shown, and the complete one on request", () => {
  assert.deepEqual(splitMessage("Too short."), ["Too short.", ""]);
  const message = `ValueError: argument arrays are not divisible: ${"the passed args[0] is wrong. ".repeat(20)}`;
  assert.deepEqual(splitMessage(message), ["ValueError: argument arrays are not divisible.", message]);
  const ambiguous = `ShardingTypeError: Contracting dimensions are sharded and it is ambiguous. ${"Please specify the output sharding. ".repeat(8)}`;
  assert.deepEqual(splitMessage(ambiguous), [ambiguous, ""]);
});

test("numbers are short", () => {
  assert.deepEqual([0, 2.5, -0.12345, 123456.7, 1e-9, NaN].map((number) => formatNumber(number)), ["0", "2.5", "\u22120.1235", "1.2e+5", "1.0e\u22129", "nan"]);
  assert.deepEqual([1, 1500, 96e9].map(formatBytes), ["1 byte", "1.5 kB", "96.0 GB"]);
  assert.deepEqual([0, 48e-6, 0.0014913].map(formatSeconds), ["0 s", "48 \u00b5s", "1.49 ms"]);
});

test("equal numbers are called replicated only where the type or the spec says so", () => {
  const run = new LoadedRecording(fixtureRecording());
  const equal = { ...run.values[4]!, groups: run.values[4]!.groups.slice(0, 1), n_groups: 1, disagrees: false };
  const text = (fields: Partial<typeof equal>) => copiesText(run, { ...equal, ...fields });
  assert.equal(text({ declared_over: [] }), "replicated \u00d78");
  assert.equal(text({ declared_over: ["data"] }), "equal on all devices \u00d78");
  assert.equal(text({ declared_over: [], spec: "P('data')" }), "equal on all devices \u00d78");
  assert.equal(text({ declared_over: null, spec: "P(None)" }), "replicated \u00d78");
  assert.equal(text({ declared_over: null }), "equal on all devices \u00d78");
  assert.equal(copiesText(run, run.values[0]!), "2 different values");
});

test("functions to record are those at the top level that do not make arguments", () => {
  assert.deepEqual(functionNames("def step(x):\n    def body(x):\n        return x\n\ndef step_args():\n    return ()\nasync def late(): ...\n"), ["step", "late"]);
});

test("every device of a ring stands beside both of its neighbors", () => {
  for (const count of [3, 4, 6, 7, 8, 12, 16]) {
    const [places, columns, rows] = loopPlaces(count, 174, 124, [560, 340]);
    assert.equal(new Set(places.map(String)).size, count);
    assert.ok(places.every(([column, row]) => column >= 0 && column < columns && row >= 0 && row < rows));
    places.forEach(([column, row], index) => {
      const [nextColumn, nextRow] = places[(index + 1) % count]!;
      // An odd number cannot close its loop on a grid: one step is diagonal.
      const reach = Math.abs(column - nextColumn) + Math.abs(row - nextRow);
      assert.ok(reach === 1 || (count % 2 === 1 && reach === 2), `${count}: ${index}`);
    });
  }
});

test("the matrix of an all-reduce starts with one share in each cell and ends complete", () => {
  const collective = fixtureRecording().steps[1]!.collective!;
  const n = collective.group_size;
  assert.deepEqual(new Set(matrixCells(collective, 0)), new Set([1]));
  assert.deepEqual(new Set(matrixCells(collective, collective.n_hops)), new Set([n]));
  // After the reduce-scatter one chunk of each device is complete, another one on each.
  const middle = matrixCells(collective, n - 1);
  const complete = [...middle].flatMap((count, index) => (count === n ? [index] : []));
  assert.equal(new Set(complete.map((index) => index % n)).size, n);
  assert.equal(new Set(complete.map((index) => Math.floor(index / n))).size, n);
});

test("a cell of a folded array has the index of the array", () => {
  const grid = { rows: 6, columns: 4, numbers: [] };
  assert.deepEqual(cellIndex([2, 3, 4], grid, 4, 1), [1, 1, 1]);
  assert.equal(rowsPerSlice([2, 3, 4], grid), 3);
  assert.deepEqual(cellIndex([], { rows: 1, columns: 1, numbers: [] }, 0, 0), []);
  assert.equal(cellIndex([20, 30, 4], grid, 4, 1), null, "rows are blocks of several");
});

test("devices that wait for one that never arrives are tiles by state", () => {
  const run = new LoadedRecording(fixtureRecording());
  const last = run.deviceCount - 1;
  const layout = waitingLayout(run, run.values[2]!, { devices: `1-${last}`, missing: "0" }, [600, 400]);
  assert.deepEqual(layout.tiles.map((tile) => [tile.label, tile.devices.length]), [[`1-${last}`, last], ["0", 1]]);
  const some = waitingLayout(run, run.values[2]!, { devices: "1", missing: "0" }, [600, 400]);
  assert.deepEqual(some.tiles[2]!.devices, Array.from({ length: last - 1 }, (_, index) => index + 2));
  assert.deepEqual([waitingText(true, 511), waitingText(true, 1), waitingText(false, 2)], ["511 wait forever", "waits forever", "2 never arrive"]);
});
