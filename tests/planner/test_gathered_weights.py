"""Gathered weights: of the largest layer, or of a table, and only what batch axes shard."""

from __future__ import annotations

import pytest

import shardlab
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Model
from shardlab.planner.tensor_group import Tensor, group_tensors, parse_tensor_group
from shardlab.sharding.dtype import parse_dtype

BF16 = parse_dtype("bf16")
WORK = Workload(batch=64, sequence=128)


def gathered(model, mesh, **options):
    plan = shardlab.plan(model, mesh, **{"workload": WORK, **options})
    return sum(item.bytes_per_device for item in plan.items if "gathered" in item.name)


def model(*groups):
    return Model(
        name="tiny", groups=tuple(parse_tensor_group(path, shape, BF16) for path, shape in groups)
    )


# hidden 16384, 128 and 8 heads of 128, feed-forward 53248
LAYER_405B = 2 * (2 * 16384 * 16384 + 2 * 16384 * 1024 + 3 * 16384 * 53248)


@pytest.mark.parametrize(
    ("mesh", "strategy", "n_bytes"),
    [
        ("fsdp=64", "fsdp", LAYER_405B),
        ("data=64", "zero3", LAYER_405B),
        ("fsdp=8,tensor=8", "fsdp+tensor", LAYER_405B // 8),
        ("data=4,tensor=8", "tensor", 0),
        ("data=64", "zero2", 0),
        ("tensor=8", "tensor", 0),
        ("stage=6,fsdp=8", "fsdp+pipeline", LAYER_405B),
    ],
)
def test_a_layer_is_gathered_along_batch_axes_and_sharded_along_tensor_axes(
    mesh, strategy, n_bytes
):
    assert gathered("llama3.1-405b", mesh, strategy=strategy) == n_bytes


def test_training_gathers_the_next_layer_while_it_computes_one():
    plan = shardlab.plan(
        "llama3.1-405b", "fsdp=64", strategy="fsdp", optimizer="adamw", workload=WORK
    )
    layer = plan.items[-1]
    assert layer.name == "in the backward pass: one layer"
    assert f"gathered weights of layers at once (2): {2 * LAYER_405B:,} bytes" in layer.formula


def test_a_table_counts_if_it_is_larger_than_a_layer():
    assert gathered("llama3-8b", "fsdp=8", strategy="fsdp") == 2 * 128256 * 4096


def test_all_experts_of_a_layer_are_gathered_unless_an_expert_axis_shards_them():
    attention = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    experts, router = 2 * 8 * 3 * 4096 * 14336, 2 * 8 * 4096
    unsharded = gathered("mixtral-8x7b", "fsdp=8", strategy="fsdp")
    assert unsharded == attention + experts + router
    sharded = gathered("mixtral-8x7b", "fsdp=8,expert=4", strategy="fsdp+expert")
    assert sharded == attention + experts // 4 + router


def test_stacked_layers_are_gathered_a_slice_at_a_time():
    unstacked = gathered("llama3.1-405b", "fsdp=64", strategy="fsdp")
    assert gathered("llama3.1-405b", "fsdp=64", strategy="fsdp", stack="layers") == unstacked
    mixed = gathered("qwen3-30b-a3b", "fsdp=8", strategy="fsdp")
    assert gathered("qwen3-30b-a3b", "fsdp=8", strategy="fsdp", stack="all") == mixed


def test_the_largest_of_unlike_layers_counts():
    dense = ("layers.{0..1}.mlp.up_proj.weight", (40, 8))
    mixed = ("layers.{2..5}.mlp.experts.{0..3}.up_proj.weight", (16, 8))
    attention = ("layers.{0..5}.self_attn.q_proj.weight", (8, 8))
    assert gathered(model(dense, mixed, attention), "fsdp=2", strategy="fsdp") == 2 * (
        8 * 8 + 4 * 16 * 8
    )
    stacked = gathered(model(dense, mixed, attention), "fsdp=2", strategy="fsdp", stack="all")
    assert stacked == 2 * (8 * 8 + 4 * 16 * 8)


def test_alternating_layers_are_distinguished():
    tensors = [
        Tensor(f"layers.{n}.mlp.up_proj.weight", (8 if n % 2 else 24, 8), BF16) for n in range(6)
    ]
    alternating = Model(name="tiny", groups=group_tensors(tensors))
    assert gathered(alternating, "fsdp=2", strategy="fsdp") == 2 * 24 * 8


def test_without_a_workload_only_tensors_are_counted():
    assert gathered("llama3-8b", "fsdp=8", strategy="fsdp", workload=None) == 0


def test_they_are_gathered_in_the_dtype_of_the_parameters():
    bf16 = gathered("llama3-8b", "fsdp=8", strategy="fsdp", optimizer="adamw")
    f32 = gathered("llama3-8b", "fsdp=8", strategy="fsdp", optimizer="adamw", policy="f32")
    assert f32 == 2 * bf16


def test_the_formula_names_what_is_gathered():
    plan = shardlab.plan("llama3.1-405b", "fsdp=8,tensor=4", strategy="fsdp+tensor", workload=WORK)
    (item,) = [item for item in plan.items if "gathered" in item.name]
    assert item.kind == "activations"
    assert item.formula == (
        "7 kinds of tensors of one layer, gathered along fsdp=8, other mesh axes as stored; "
        "largest: model.layers.*.mlp.gate_proj.weight [53248, 16384]"
    )
