"""The autoshard section compares with what fits only, and confirms an optimum by itself."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.options import QUICK

search_quality = pytest.importorskip("benchmarks.autoshard.search_quality")


def cost(name, seconds, *, fits=True):
    return search_quality.ShardingCost(
        name=name,
        mesh="data=2",
        seconds=seconds,
        memory_bytes=1,
        communication_seconds=0.0,
        fits=fits,
    )


def test_the_best_known_sharding_fits_and_is_one_of_the_four():
    comparison = [
        cost("replicated", 1.0, fits=False),
        cost("data parallel", 3.0),
        cost("FSDP", 2.0),
        cost("FSDP+Megatron", 0.5),  # no baseline of the benchmark
    ]
    assert search_quality.best_known(comparison).name == "FSDP"
    assert search_quality.best_known(comparison[:1]) is None


def test_the_search_finds_the_optimum_of_a_small_space():
    # A long budget: the space is small, and no machine is too slow to search it completely.
    options = dataclasses.replace(QUICK, search_s=300.0)
    section = search_quality.measure_autoshard(options, ["dense.large_vocabulary"])
    (row,) = section.data
    assert row["mesh"] == "data=64"
    assert row["exhaustive_s"] is not None
    assert row["found_s"] <= 1.001 * min(row["exhaustive_s"], row["known_s"])
    quality = [goal for goal in section.goals if goal.unit in ("", "x")]
    assert [goal.status for goal in quality] == ["reached"] * 3
