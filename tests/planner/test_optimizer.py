"""Optimizers: what each stores for a parameter, compared with Optax itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from shardlab.errors import UnknownOption
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.memory.optimizer import optimizer_states, parse_optimizer
from shardlab.planner.model import Model
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import parse_dtype

F32, BF16 = parse_dtype("f32"), parse_dtype("bf16")
AS_OPTAX = DtypePolicy(moments=None)  # moments in the parameter's dtype
OPTAX = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1),
    "adafactor": optax.adafactor(0.1),
    "lion": optax.lion(0.1),
    "muon": optax.contrib.muon(0.1),
}
SHAPES = [
    (),
    (7,),
    (130,),
    (64, 512),  # too small a dimension for adafactor to factor
    (127, 200),  # by one
    (128, 200),
    (200, 128),
    (256, 256),  # of equal sizes the first counts as the smaller one
    (3, 256, 257),
    (257, 3, 256),
    (130, 131, 132),
    (2, 3, 5, 7),
    (2, 129, 128, 3),
]


def optax_leaves(name, shapes, dtype):
    """Names, shapes and dtypes of Optax's state, parameters by their number."""
    parameters = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    with_paths = jax.tree_util.tree_leaves_with_path(jax.eval_shape(OPTAX[name].init, parameters))
    return [(path, leaf.shape, leaf.dtype.name) for path, leaf in with_paths]


def n_bytes(leaves):
    sizes = [jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype in leaves]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in sizes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTAX)
def test_states_of_a_parameter_are_the_leaves_that_optax_stores_for_it(name, dtype):
    policy = DtypePolicy(moments=None, with_master=False)
    for shape in SHAPES:
        leaves = optax_leaves(name, [shape], jnp.dtype(dtype))
        # The path of a parameter's leaf ends with the parameter's index.
        expected = sorted(
            (path[-2].name, shape, dtype)
            for path, shape, dtype in leaves
            if isinstance(path[-1], jax.tree_util.SequenceKey)
        )
        states = optimizer_states(parse_optimizer(name), shape, parse_dtype(dtype), policy)
        arrays = sorted((state.name, state.shape, state.dtype.name) for state in states)
        assert arrays == expected, shape


@pytest.mark.parametrize("name", OPTAX)
def test_a_plan_has_every_byte_that_optax_stores_counters_included(name):
    model = Model(
        name="made",
        groups=tuple(
            TensorGroup(path_parts=(f"p{index}",), shape=shape, dtype=F32)
            for index, shape in enumerate(SHAPES)
        ),
    )
    trained = plan(model, "data=4", optimizer=name, policy=AS_OPTAX)
    assert trained.bytes_of("optimizer") == n_bytes(optax_leaves(name, SHAPES, jnp.float32))


def test_every_optimizer_but_none_is_compared_with_optax():
    for name in OPTAX:
        assert parse_optimizer(name).name == name
    with pytest.raises(UnknownOption) as caught:
        parse_optimizer("addam")
    listed = caught.value.what.partition("known: ")[2].rstrip(".").split(", ")
    assert set(listed) == {"none", *OPTAX}


def test_states_are_sharded_like_the_dimensions_they_share():
    model = Model(
        name="made", groups=(TensorGroup(path_parts=("w",), shape=(256, 512, 3), dtype=F32),)
    )
    rules = [("w", ("data", "model", None))]
    (row,) = plan(model, "data=4,model=8", rules=rules, optimizer="adafactor").rows
    shards = {array.name: array.shard_shape for array in row.arrays}
    # factored over 512 and 256: rows have 256 and 3, columns 512 and 3
    assert shards == {
        "parameter": (64, 64, 3),
        "gradient": (64, 64, 3),
        "v_row": (64, 3),
        "v_col": (64, 3),
        "v": (1,),
    }
    specs = {array.name: str(array.spec) for array in row.arrays if array.kind == "optimizer"}
    assert specs == {
        "v_row": "P('data', None)",
        "v_col": "P('model', None)",
        "v": "P(None)",
    }


def test_a_placeholder_is_replicated_if_its_parameter_is_sharded():
    model = Model(name="made", groups=(TensorGroup(path_parts=("b",), shape=(256,), dtype=F32),))
    rules = {"rules": [("b", ("data",))]}
    (row,) = plan(model, "data=4", rules=rules, optimizer="adafactor").rows
    assert [(array.name, array.shape, str(array.spec)) for array in row.arrays[2:]] == [
        ("v_row", (1,), "P(None)"),
        ("v_col", (1,), "P(None)"),
        ("v", (256,), "P('data')"),
    ]


def test_adamw_has_a_master_copy_of_narrow_parameters_only():
    def state_names(name, dtype):
        states = optimizer_states(parse_optimizer(name), (4, 6), dtype, DtypePolicy())
        return [state.name for state in states]

    assert state_names("adamw", BF16) == ["master", "mu", "nu"]
    assert state_names("adamw", F32) == ["mu", "nu"]
    assert state_names("adam", BF16) == ["mu", "nu"]


def test_a_parsed_optimizer_is_accepted():
    assert parse_optimizer(parse_optimizer("lion")) is parse_optimizer("lion")


def test_sgd_with_momentum_has_other_names():
    assert {parse_optimizer(name).name for name in ("sgdm", "SGD+momentum")} == {"momentum"}


@pytest.mark.parametrize("name", ["addamw", "", "ADAM W"])
def test_an_unknown_optimizer_is_rejected(name):
    with pytest.raises(UnknownOption, match="Unknown optimizer"):
        parse_optimizer(name)


@pytest.mark.parametrize("name", [3, None, b"adam", True, ["adam"]])
def test_an_optimizer_is_text(name):
    with pytest.raises(UnknownOption, match="Unknown optimizer"):
        parse_optimizer(name)
