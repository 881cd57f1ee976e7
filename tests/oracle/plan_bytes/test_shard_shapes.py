"""Plans agree with `NamedSharding.shard_shape` for every array of every preset."""

from __future__ import annotations

import math
from functools import cache

import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import shardlab
from shardlab.planner.models.presets import load_preset, preset_names

# Sizes that differ on each mesh, so that swapped axes show; 6 and 12 divide few tensors.
MESHES = ["fsdp=8,tensor=4", "data=2,fsdp=16,model=8", "data=6,tensor=12", "fsdp=64,expert=32,tp=2"]
STRATEGIES = ["data-parallel", "fsdp", "tensor", "fsdp+tensor", "zero1+tensor", "zero2", "zero3"]


@cache
def jax_shard_shape(mesh, spec, shape):
    parsed = shardlab.parse_mesh(mesh)
    types = (AxisType.Auto,) * len(parsed.axis_names)
    abstract = AbstractMesh(parsed.axis_sizes, parsed.axis_names, axis_types=types)
    return NamedSharding(abstract, PartitionSpec(*spec)).shard_shape(shape)


def plans(preset):
    for mesh in MESHES:
        mixture = ["expert", "expert+fsdp+tensor"] if "expert" in mesh else []
        for strategy in [*STRATEGIES, *mixture]:
            for optimizer in ("adamw", "adafactor"):
                yield mesh, shardlab.plan(preset, mesh, strategy=strategy, optimizer=optimizer)


@pytest.mark.parametrize("preset", preset_names())
def test_every_array_is_sharded_as_jax_shards_it(preset):
    n_parameters = load_preset(preset).n_parameters
    for mesh, plan in plans(preset):
        elements = 0
        for row in plan.rows:
            elements += row.n_tensors * math.prod(row.parameter.shape)
            for array in row.arrays:
                theirs = jax_shard_shape(mesh, array.spec.entries, array.shape)
                assert array.shard_shape == theirs, (mesh, plan.choices, row.path, array)
                n_shards = math.prod(array.shape) // math.prod(theirs)
                assert array.n_replicas == shardlab.parse_mesh(mesh).n_devices // n_shards
        assert elements == n_parameters
