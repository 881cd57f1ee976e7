"""Statements of plans about XLA, compared with what XLA compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from shardlab.planner.memory.activations import count_token_memory
from shardlab.planner.memory.gathered_weights import GatheredWeights
from shardlab.planner.memory.step_memory import XLA, StepWeights, find_peak
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.model import Architecture
from shardlab.sharding.mesh import parse_mesh


@pytest.fixture(scope="module")
def compiled():
    script = Path(__file__).parent / "compiled_steps.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def largest_collective(lookup):
    """Return the largest collective of floats, relative to a device's own tokens."""
    return max(n for _, n in lookup["collectives"]) / lookup["own"]


@pytest.mark.parametrize("layout", ["vocab/tensor", "vocab/tensor embed/fsdp"])
def test_a_lookup_without_a_finding_moves_only_a_devices_own_rows(compiled, layout):
    assert largest_collective(compiled["few"][layout]) <= 1


def test_a_vocabulary_sharded_over_the_batch_axis_makes_devices_look_up_for_others(compiled):
    # as plan.embedding_sharding says, with fewer tokens than rows
    assert largest_collective(compiled["few"]["vocab/fsdp"]) == 2
    assert largest_collective(compiled["few"]["vocab/both"]) == 4  # the full batch


def test_the_backward_pass_of_a_lookup_gathers_gradients_as_documented(compiled):
    """docs/findings/plan.embedding_sharding.md: with JAX 0.12 also if fsdp shards the embedding."""
    backward = compiled["few, backward"]
    (collective,) = backward["vocab/tensor embed/fsdp"]["collectives"]
    own = backward["vocab/tensor embed/fsdp"]["own"]
    is_new = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
    assert collective == (["all-gather", 4 * own] if is_new else ["all-to-all", own // 4])
    assert backward["vocab/both"]["collectives"] == [["all-gather", 4 * own]]
    assert ["all-gather", 2 * own] in backward["vocab/fsdp"]["collectives"]


@pytest.mark.parametrize("layout", ["vocab/fsdp", "vocab/both"])
def test_with_more_tokens_than_rows_the_table_is_gathered(compiled, layout):
    lookup = compiled["many"][layout]
    gathered = [n for op, n in lookup["collectives"] if op == "all-gather"]
    assert max(gathered) * 2 == lookup["table"]  # each half of tensor=2 looks up its rows
    assert largest_collective(lookup) <= 1


def test_keys_sharded_inside_heads_are_gathered_and_replicated_ones_are_not(compiled):
    # as plan.kv_heads_replicated says
    assert compiled["heads"]["8 sharded"] == ["all-reduce"]
    assert compiled["heads"]["4 replicated"] == ["all-reduce"]
    assert sorted(compiled["heads"]["4 sharded"]) == ["all-gather", "all-gather", "all-reduce"]


@pytest.mark.parametrize("remat", ["none", "full"])
def test_temporaries_of_a_small_step_are_near_the_estimate_on_cpu_too(compiled, remat):
    """The model is calibrated on TPUs; XLA for CPU fuses less, and has no flash kernel."""
    arch = Architecture(layers=8, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=344, vocab=512)
    work = Workload(batch=8, sequence=128, remat=remat, dtype="f32", flash=False)
    shards = workload_shards(parse_mesh("data=1"))
    none = StepWeights(
        parameters=0, gradients=0, optimizer=0, compute_copies=0, gathered=GatheredWeights()
    )
    estimate = find_peak(count_token_memory(arch, shards, work), none, work, shards, XLA)
    assert 0.5 <= compiled["temporaries"][remat] / estimate.activations <= 2
