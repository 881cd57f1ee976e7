"""The programs in examples/ have no findings, except for the one that demonstrates a deadlock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardlab import check

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

import hang  # noqa: E402 - found beside the tests, not installed
import seed_problems as seeds  # noqa: E402
import train_step  # noqa: E402

SEEDS = {
    "replicated_sharding_value": (seeds.replicated_sharding_value, "f32[7]"),
    "shard_map_double": (seeds.shard_map_double, "f32[24]"),
    "shard_map_psum": (seeds.shard_map_psum, "f32[24]"),
    "shard_map_simulate": (lambda x: seeds.shard_map_simulate(0, x, 4, 5), "f32[24,3]"),
    "nnx_shard_map": (lambda x, mesh: seeds.nnx_shard_map(0, x, mesh, 5), "f32[24,3]"),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_gives_no_finding(name):
    f, x = SEEDS[name]
    report = check(f, x, meshes=["data=3", "data=8"])
    assert not report.with_severity("error"), str(report)
    assert not report.with_severity("warning"), str(report)


def test_the_train_step_gives_no_finding_on_512_devices():
    report = check(train_step.step, *train_step.example_args, mesh="data=16,model=32", run=False)
    assert report.findings == (), str(report)


def test_the_step_that_hangs_gives_its_finding_and_no_other():
    report = check(hang.step, *hang.example_args, mesh="data=8")
    assert report.codes == ("hazard.deadlock",), str(report)
