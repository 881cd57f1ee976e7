// The hops of web/ are those of shardlab/collectives/ring_steps.py, and the state after a hop is what its transfers lead to.

import assert from "node:assert/strict";
import { test } from "node:test";
import { contributionCount, hasResultBuffer, hopTotal, hopTransfers, operandSlot, resultSlot, scheduleOf, type Slot } from "./hop_schedule.ts";
import cases from "./hop_schedule_cases.json";
import type { Collective, Schedule, Transfer } from "./recording.ts";

function collective(fields: Partial<Collective>): Collective {
  return {
    op: "psum", axes: ["model"], groups: [], n_groups: 1, group_size: 4, payload_bytes: 0, wire_bytes: 0, seconds: null,
    algorithm: "", schedule: "all_reduce", pairs: [], n_hops: 6, chunk_label: "", reads: 0, writes: 1, ...fields,
  };
}

const SCHEDULES: Schedule[] = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"];

function ofSize(schedule: Schedule, size: number): Collective {
  return collective({ schedule, group_size: size, n_hops: (size - 1) * (schedule === "all_reduce" ? 2 : 1) });
}

test("every hop equals the one of the Python generator", () => {
  assert.ok(cases.length > 20);
  for (const item of cases) {
    const { schedule, pairs, hop, transfers } = item;
    const one = collective({ schedule: schedule as Schedule, group_size: item.group_size, n_hops: item.n_hops, n_chunks: item.n_chunks, pairs: pairs as [number, number, number][] });
    assert.deepEqual(hopTransfers(one, hop).map((transfer) => transfer.join(" ")), transfers, `${schedule} of ${item.group_size}, hop ${hop}`);
  }
});

/** What the devices hold, by applying one hop after the other. All transfers of a hop read the state before it. */
function statesByHops(one: Collective, chunks: number): { operand: Slot[][]; result: Slot[][] }[] {
  const all = (size: number, slot: (index: number) => Slot) => Array.from({ length: size }, (_, index) => slot(index));
  const n = one.group_size;
  let operand = Array.from({ length: n }, (_, at) => all(chunks, (chunk) => (scheduleOf(one) === "all_gather" && chunk !== at ? [] : [at])));
  let result = Array.from({ length: n }, (_, at) => all(chunks, (chunk) => (scheduleOf(one) === "all_to_all" && chunk === at ? [at] : [])));
  const states = [{ operand, result }];
  for (let hop = 1; hop <= hopTotal(one); hop += 1) {
    const [before, received] = [operand, result];
    operand = before.map((row) => row.slice());
    result = received.map((row) => row.slice());
    hopTransfers(one, hop).forEach(([from, to, chunk, kind]: Transfer) => {
      const payload = before[from]![chunk]!;
      if (hasResultBuffer(one)) result[to]![scheduleOf(one) === "all_to_all" ? from : 0] = payload;
      else operand[to]![chunk] = [...(kind === "add" ? before[to]![chunk]! : []), ...payload].sort((a, b) => a - b);
    });
    states.push({ operand, result });
  }
  return states;
}

for (const schedule of SCHEDULES.slice(0, 4)) {
  test(`${schedule}: the state after a hop follows from the transfers`, () => {
    for (const size of [2, 3, 5, 8]) {
      const one = ofSize(schedule, size);
      statesByHops(one, size).forEach(({ operand, result }, hops) => {
        for (let at = 0; at < size; at += 1) {
          for (let chunk = 0; chunk < size; chunk += 1) {
            const place = `${size} devices, ${hops} hops, device ${at}, chunk ${chunk}`;
            assert.deepEqual(operandSlot(one, hops, at, chunk), operand[at]![chunk], place);
            assert.equal(contributionCount(one, hops, at, chunk), operand[at]![chunk]!.length, place);
            if (hasResultBuffer(one)) assert.deepEqual(resultSlot(one, hops, at, chunk), result[at]![chunk], place);
          }
        }
      });
    }
  });
}

test("an all-reduce of fewer elements than devices: the state after a hop follows from the transfers", () => {
  for (const [size, chunks] of [[2, 1], [5, 1], [5, 3], [8, 1]] as const) {
    const one = { ...ofSize("all_reduce", size), n_chunks: chunks };
    const states = statesByHops(one, chunks);
    states.forEach(({ operand }, hops) => {
      for (let at = 0; at < size; at += 1) {
        for (let chunk = 0; chunk < chunks; chunk += 1) {
          assert.deepEqual(operandSlot(one, hops, at, chunk), operand[at]![chunk], `${size} devices, ${hops} hops, device ${at}, chunk ${chunk}`);
        }
      }
    });
    assert.ok(states.at(-1)!.operand.every((row) => row.every((slot) => slot.length === size)));
  }
});

test("after the last hop of an all-reduce of 512 devices every chunk has all contributions", () => {
  const one = ofSize("all_reduce", 512);
  assert.equal(hopTotal(one), 1022);
  for (const at of [0, 255, 511]) for (const chunk of [0, 1, 256, 511]) assert.equal(contributionCount(one, 1022, at, chunk), 512);
  assert.equal(hopTransfers(one, 1022).length, 512);
  assert.deepEqual(hopTransfers(one, 1023), []);
});

test("a broadcast passes the value of device 0 on", () => {
  const one = ofSize("broadcast", 4);
  assert.deepEqual([0, 1, 2, 3].map((at) => resultSlot(one, 2, at, 0)), [[0], [0], [0], []]);
});

test("a permutation moves along its pairs, and unknown pairs have no hops", () => {
  const ring = collective({ op: "ppermute", schedule: "pairs", pairs: [[0, 1, 3], [3, 0, 1]], n_hops: 1 });
  assert.deepEqual(hopTransfers(ring, 1).map(([from, to]) => [from, to]), [[0, 1], [1, 2], [2, 3], [3, 0]]);
  assert.deepEqual([0, 1, 2, 3].map((at) => resultSlot(ring, 1, at, 0)), [[3], [0], [1], [2]]);
  assert.equal(hopTotal(collective({ op: "ppermute", schedule: null, n_hops: 1 })), 0);
});

test("a file of version 1 has the same hops", () => {
  const old = collective({ op: "psum", schedule: undefined, pairs: undefined, hops: [] });
  assert.deepEqual(hopTransfers(old, 4), hopTransfers(collective({}), 4));
  const permuted = collective({ op: "ppermute", schedule: undefined, pairs: undefined, n_hops: 1, hops: [[[0, 2, 0, "copy"], [1, 3, 0, "copy"]]] });
  assert.deepEqual(hopTransfers(permuted, 1), [[0, 2, 0, "copy"], [1, 3, 0, "copy"]]);
});
