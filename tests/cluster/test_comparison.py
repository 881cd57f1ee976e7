"""What counts as a difference between real processes and the simulation."""

from __future__ import annotations

import base64
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from shardlab.cluster.comparison import compare_runs
from shardlab.cluster.records import OutputRecord, ProgramRecord, ShardRecord
from shardlab.collectives.call import CollectiveCall

PSUM = CollectiveCall(
    op="psum", mesh_axes=("data",), shape=(3,), dtype="float32", payload_bytes=12, wire_bytes=12,
    count=1, phase="forward", group_size=2,
)  # fmt: skip


def program(shards, *, dtype="float32", spec="P('data')", calls=(PSUM,), n_calls=1, is_moved=False):
    """Return a program with one output whose shards are rows of an array."""
    size = len(shards[0])
    records = [
        ShardRecord(
            device=device,
            index=((size * (1 - device if is_moved else device), size * (device + 1)),),
            values=base64.b64encode(np.asarray(values, dtype).tobytes()).decode(),
            n_elements=size,
        )
        for device, values in enumerate(shards)
    ]
    output = OutputRecord(
        name="step", call=0, shape=(size * len(shards),), dtype=np.dtype(dtype).name,
        sharding=spec, shards=tuple(records),
    )  # fmt: skip
    return ProgramRecord(
        key="step", mesh=(("data", 2),), n_devices=2, collectives=calls, n_calls=n_calls,
        outputs=(output,),
    )  # fmt: skip


ROWS = [[1.0, 2.0, 3.0], [4.0, 5.0, 600.0]]


def kinds(real, simulated):
    return [difference.kind for difference in compare_runs([real], [simulated]).differences]


def test_equal_runs_agree_on_every_output_shard_and_collective():
    verification = compare_runs([program(ROWS)], [program(ROWS)])
    assert verification.agrees
    assert (verification.n_outputs, verification.n_shards, verification.n_elements) == (1, 2, 6)
    assert verification.n_collectives == 1


def test_rounding_is_no_difference_and_more_is():
    eps = float(np.finfo(np.float32).eps)
    assert kinds(program([ROWS[0], [4.0, 5.0, 600.0 * (1 + 20 * eps)]]), program(ROWS)) == []
    assert kinds(program([ROWS[0], [4.0, 5.0, 600.0 * (1 + 900 * eps)]]), program(ROWS)) == [
        "values"
    ]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, bool])
def test_integers_and_bools_must_be_equal(dtype):
    first, second = [[0, 1, 1], [1, 0, 1]], [[0, 1, 1], [1, 0, 0]]
    assert kinds(program(first, dtype=dtype), program(first, dtype=dtype)) == []
    assert kinds(program(first, dtype=dtype), program(second, dtype=dtype)) == ["values"]


def test_narrow_floats_are_compared_in_their_own_precision():
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    near, far = [rows[0], [4.0, 5.0, 6.03]], [rows[0], [4.0, 5.0, 7.0]]
    bf16 = ml_dtypes.bfloat16
    assert kinds(program(near, dtype=bf16), program(rows, dtype=bf16)) == []
    assert kinds(program(far, dtype=bf16), program(rows, dtype=bf16)) == ["values"]


def test_not_a_number_is_a_difference_from_a_number_only():
    nan = [ROWS[0], [4.0, float("nan"), 600.0]]
    assert kinds(program(nan), program(nan)) == []
    assert kinds(program(nan), program(ROWS)) == ["values"]


def test_the_device_that_differs_is_named():
    verification = compare_runs([program([ROWS[0], [4.0, 9.0, 600.0]])], [program(ROWS)])
    (difference,) = verification.differences
    assert difference.devices == (1,)
    assert "differs on 1 of 2 devices, most on 1: by 4" in difference.sentence


def test_another_part_of_the_array_on_a_device_is_a_difference_in_sharding():
    verification = compare_runs([program(ROWS, is_moved=True)], [program(ROWS)])
    (difference,) = verification.differences
    assert (difference.kind, difference.devices) == ("sharding", (0, 1))


def test_collectives_are_compared_by_operation_axes_shape_and_count():
    twice = (replace(PSUM, count=2),)
    assert kinds(program(ROWS, calls=twice), program(ROWS)) == ["collectives", "collectives"]
    assert kinds(program(ROWS, calls=(PSUM, PSUM)), program(ROWS)) == ["collectives"]
    assert kinds(program(ROWS, calls=()), program(ROWS)) == ["collectives"]


def test_collectives_that_were_not_read_are_noted():
    verification = compare_runs([program(ROWS)], [program(ROWS, calls=None)])
    assert verification.agrees
    assert verification.notes == ("the collectives of 'step' were not compared",)


def test_a_program_of_one_side_only_and_another_number_of_calls_are_differences():
    verification = compare_runs([program(ROWS)], [])
    assert (
        verification.differences[0].sentence == "ran on real processes, and not on the simulation"
    )
    assert kinds(program(ROWS, n_calls=2), program(ROWS)) == ["program"]


def test_a_process_that_did_not_call_a_program_is_named_and_its_shards_are_not_missed():
    real = replace(program(ROWS[:1]), processes=(0, 1), calls_by_process=(1, 0))
    (difference,) = compare_runs([real], [program(ROWS)]).differences
    assert difference.kind == "program"
    assert difference.sentence == (
        "process 1 never called it (calls: 1 on process 0, 0 on process 1)"
    )


def test_of_programs_called_unevenly_the_first_call_is_compared():
    wrong = program([ROWS[0], [4.0, 9.0, 600.0]], n_calls=3)
    real = replace(wrong, processes=(0, 1), calls_by_process=(3, 2))
    differences = compare_runs([real], [program(ROWS, n_calls=3)]).differences
    assert [difference.kind for difference in differences] == ["program", "values"]
    assert differences[0].sentence == (
        "not every process called it as often (calls: 3 on process 0, 2 on process 1)"
    )
