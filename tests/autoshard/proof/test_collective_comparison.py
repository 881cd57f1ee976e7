"""Which differences between Shardy's and XLA's collectives are explained, and which are not."""

from __future__ import annotations

import pytest

from shardlab._jax.partitioned_program import InsertedCall
from shardlab.autoshard.proof.collective_comparison import compare_collectives
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.wire import wire_bytes

SIZES = {"data": 4, "model": 2}
MB = 1_000_000


def claim(kind, axes, n_bytes, *, dtype="f32", count=1):
    group = 1
    for axis in axes:
        group *= SIZES[axis]
    return InsertedCall(
        kind=kind,
        axes=tuple(axes),
        group_size=group,
        operand_bytes=n_bytes,
        result_bytes=n_bytes,
        dtype=dtype,
        shape=(),
        source="",
        name_stack="",
        count=count,
    )


def xla(op, axes, n_bytes, *, itemsize=4, count=1):
    group = 1
    for axis in axes:
        group *= SIZES[axis]
    return CollectiveCall(
        op=op,
        mesh_axes=tuple(axes),
        shape=(n_bytes // itemsize,),
        dtype="f32",
        payload_bytes=n_bytes,
        wire_bytes=wire_bytes(op, n_bytes, group),
        count=count,
        phase="forward",
        group_size=group,
        origin="compiler",
    )


def test_equal_collectives_agree_however_they_are_combined():
    proof = compare_collectives(
        [claim("all_reduce", ["data"], 4 * MB, count=3)],
        [xla("psum", ["data"], 12 * MB)],
        SIZES,
    )
    assert proof.verdict == "proven"
    assert proof.differences == ()
    assert proof.normalisations == ()
    assert proof.xla[0].wire_bytes == 18 * MB  # 2 * 3/4 of 12 MB


@pytest.mark.parametrize(
    ("claims", "inserted", "rule"),
    [
        (
            [claim("all_reduce", ["data"], 4 * MB)],
            [xla("psum_scatter", ["data"], 4 * MB)],
            "all-reduce and slice",
        ),
        (
            [claim("all_reduce", ["data"], 4 * MB)],
            [xla("psum_scatter", ["data"], 4 * MB), xla("all_gather", ["data"], MB)],
            "all-reduce and slice",
        ),
        (
            [claim("all_gather", ["model"], MB)],
            [xla("all_to_all", ["model"], MB)],
            "all-gather and slice",
        ),
        (
            [claim("all_reduce", ["data"], 4 * MB), claim("all_reduce", ["model"], 4)],
            [xla("psum", ["data"], 4 * MB)],
            "reductions of scalars",
        ),
        (
            [claim("all_reduce", ["data"], 2 * MB, dtype="bf16")],
            [xla("psum", ["data"], 4 * MB)],
            "bf16 as f32",
        ),
        (
            [claim("all_reduce", ["data", "model"], 4 * MB)],
            [xla("psum", ["data"], 4 * MB), xla("psum", ["model"], 4 * MB)],
            "mesh axes one by one",
        ),
        (
            [claim("all_gather", ["data"], MB, count=2)],
            [xla("all_gather", ["data"], MB)],
            "repeated all-gathers",
        ),
        (
            [claim("all_reduce", ["data"], 40 * MB)],
            [xla("psum", ["data"], 40 * MB), xla("ppermute", ["model"], MB)],
            "collective-permutes",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_legitimate_difference_is_normalised_with_its_reason(claims, inserted, rule):
    proof = compare_collectives(claims, inserted, SIZES)
    assert proof.verdict == "proven"
    assert [item.rule for item in proof.normalisations] == [rule]
    assert proof.normalisations[0].wire_bytes > 0
    assert proof.normalisations[0].reason


@pytest.mark.parametrize(
    "inserted",
    [
        [xla("psum", ["data"], 4 * MB), xla("all_gather", ["model"], MB)],
        [xla("psum", ["data"], 8 * MB)],
        [xla("psum", ["model"], 4 * MB)],
        [xla("psum", ["data"], 4 * MB), xla("ppermute", ["model"], 4 * MB)],
    ],
    ids=["one-more", "twice-as-large", "other-axis", "many-permutes"],
)
def test_traffic_that_was_not_claimed_disproves_the_claim(inserted):
    proof = compare_collectives([claim("all_reduce", ["data"], 4 * MB)], inserted, SIZES)
    assert proof.verdict == "disproven"
    assert sum(item.xla_bytes for item in proof.differences) > 0


def test_a_claim_of_more_than_xla_sends_is_an_upper_bound_and_not_proven():
    claims = [claim("all_reduce", ["data"], 4 * MB), claim("all_reduce", ["model"], 4 * MB)]
    proof = compare_collectives(claims, [xla("psum", ["data"], 4 * MB)], SIZES)
    assert proof.verdict == "not proven"
    assert [(item.mesh_axes, item.claimed_bytes) for item in proof.differences] == [
        (("model",), 4 * MB)
    ]


def test_an_all_gather_in_place_of_a_claimed_all_to_all_disproves_the_claim():
    # XLA gathers where Shardy exchanges shards: 4 times the bytes on 4 devices.
    proof = compare_collectives(
        [claim("all_to_all", ["data"], MB)], [xla("all_gather", ["data"], MB)], SIZES
    )
    assert proof.verdict == "disproven"
    assert "3.0 MB per device that were not claimed" in proof.sentence
