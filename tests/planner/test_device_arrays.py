"""The arrays of a tensor on one device: parameter, gradient and optimizer states."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from shardlab.planner.make_plan import plan
from shardlab.planner.memory.device_bytes import (
    device_array,
    device_arrays,
    is_trainable,
    optimizer_counters,
)
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.memory.optimizer import parse_optimizer
from shardlab.planner.models.presets import preset_names
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

F32, BF16 = parse_dtype("f32"), parse_dtype("bf16")
ADAMW, LION, NO_OPTIMIZER = map(parse_optimizer, ("adamw", "lion", "none"))
MESH = Mesh(data=2, model=3, stage=5)
JAX_MESH = AbstractMesh((2, 3, 5), ("data", "model", "stage"))


def parameter(shape, dtype, spec, n_tensors=1):
    return device_array(
        shape, dtype, spec, MESH, kind="parameters", name="parameter", n_tensors=n_tensors
    )


@pytest.mark.parametrize(
    ("spec", "n_replicas"),
    [
        ((), 30),
        (("data",), 15),
        ((None, "model"), 10),
        ((("data", "stage"), "model"), 1),
        ((("stage", "data"),), 3),
    ],
)
def test_a_device_stores_the_shard_that_jax_gives_it(spec, n_replicas):
    shape = (20, 12, 7)
    array = parameter(shape, BF16, Spec(*spec), n_tensors=4)
    expected = NamedSharding(JAX_MESH, PartitionSpec(*spec)).shard_shape(shape)
    assert (array.shard_shape, array.n_replicas) == (expected, n_replicas)
    struct = jax.ShapeDtypeStruct(expected, "bfloat16")
    assert array.bytes_per_device == 4 * struct.size * struct.dtype.itemsize
    assert array.array_bytes == 4 * 20 * 12 * 7 * 2


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("name", preset_names())
def test_every_array_of_every_preset_has_the_shard_that_jax_gives_it(name, optimizer):
    mesh = Mesh(data=3, fsdp=16, tensor=8, expert=4)
    abstract = AbstractMesh(mesh.axis_sizes, mesh.axis_names)
    shards = {}
    for strategy in ("expert+fsdp+tensor", "tensor+zero2"):
        preset_plan = plan(name, mesh, strategy=strategy, optimizer=optimizer)
        for row in preset_plan.rows:
            for array in row.arrays:
                shards[array.shape, array.spec] = array.shard_shape
    for (shape, spec), shard_shape in shards.items():
        sharding = NamedSharding(abstract, PartitionSpec(*spec.entries))
        assert sharding.shard_shape(shape) == shard_shape, (shape, spec)


def test_an_indivisible_dimension_counts_as_padded():
    array = parameter((10,), F32, Spec("model"))
    assert (array.shard_shape, array.bytes_per_device) == ((4,), 16)


def test_tensors_that_are_not_trained_have_no_gradient_and_no_state():
    scale = TensorGroup(path_parts=("norm.scale",), shape=(4,), dtype=F32)
    mean = TensorGroup(path_parts=("norm.mean",), shape=(4,), dtype=F32, is_trained=False)
    fp8_scales = TensorGroup(path_parts=("w.weight_scale_inv",), shape=(4, 4), dtype=F32)
    assert [is_trainable(group) for group in (scale, mean, fp8_scales)] == [True, False, False]
    sharded = ShardedGroup(group=mean, spec=Spec(), rule="")
    arrays = device_arrays(sharded, MESH, ADAMW, DtypePolicy())
    assert [array.name for array in arrays] == ["parameter"]


def test_scales_of_narrow_weights_keep_their_own_dtype():
    fp8 = DtypePolicy(parameters=parse_dtype("float8_e4m3fn"))
    dtypes = []
    for name in ("w.weight", "w.weight_scale_inv"):
        group = TensorGroup(path_parts=(name,), shape=(4, 6), dtype=F32)
        sharded = ShardedGroup(group=group, spec=Spec(), rule="")
        dtypes.append(next(device_arrays(sharded, MESH, NO_OPTIMIZER, fp8)).dtype)
    assert dtypes == ["f8e4m3fn", "f32"]


def test_inference_stores_only_parameters():
    group = TensorGroup(path_parts=("w",), shape=(4,), dtype=F32)
    sharded = ShardedGroup(group=group, spec=Spec(), rule="")
    arrays = device_arrays(sharded, MESH, NO_OPTIMIZER, DtypePolicy())
    assert [array.name for array in arrays] == ["parameter"]
    assert optimizer_counters(NO_OPTIMIZER) == ()


def test_gradients_and_states_may_have_specs_of_their_own():
    sharded = ShardedGroup(
        group=TensorGroup(path_parts=("w",), shape=(20, 6), dtype=F32),
        spec=Spec(),
        rule="",
        rule_number=None,
        gradient_spec=Spec("data"),
        state_spec=Spec("stage"),
    )
    arrays = device_arrays(sharded, MESH, LION, DtypePolicy())
    assert [(array.name, array.shard_shape) for array in arrays] == [
        ("parameter", (20, 6)),
        ("gradient", (10, 6)),
        ("mu", (4, 6)),
    ]
