"""Sensible plans of every preset: no finding that would send a person away from them."""

from __future__ import annotations

from math import gcd

import pytest

import shardlab
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.load import load_model
from shardlab.planner.models.presets import preset_names
from shardlab.sharding.mesh import parse_mesh

CHIP = "tpu-v5p"


def tensor_of(model):
    """The largest tensor axis up to 8 that the heads divide."""
    arch = model.architecture
    return gcd(8, arch.heads if arch.kv_lora_rank else arch.kv_heads)


def trainings(model):
    """Meshes and strategies that people train such a model with, on as many chips as it takes."""
    chips = 8
    while chips * 40e9 < 16 * model.n_parameters:
        chips *= 2
    t = tensor_of(model)
    yield f"fsdp={chips}", "fsdp"
    yield f"fsdp={chips},tensor={t}", "fsdp+tensor"
    yield f"data=2,fsdp={chips},tensor={t}", "fsdp+tensor"
    yield f"data={chips}", "zero3"
    if model.architecture.experts:
        yield f"fsdp={chips // 8},expert=8", "fsdp+expert"
        yield f"fsdp={chips // 8},expert=8,tensor={t}", "fsdp+expert+tensor"


def alarms(made):
    return [str(found) for found in made.findings if found.severity != "info"]


@pytest.mark.parametrize("name", preset_names())
def test_a_sensible_training_plan_gives_no_alarm(name):
    model = load_model(name)
    for mesh, strategy in trainings(model):
        parts = workload_shards(parse_mesh(mesh)).batch.parts
        made = shardlab.plan(
            model,
            mesh,
            strategy=strategy,
            hardware=CHIP,
            optimizer="adamw",
            workload=Workload(batch=4 * parts, sequence=4096, microbatch=2 * parts),
        )
        assert alarms(made) == [], f"{name} {mesh} {strategy}"
        assert made.ok


@pytest.mark.parametrize("name", preset_names())
def test_a_sensible_serving_plan_gives_no_alarm(name):
    model = load_model(name)
    t = tensor_of(model)
    meshes = [(f"tensor={t}", "tensor")] if model.n_bytes < t * 60e9 else []
    meshes.append((f"fsdp=16,tensor={t}", "fsdp+tensor"))
    for mesh, strategy in meshes:
        made = shardlab.plan(
            model,
            mesh,
            strategy=strategy,
            hardware=CHIP,
            workload=Workload(batch=16, sequence=4096),
        )
        assert alarms(made) == [], f"{name} {mesh} {strategy}"


@pytest.mark.parametrize(
    "name", [n for n in preset_names() if load_model(n).n_parameters < 4e9] or ["llama3-8b"]
)
def test_plain_data_parallelism_that_fits_gives_no_alarm(name):
    made = shardlab.plan(
        name,
        "data=8",
        strategy="data-parallel",
        hardware=CHIP,
        optimizer="adamw",
        workload=Workload(batch=8, sequence=4096),
    )
    assert made.fits
    assert alarms(made) == []
    assert [found.code for found in made.findings] == ["plan.optimizer_replicated"]
