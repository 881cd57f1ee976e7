"""Hops are computed from the schedule of a collective; the page computes the same ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.collectives.ring_steps import count_chunks, count_steps, ring_steps
from shardlab.recording.recording import Recording
from shardlab.recording.step_records import RecordedCollective, expand_pairs, pair_runs

CASES = Path(__file__).parents[2] / "web" / "src" / "shared" / "hop_schedule_cases.json"
ROTATION = [(device, (device + 1) % 5) for device in range(5)]
OPEN_CHAIN = [(device, device + 1) for device in range(4)]
SWAP = [(0, 2), (2, 0)]


def make_collective(schedule, group_size, pairs=(), n_elements=None):
    return RecordedCollective(
        op="psum",
        axes=("model",),
        groups=(),
        n_groups=1,
        group_size=group_size,
        payload_bytes=0,
        wire_bytes=0,
        seconds=None,
        algorithm="",
        schedule=schedule,
        pairs=pair_runs(pairs),
        n_hops=count_steps(schedule, group_size),
        n_chunks=count_chunks(schedule, group_size, n_elements),
        chunk_label="",
        reads=0,
        writes=1,
    )


def make_cases():
    """Return every hop of small groups, and some hops of a large one."""
    collectives = [
        (make_collective(schedule, size), None)
        for schedule in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
        for size in (2, 3, 8)
    ]
    collectives += [
        (make_collective("pairs", 5, pairs), None) for pairs in (ROTATION, OPEN_CHAIN, SWAP)
    ]
    collectives += [(make_collective("all_reduce", 64), (1, 63, 64, 126))]
    # Fewer elements than devices.
    collectives += [(make_collective("all_reduce", 5, n_elements=n), None) for n in (1, 3)]
    return [
        {
            "schedule": collective.schedule,
            "group_size": collective.group_size,
            "n_hops": collective.n_hops,
            "n_chunks": collective.n_chunks,
            "pairs": [list(run) for run in collective.pairs],
            "hop": hop,
            "transfers": [" ".join(map(str, transfer)) for transfer in collective.hop(hop - 1)],
        }
        for collective, hops in collectives
        for hop in hops or range(1, collective.n_hops + 1)
    ]


def test_the_cases_that_the_page_is_compared_with_are_those_of_the_generator():
    """`web/src/shared/hop_schedule.test.ts` compares the page's hops with this file."""
    assert json.loads(CASES.read_text("utf-8")) == make_cases()


@pytest.mark.parametrize("pairs", [ROTATION, OPEN_CHAIN, SWAP, []])
def test_pairs_are_stored_as_runs_without_loss(pairs):
    assert expand_pairs(pair_runs(pairs)) == pairs


def record_sum(n_devices):
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"),
        in_specs=P("data"),
        out_specs=P(),
    )
    x = jnp.arange(float(n_devices))
    return shardlab.record(mapped, x, mesh=f"data={n_devices}", findings="none")


def test_every_hop_of_512_devices_is_available_and_none_is_stored():
    recording = record_sum(512)
    (collective,) = [step.collective for step in recording.steps if step.collective]
    assert collective.n_hops == 1022
    assert collective.n_chunks == 1
    assert collective.algorithm == "reduce, then broadcast along the ring"
    steps = ring_steps("psum", 512, n_elements=1)
    for number in (0, 510, 511, 1021):
        transfers = [
            (send.sender, send.receiver, send.chunk, "add" if send.is_added else "copy")
            for send in steps[number]
        ]
        assert list(collective.hop(number)) == transfers
    assert collective.hop(1022) == ()
    assert len(json.dumps(collective.to_json())) < 5000
    assert len(recording.to_json_text()) < 2_000_000


def test_a_long_loop_of_permutations_over_512_devices_is_below_2_mb():
    """Each of them has 512 pairs, stored as two runs."""
    ring = [(device, (device + 1) % 512) for device in range(512)]

    def body(x):
        for _ in range(300):
            x = jax.lax.ppermute(x, "data", ring)
        return x

    mapped = jax.shard_map(body, in_specs=P("data"), out_specs=P("data"))
    recording = shardlab.record(mapped, jnp.arange(512.0), mesh="data=512", findings="none")
    collectives = [step.collective for step in recording.steps if step.collective]
    assert len(collectives) == 300
    assert [transfer[:2] for transfer in collectives[-1].hop(0)] == ring
    assert len(recording.to_json_text()) < 2_000_000


def test_files_of_version_1_are_read_with_all_hops():
    recording = record_sum(4)
    data = recording.to_json()
    assert data["version"] == 2
    for step in data["steps"]:
        if step["collective"]:
            del step["collective"]["schedule"], step["collective"]["pairs"]
            step["collective"] |= {"hops": [[[0, 1, 3, "add"]]], "hops_shown": 1}
    earlier = Recording.from_json(json.loads(json.dumps({**data, "version": 1})))
    assert earlier == recording


def test_the_pairs_of_version_1_come_from_its_hop():
    collective = dataclasses.replace(make_collective("pairs", 5, ROTATION), op="ppermute")
    data = collective.to_json()
    del data["schedule"], data["pairs"]
    hops = [[list(transfer) for transfer in collective.hop(0)]]
    assert RecordedCollective.from_json({**data, "hops": hops, "hops_shown": 1}) == collective
    unknown = RecordedCollective.from_json({**data, "hops": [], "hops_shown": 0})
    assert unknown.schedule is None
    assert unknown.hop(0) == ()
