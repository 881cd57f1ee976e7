"""Optimizers: what each keeps beside parameters, as Optax itself says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from shardlab.errors import UnknownOption
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.memory.optimizer import parse_optimizer, states_of
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
    (64, 512),  # too small a side for adafactor to factor
    (127, 200),  # by one
    (128, 200),
    (200, 128),
    (256, 256),  # of equal sides the first is the smaller one
    (3, 256, 257),
    (257, 3, 256),
    (130, 131, 132),
    (2, 3, 5, 7),
    (2, 129, 128, 3),
]


def optax_leaves(name, shapes, dtype):
    """Names, shapes and dtypes of what Optax keeps, parameters by their number."""
    parameters = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    with_paths = jax.tree_util.tree_leaves_with_path(jax.eval_shape(OPTAX[name].init, parameters))
    return [(path, leaf.shape, leaf.dtype.name) for path, leaf in with_paths]


def n_bytes(leaves):
    sizes = [jax.ShapeDtypeStruct(shape, dtype) for _, shape, dtype in leaves]
    return sum(each.size * each.dtype.itemsize for each in sizes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTAX)
def test_states_of_a_parameter_are_the_leaves_that_optax_keeps_for_it(name, dtype):
    policy = DtypePolicy(moments=None, with_master=False)
    for shape in SHAPES:
        kept = optax_leaves(name, [shape], jnp.dtype(dtype))
        # A leaf for a parameter has the parameter's place in the list at the end of its path.
        wanted = sorted(
            (path[-2].name, shape, dtype)
            for path, shape, dtype in kept
            if isinstance(path[-1], jax.tree_util.SequenceKey)
        )
        found = states_of(name, shape, parse_dtype(dtype), policy)
        assert sorted((each.name, each.shape, each.dtype.name) for each in found) == wanted, shape


@pytest.mark.parametrize("name", OPTAX)
def test_a_plan_has_every_byte_that_optax_keeps_counters_too(name):
    model = Model(
        name="made",
        groups=tuple(
            TensorGroup(path_parts=(f"p{at}",), shape=s, dtype=F32) for at, s in enumerate(SHAPES)
        ),
    )
    made = plan(model, "data=4", optimizer=name, policy=AS_OPTAX)
    assert made.bytes_of("optimizer") == n_bytes(optax_leaves(name, SHAPES, jnp.float32))


def test_every_optimizer_but_none_is_held_to_optax():
    for name in OPTAX:
        assert parse_optimizer(name).name == name
    with pytest.raises(UnknownOption) as caught:
        parse_optimizer("addam")
    listed = caught.value.what.partition("there is ")[2].rstrip(".").split(", ")
    assert set(listed) == {"none", *OPTAX}


def test_states_are_cut_as_the_parameter_axes_they_keep():
    model = Model(
        name="made", groups=(TensorGroup(path_parts=("w",), shape=(256, 512, 3), dtype=F32),)
    )
    rules = [("w", ("data", "model", None))]
    made = plan(model, "data=4,model=8", rules=rules, optimizer="adafactor")
    shards = {each.name: each.shard_shape for each in made.rows[0].held}
    # factored over 512 and 256: rows keep 256 and 3, columns 512 and 3
    assert shards == {
        "parameter": (64, 64, 3),
        "gradient": (64, 64, 3),
        "v_row": (64, 3),
        "v_col": (64, 3),
        "v": (1,),
    }
    assert {
        each.name: str(each.spec) for each in made.rows[0].held if each.kind == "optimizer"
    } == {
        "v_row": "P('data', None)",
        "v_col": "P('model', None)",
        "v": "P(None)",
    }


def test_a_placeholder_is_whole_where_its_parameter_is_cut():
    model = Model(name="made", groups=(TensorGroup(path_parts=("b",), shape=(256,), dtype=F32),))
    made = plan(model, "data=4", rules={"rules": [("b", ("data",))]}, optimizer="adafactor")
    assert [(each.name, each.shape, str(each.spec)) for each in made.rows[0].held[2:]] == [
        ("v_row", (1,), "P(None)"),
        ("v_col", (1,), "P(None)"),
        ("v", (256,), "P('data')"),
    ]


def test_adamw_keeps_a_master_copy_of_narrow_parameters_alone():
    names = {dtype: [each.name for each in states_of("adamw", (4, 6), dtype, DtypePolicy())]
             for dtype in (BF16, F32)}  # fmt: skip
    assert names == {BF16: ["master", "mu", "nu"], F32: ["mu", "nu"]}
    assert [each.name for each in states_of("adam", (4, 6), BF16, DtypePolicy())] == ["mu", "nu"]


def test_sgd_with_momentum_has_other_names():
    assert {parse_optimizer(name).name for name in ("sgdm", "SGD+momentum")} == {"momentum"}


@pytest.mark.parametrize("name", ["addamw", "", "ADAM W"])
def test_an_unknown_optimizer_is_named(name):
    with pytest.raises(UnknownOption, match="There is no optimizer"):
        parse_optimizer(name)


@pytest.mark.parametrize("name", [3, None, b"adam", True, ["adam"]])
def test_an_optimizer_is_text(name):
    with pytest.raises(UnknownOption, match="There is no optimizer"):
        parse_optimizer(name)
