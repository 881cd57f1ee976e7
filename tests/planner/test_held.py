"""What a device holds of an array and of all that training keeps beside it."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from shardlab.planner.make_plan import plan
from shardlab.planner.memory.device_bytes import counters_of, held_by, hold, is_trained
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.models.presets import preset_names
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

F32, BF16 = parse_dtype("f32"), parse_dtype("bf16")
MESH = Mesh(data=2, model=3, stage=5)
JAX_MESH = AbstractMesh((2, 3, 5), ("data", "model", "stage"))


@pytest.mark.parametrize(
    ("spec", "copies"),
    [
        ((), 30),
        (("data",), 15),
        ((None, "model"), 10),
        ((("data", "stage"), "model"), 1),
        ((("stage", "data"),), 3),
    ],
)
def test_a_device_holds_the_shard_that_jax_gives_it(spec, copies):
    shape = (20, 12, 7)
    held = hold("parameters", "parameter", shape, BF16, Spec(*spec), MESH, 4)
    wanted = NamedSharding(JAX_MESH, PartitionSpec(*spec)).shard_shape(shape)
    assert (held.shard_shape, held.n_copies) == (wanted, copies)
    struct = jax.ShapeDtypeStruct(wanted, "bfloat16")
    assert held.bytes_per_device == 4 * struct.size * struct.dtype.itemsize
    assert held.array_bytes == 4 * 20 * 12 * 7 * 2


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("name", preset_names())
def test_every_array_of_every_preset_has_the_shard_that_jax_gives_it(name, optimizer):
    mesh = Mesh(data=3, fsdp=16, tensor=8, expert=4)
    abstract = AbstractMesh(mesh.axis_sizes, mesh.axis_names)
    shards = {}
    for strategy in ("expert+fsdp+tensor", "tensor+zero2"):
        made = plan(name, mesh, strategy=strategy, optimizer=optimizer)
        for held in (each for row in made.rows for each in row.held):
            shards[held.shape, held.spec] = held.shard_shape
    for (shape, spec), found in shards.items():
        sharding = NamedSharding(abstract, PartitionSpec(*spec.entries))
        assert sharding.shard_shape(shape) == found, (shape, spec)


def test_an_axis_that_does_not_divide_counts_as_padded():
    held = hold("parameters", "parameter", (10,), F32, Spec("model"), MESH, 1)
    assert (held.shard_shape, held.bytes_per_device) == ((4,), 16)


def test_what_is_not_trained_has_no_gradient_and_no_state():
    trained = TensorGroup(path_parts=("norm.scale",), shape=(4,), dtype=F32)
    mean = TensorGroup(path_parts=("norm.mean",), shape=(4,), dtype=F32, is_trained=False)
    scales = TensorGroup(path_parts=("w.weight_scale_inv",), shape=(4, 4), dtype=F32)
    assert [is_trained(each) for each in (trained, mean, scales)] == [True, False, False]
    names = [
        each.name
        for each in held_by(
            ShardedGroup(group=mean, spec=Spec(), rule=""), MESH, "adamw", DtypePolicy()
        )
    ]
    assert names == ["parameter"]


def test_scales_of_narrow_weights_keep_their_own_dtype():
    fp8 = DtypePolicy(parameters=parse_dtype("float8_e4m3fn"))
    dtypes = [
        next(
            held_by(
                ShardedGroup(
                    group=TensorGroup(path_parts=(name,), shape=(4, 6), dtype=F32),
                    spec=Spec(),
                    rule="",
                ),
                MESH,
                "none",
                fp8,
            )
        ).dtype
        for name in ("w.weight", "w.weight_scale_inv")
    ]
    assert dtypes == ["f8e4m3fn", "f32"]


def test_inference_holds_parameters_alone():
    group = TensorGroup(path_parts=("w",), shape=(4,), dtype=F32)
    held = held_by(ShardedGroup(group=group, spec=Spec(), rule=""), MESH, "none", DtypePolicy())
    assert [each.name for each in held] == ["parameter"]
    assert counters_of("none") == ()


def test_gradients_and_states_may_have_specs_of_their_own():
    placed = ShardedGroup(
        group=TensorGroup(path_parts=("w",), shape=(20, 6), dtype=F32),
        spec=Spec(),
        rule="",
        rule_number=None,
        gradient_spec=Spec("data"),
        state_spec=Spec("stage"),
    )
    held = held_by(placed, MESH, "lion", DtypePolicy())
    assert [(each.name, each.shard_shape) for each in held] == [
        ("parameter", (20, 6)),
        ("gradient", (10, 6)),
        ("mu", (4, 6)),
    ]
