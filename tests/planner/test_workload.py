"""The workload: what is accepted, and how the rest is rejected."""

from __future__ import annotations

import pytest

import shardlab
from shardlab.errors import InvalidSize, InvalidType, LabError, UnknownDtype, UnknownOption
from shardlab.planner.memory.workload import REMAT_POLICIES, Workload, parse_workload


def test_a_workload_has_sensible_defaults():
    work = Workload(batch=64, sequence=4096)
    assert (work.remat, work.microbatch, work.dtype.short) == ("full", None, "bf16")
    assert (work.cache_dtype.short, work.flash, work.sequence_parallel) == ("bf16", True, True)
    assert work.n_microbatches == 1


def test_dtypes_and_policies_may_be_given_as_text():
    work = Workload(batch=64, sequence=4096, remat=" FULL ", cache_dtype="int8", dtype="float32")
    assert (work.remat, work.cache_dtype.bits, work.dtype.bits) == ("full", 8, 32)
    assert (
        Workload(batch=1, sequence=1, remat=4).remat,
        Workload(batch=1, sequence=1, remat="04").checkpoints,
    ) == ("4", 4)
    assert all(
        Workload(batch=1, sequence=1, remat=remat).checkpoints is None for remat in REMAT_POLICIES
    )


@pytest.mark.parametrize("bad", [0, -1, 2**200])
@pytest.mark.parametrize("name", ["batch", "sequence", "microbatch"])
def test_a_size_out_of_range_is_rejected(name, bad):
    with pytest.raises(InvalidSize, match=f"The size of the {name} is"):
        Workload(**({"batch": 8, "sequence": 8} | {name: bad}))


@pytest.mark.parametrize("bad", [True, 1.5, float("nan"), "8", b"8", [8]])
@pytest.mark.parametrize("name", ["batch", "sequence", "microbatch"])
def test_a_size_that_is_not_an_integer_is_rejected(name, bad):
    with pytest.raises(InvalidType, match=f"The size of the {name} is"):
        Workload(**({"batch": 8, "sequence": 8} | {name: bad}))


def test_a_batch_and_a_sequence_are_needed():
    with pytest.raises(InvalidType, match="The size of the batch is None"):
        Workload(batch=None, sequence=8)


def test_a_batch_is_divisible_by_its_microbatch():
    assert Workload(batch=64, sequence=8, microbatch=16).n_microbatches == 4
    with pytest.raises(
        InvalidSize, match="batch of 64 is not divisible by the microbatch of 24"
    ) as caught:
        Workload(batch=64, sequence=8, microbatch=24)
    assert caught.value.fix == "a microbatch of 16."
    with pytest.raises(InvalidSize, match="batch of 64 is not divisible by the microbatch of 128"):
        Workload(batch=64, sequence=8, microbatch=128)


@pytest.mark.parametrize("bad", ["fulll", "0", "-4", "9999", "", None, True, 2.0, b"full", "٤"])
def test_an_unknown_remat_policy_is_rejected(bad):
    with pytest.raises(UnknownOption, match="Unknown remat policy"):
        Workload(batch=1, sequence=1, remat=bad)


def test_the_nearest_remat_policy_is_suggested():
    with pytest.raises(UnknownOption) as caught:
        Workload(batch=1, sequence=1, remat="selectiv")
    assert caught.value.fix == "Did you mean 'selective'?"


def test_switches_and_dtypes_are_checked():
    with pytest.raises(InvalidType, match="flash of the workload is 1"):
        Workload(batch=1, sequence=1, flash=1)
    with pytest.raises(UnknownDtype, match="bf17"):
        Workload(batch=1, sequence=1, cache_dtype="bf17")
    with pytest.raises(LabError, match="is not a dtype"):
        Workload(batch=1, sequence=1, dtype=None)


def test_a_workload_may_be_a_mapping():
    assert parse_workload({"batch": 8, "sequence": 4, "remat": "none"}) == Workload(
        batch=8, sequence=4, remat="none"
    )
    assert parse_workload(None) is None


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (5, InvalidType, "5 is not a workload"),
        ("batch=8", InvalidType, "is not a workload"),
        (True, InvalidType, "is not a workload"),
        ({"batch": 8, "sequenc": 4}, UnknownOption, "A workload has no field 'sequenc'"),
        ({"batch": 8, 3: 4}, UnknownOption, "A workload has no field 3"),
        ({"batch": 8}, UnknownOption, "The workload has no sequence"),
        ({}, UnknownOption, "The workload has no batch"),
        ({"batch": "8", "sequence": 4}, InvalidType, "The size of the batch is '8'"),
    ],
)
def test_a_plan_rejects_what_is_not_a_workload(bad, kind, message):
    with pytest.raises(kind, match=message):
        shardlab.plan("llama3-8b", "data=8", workload=bad)
