"""Sensible plans of every preset have no warnings."""

from __future__ import annotations

from math import gcd

import pytest

import shardlab
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.models.load import load_model
from shardlab.planner.models.presets import preset_names
from shardlab.sharding.mesh import parse_mesh

CHIP = "tpu-v5p"


def tensor_axis_size(model):
    """Return the largest tensor axis up to 8 that divides the heads."""
    arch = model.architecture
    return gcd(8, arch.heads if arch.kv_lora_rank else arch.kv_heads)


def training_meshes(model):
    """Yield usual meshes and strategies, on as many chips as the model needs."""
    chips = 8
    while chips * 40e9 < 16 * model.n_parameters:
        chips *= 2
    n_tensor = tensor_axis_size(model)
    yield f"fsdp={chips}", "fsdp"
    yield f"fsdp={chips},tensor={n_tensor}", "fsdp+tensor"
    yield f"data=2,fsdp={chips},tensor={n_tensor}", "fsdp+tensor"
    yield f"data={chips}", "zero3"
    if model.architecture.experts:
        yield f"fsdp={chips // 8},expert=8", "fsdp+expert"
        yield f"fsdp={chips // 8},expert=8,tensor={n_tensor}", "fsdp+expert+tensor"


def alarms(plan):
    return [str(finding) for finding in plan.findings if finding.severity != "info"]


# Of gpt-oss-120b a training plan says something true: fsdp replicates biases, and those of its 128
# experts in 36 layers have 637 MB.
WITHOUT_ALARM = [name for name in preset_names() if name != "gpt-oss-120b"]


@pytest.mark.parametrize("name", WITHOUT_ALARM)
def test_a_sensible_training_plan_gives_no_alarm(name):
    model = load_model(name)
    for mesh, strategy in training_meshes(model):
        n_shards = workload_shards(parse_mesh(mesh)).batch.n_shards
        plan = shardlab.plan(
            model,
            mesh,
            strategy=strategy,
            hardware=CHIP,
            optimizer="adamw",
            workload=Workload(batch=4 * n_shards, sequence=4096, microbatch=2 * n_shards),
        )
        assert alarms(plan) == [], f"{name} {mesh} {strategy}"
        assert plan.ok


@pytest.mark.parametrize("name", preset_names())
def test_a_sensible_serving_plan_gives_no_alarm(name):
    model = load_model(name)
    n_tensor = tensor_axis_size(model)
    meshes = [(f"tensor={n_tensor}", "tensor")] if model.n_bytes < n_tensor * 60e9 else []
    meshes.append((f"fsdp=16,tensor={n_tensor}", "fsdp+tensor"))
    for mesh, strategy in meshes:
        plan = shardlab.plan(
            model,
            mesh,
            strategy=strategy,
            hardware=CHIP,
            workload=Workload(batch=16, sequence=4096),
        )
        assert alarms(plan) == [], f"{name} {mesh} {strategy}"


@pytest.mark.parametrize(
    "name",
    [name for name in preset_names() if load_model(name).n_parameters < 4e9] or ["llama3-8b"],
)
def test_plain_data_parallelism_that_fits_gives_no_alarm(name):
    plan = shardlab.plan(
        name,
        "data=8",
        strategy="data-parallel",
        hardware=CHIP,
        optimizer="adamw",
        workload=Workload(batch=8, sequence=4096),
    )
    assert plan.fits
    assert alarms(plan) == []
    assert [finding.code for finding in plan.findings] == ["plan.optimizer_replicated"]
