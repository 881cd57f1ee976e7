"""Recordings of jits: shardings, shards and collectives equal those on 8 real host devices.

Every value of every step is compared. The collectives of a recording belong to one equation each;
where XLA merges or splits them for the program as a unit, `DIFFERENCES` has the class of the
difference, and `docs/conformance.md` describes the classes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from jit_programs import PROGRAMS  # noqa: E402  needs the path above

NAMES = ["jit_with_shardings", "constraint_replicates", *PROGRAMS]  # two are of the gallery

# (only in the recording, only in the compiled program) by class, for each program that differs.
# gathered again: a weight or activation that two equations use is gathered for each of them; XLA
#   gathers it once.
# split by axis: a sum over two mesh axes is one all-reduce; XLA makes one for each axis.
# added first: results of several products are each summed over devices and then added; XLA adds
#   first and sums once.
# padded: the dimension is not divisible; XLA pads it and shards, the recording shows it unsharded.
GATHERED_AGAIN, SPLIT_BY_AXIS, ADDED_FIRST, PADDED = (
    "gathered again",
    "split by axis",
    "added first",
    "padded",
)
LOSS_SPLIT = (
    {"psum over data,model, 4 bytes": 1},
    {"psum over data, 4 bytes": 1, "psum over model, 4 bytes": 1},
)
DIFFERENCES = {
    "constraint_replicates": {PADDED: ({}, {"all_gather over model, 36 bytes": 1})},
    "uneven": {PADDED: ({}, {"psum over model, 4 bytes": 1})},
    "adam step": {SPLIT_BY_AXIS: LOSS_SPLIT},
    "FSDP": {GATHERED_AGAIN: ({"all_gather over data, 1536 bytes": 3}, {})},
    "sequence parallel": {GATHERED_AGAIN: ({"all_gather over model, 2048 bytes": 4}, {})},
    "FSDP and tensor parallel": {GATHERED_AGAIN: ({"all_gather over data, 1536 bytes": 3}, {})},
    "FSDP, tensor and sequence parallel": {
        GATHERED_AGAIN: (
            {"all_gather over data, 1536 bytes": 3, "all_gather over model, 2048 bytes": 4},
            {},
        ),
        SPLIT_BY_AXIS: LOSS_SPLIT,
    },
    "Llama, data and tensor parallel": {ADDED_FIRST: ({"psum over model, 8192 bytes": 3}, {})},
    "Llama, FSDP and tensor parallel": {
        GATHERED_AGAIN: (
            {
                "all_gather over data, 1536 bytes": 3,
                "all_gather over data, 384 bytes": 2,
                "all_gather over data, 768 bytes": 2,
            },
            {},
        ),
        ADDED_FIRST: ({"psum over model, 8192 bytes": 3}, {}),
    },
    "Llama, tensor and sequence parallel": {
        GATHERED_AGAIN: ({"all_gather over model, 2048 bytes": 10}, {}),
        ADDED_FIRST: ({"psum_scatter over model, 8192 bytes": 3}, {}),
        SPLIT_BY_AXIS: (
            {"psum over data,model, 128 bytes": 2, "psum over data,model, 4 bytes": 1},
            {
                "psum over data, 128 bytes": 2,
                "psum over model, 128 bytes": 2,
                "psum over data, 4 bytes": 1,
                "psum over model, 4 bytes": 1,
            },
        ),
    },
}
# Values whose sharding is another one; the numbers are compared all the same. XLA pads what is not
# divisible; a mask that depends on no argument is a constant for XLA, and Shardy shards it like the
# array that it is applied to.
MASK = "jit 21, bool[16,4,2,8,8]: is sharded as P('data', 'model'); P() on real devices"
OTHER_SHARDINGS = {
    "constraint_replicates": [
        "dot_general 0, f32[6,10]: has no sharding; P('data', 'model') on real devices",
        "tanh 1, f32[6,10]: has no sharding; P('data', 'model') on real devices",
        "sharding_constraint 2, f32[6,10]: has no sharding; P('data', 'model') on real devices",
        "mul 3, f32[6,10]: is sharded as P('data', None); P('data', 'model') on real devices",
    ],
    "uneven": [
        "dot_general 0, f32[6,4]: has no sharding; P('model',) on real devices",
        "sharding_constraint 1, f32[6,4]: has no sharding; P('model',) on real devices",
    ],
    "Llama, data and tensor parallel": [MASK],
    "Llama, FSDP and tensor parallel": [MASK],
    "Llama, tensor and sequence parallel": [MASK],
}


@pytest.fixture(scope="module")
def results():
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    process = subprocess.run(
        [sys.executable, str(HERE / "jit_recorded_on_devices.py"), *NAMES],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return {item["name"]: item for item in map(json.loads, process.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_shardings_and_shards_of_a_jit_equal_real_devices_at_every_step(results, name):
    result = results[name]
    assert result["problems"] == OTHER_SHARDINGS.get(name, [])
    assert result["values"] >= 24  # of 8 devices each


@pytest.mark.parametrize("name", NAMES)
def test_collectives_of_a_jit_equal_the_compiled_program(results, name):
    result = results[name]
    only_recorded: dict[str, int] = {}
    only_compiled: dict[str, int] = {}
    for recorded, compiled in DIFFERENCES.get(name, {}).values():
        for total, part in ((only_recorded, recorded), (only_compiled, compiled)):
            for call, count in part.items():
                total[call] = total.get(call, 0) + count
    assert result["only_recorded"] == only_recorded
    assert result["only_compiled"] == only_compiled


def test_partial_sums_and_collectives_are_among_what_is_compared(results):
    assert sum(result["partial"] for result in results.values()) > 500
    operations = {call.split()[0] for r in results.values() for call in r["recorded"]}
    assert operations == {"psum", "pmax", "psum_scatter", "all_gather", "all_to_all"}


def test_what_is_gathered_again_is_gathered_in_the_compiled_program_too(results):
    for name, classes in DIFFERENCES.items():
        again, _ = classes.get(GATHERED_AGAIN, ({}, {}))
        assert set(again) <= set(results[name]["compiled"]), name
