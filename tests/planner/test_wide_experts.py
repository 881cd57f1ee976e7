"""Experts sharded over expert and tensor axes together, each as a whole (expert tensor size 1)."""

from __future__ import annotations

import pytest

import shardlab
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.presets import load_preset
from shardlab.planner.strategies.strategy import parse_strategy, shard_model
from shardlab.planner.timing.estimate_step import estimate_step, step_estimator
from shardlab.sharding.mesh import parse_mesh
from shardlab.sharding.spec import Spec

QWEN = "qwen3-30b-a3b"
MESH = "data=2,expert=4,tensor=2"
WORKLOAD = Workload(batch=64, sequence=4096, remat="none")


def specs(strategy: str, mesh: str = MESH) -> dict[str, Spec]:
    sharded = shard_model(load_preset(QWEN), parse_strategy(strategy), parse_mesh(mesh))
    return {group.group.name.split(".layers.*.")[-1]: group.spec for group in sharded}


def test_wide_experts_are_sharded_whole_and_attention_by_heads():
    wide, split = specs("wide-expert+tensor"), specs("expert+tensor")
    assert wide["mlp.experts.down_proj.weight"] == Spec(("expert", "tensor"))
    assert split["mlp.experts.down_proj.weight"] == Spec("expert", None, "tensor")
    assert wide["self_attn.q_proj.weight"] == split["self_attn.q_proj.weight"] == Spec("tensor")


def test_a_tensor_axis_alone_can_shard_experts():
    wide = specs("wide-expert+tensor", "data=4,tensor=4")
    assert wide["mlp.experts.up_proj.weight"] == Spec("tensor")


def test_fsdp_shards_other_matrices_over_the_expert_axis_too():
    wide = specs("fsdp+wide-expert+tensor", "fsdp=2,expert=4,tensor=2")
    assert wide["self_attn.q_proj.weight"] == Spec("tensor", ("fsdp", "expert"))


def test_bytes_and_flops_are_those_of_experts_that_are_sharded_themselves():
    plans = [
        shardlab.plan(QWEN, MESH, strategy=strategy, optimizer="adamw")
        for strategy in ("wide-expert+tensor", "expert+tensor")
    ]
    assert plans[0].bytes_per_device == plans[1].bytes_per_device
    steps = [
        estimate_step(QWEN, MESH, hardware="h100", strategy=strategy, workload=WORKLOAD)
        for strategy in ("wide-expert+tensor", "expert+tensor")
    ]
    assert steps[0].flops == pytest.approx(steps[1].flops)
    # Twice as wide products over half as many experts.
    assert steps[0].busy_seconds < steps[1].busy_seconds


def test_the_products_of_all_devices_are_those_of_the_routed_tokens():
    _, work = step_estimator(QWEN, MESH, hardware="h100", strategy="wide-expert+tensor")
    arch = load_preset(QWEN).architecture
    [down] = [product for product in work.products if product.name == "down_proj"]
    assert (down.inner, down.columns) in ((768, 2048), (2048, 768))
    assert (down.n_experts, down.n_token_shards) == (128 // 8, 2)
    assert down.count == arch.layers * 128 // 8
    assert work.has_wide_experts


def test_advise_shards_whole_experts_on_gpus_as_recipes_do_there():
    on_gpus = strategies_with_tensor_axis("h100")
    assert {"wide-expert" in strategy for strategy in on_gpus} == {True}
    on_tpus = strategies_with_tensor_axis("tpu-v5p")
    assert {"wide-expert" in strategy for strategy in on_tpus} == {False}


def strategies_with_tensor_axis(hardware: str) -> set[str]:
    advice = shardlab.advise(QWEN, hardware, 16, batch=64, sequence=4096)
    return {
        candidate.strategy
        for candidate in (*advice.ranked, *advice.others)
        if candidate.strategy and {"expert", "tensor"} <= dict(candidate.mesh).keys()
    }


def test_a_mesh_of_experts_alone_is_replicated_for_attention_and_has_zero():
    advice = shardlab.advise(QWEN, "h100", 16, batch=64, sequence=4096, mesh="expert=16")
    assert advice.requested is not None
    assert advice.requested.zero == 1
