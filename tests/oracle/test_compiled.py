"""What plans say of XLA, held against what XLA compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from shardlab.planner.advice.activation_margin import MARGINS
from shardlab.planner.memory.activations import activation_items
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.sharding.mesh import parse_mesh


@pytest.fixture(scope="module")
def compiled():
    script = Path(__file__).parent / "compiled_steps.py"
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def most(lookup):
    """The largest collective of floats, in units of what a device's own tokens take."""
    return max(n for _, n in lookup["found"]) / lookup["own"]


@pytest.mark.parametrize("layout", ["vocab/tensor", "vocab/tensor embed/fsdp"])
def test_a_lookup_that_no_finding_is_about_moves_a_devices_own_rows(compiled, layout):
    assert most(compiled["few"][layout]) <= 1


def test_a_vocabulary_cut_over_the_batch_axis_makes_devices_look_up_for_others(compiled):
    # what plan.embedding_sharding says, with fewer tokens than rows
    assert most(compiled["few"]["vocab/fsdp"]) == 2
    assert most(compiled["few"]["vocab/both"]) == 4  # the whole batch


def test_the_backward_pass_of_a_lookup_gathers_gradients_as_the_page_says(compiled):
    """docs/findings/plan.embedding_sharding.md: with JAX 0.12 also where the embedding is cut over fsdp."""
    backward = compiled["few, backward"]
    (found,) = backward["vocab/tensor embed/fsdp"]["found"]
    own = backward["vocab/tensor embed/fsdp"]["own"]
    is_new = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
    assert found == (["all-gather", 4 * own] if is_new else ["all-to-all", own // 4])
    assert backward["vocab/both"]["found"] == [["all-gather", 4 * own]]
    assert ["all-gather", 2 * own] in backward["vocab/fsdp"]["found"]


@pytest.mark.parametrize("layout", ["vocab/fsdp", "vocab/both"])
def test_with_more_tokens_than_rows_the_table_is_gathered(compiled, layout):
    lookup = compiled["many"][layout]
    gathered = [n for op, n in lookup["found"] if op == "all-gather"]
    assert max(gathered) * 2 == lookup["table"]  # tensor=2 looks up a half each
    assert most(lookup) <= 1


def test_keys_cut_inside_heads_are_gathered_and_whole_ones_are_not(compiled):
    # what plan.kv_heads_replicated says
    assert compiled["heads"]["8 cut"] == ["all-reduce"]
    assert compiled["heads"]["4 whole"] == ["all-reduce"]
    assert sorted(compiled["heads"]["4 cut"]) == ["all-gather", "all-gather", "all-reduce"]


@pytest.mark.parametrize("remat", ["none", "full"])
def test_activations_are_a_lower_estimate_within_a_factor_of_two_and_a_half(compiled, remat):
    """Autodiff keeps steps of softmax and SiLU too; docs/plan-memory.md gives the ratios."""
    arch = Architecture(layers=8, hidden=128, heads=4, kv_heads=2, head_dim=32, ffn=344, vocab=512)
    work = Workload(batch=8, sequence=128, remat=remat, dtype="f32", flash=False)
    items = activation_items(
        Model(name="", groups=(), architecture=arch), parse_mesh("data=1"), work
    )
    ours = sum(item.bytes_per_device for item in items)
    assert 1 <= compiled["temporaries"][remat] / ours <= 2.5
    assert compiled["temporaries"][remat] / ours <= MARGINS[remat]  # what advice leaves room for
