"""Models from pytrees: plain containers without JAX, all others as JAX flattens them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import OrderedDict, namedtuple

import equinox as eqx
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import shardlab
from shardlab.errors import InvalidModel
from shardlab.planner.models.pytree import MAX_DEPTH, iterate_tensors, model_from_pytree
from shardlab.sharding.spec import Spec

Pair = namedtuple("Pair", ["first", "second"])
STRUCT = jax.ShapeDtypeStruct((6, 4), jnp.bfloat16)


@dataclasses.dataclass
class Block:
    kernel: object
    width: int = 4


@jax.tree_util.register_pytree_node_class
class Custom:
    def __init__(self, inside):
        self.inside = inside

    def tree_flatten(self):
        return (self.inside,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Broken(Custom):
    def tree_flatten(self):
        raise RuntimeError("no parts today")


jax.tree_util.register_pytree_node_class(Broken)


def paths(tree):
    return [tensor.path for tensor in iterate_tensors(tree)]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"b": STRUCT, "a": [STRUCT, (STRUCT,)]}, ["b", "a/0", "a/1/0"]),
        (OrderedDict(x=STRUCT), ["x"]),
        (Pair(STRUCT, None), ["first"]),
        (Block(STRUCT), ["kernel"]),
        (STRUCT, [""]),
        (np.zeros((2, 3)), [""]),
        ({3: jnp.zeros(2)}, ["3"]),
        (flax.core.freeze({"a": {"b": STRUCT}}), ["a/b"]),
        ({"c": Custom([STRUCT])}, ["c/0/0"]),
        (eqx.nn.Linear(2, 3, key=jax.random.key(0)), ["weight", "bias"]),
        ({"n": 3, "f": len, "t": "text", "w": STRUCT}, ["w"]),
    ],
)
def test_arrays_are_found_by_their_keys(tree, expected):
    assert paths(tree) == expected


def test_jax_finds_the_same_arrays():
    tree = {"a": [STRUCT, Pair(STRUCT, {"k": STRUCT})], "m": Custom(STRUCT), "z": None}
    theirs = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    assert paths(tree) == theirs


def test_layers_of_one_shape_are_a_group():
    model = model_from_pytree({"layers": [{"w": STRUCT} for _ in range(12)]})
    assert [(group.name, group.n_tensors) for group in model.groups] == [("layers/*/w", 12)]
    assert model.n_parameters == 12 * 24


def test_what_is_no_array_is_named():
    model = model_from_pytree({"w": STRUCT, "step": 3, "f": len})
    assert model.notes == ("Not counted because they are not arrays: step (int), f (function).",)


def test_a_sharding_of_its_own_is_the_spec():
    mesh = AbstractMesh((2, 3), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("model", "data"))
    tree = {"w": jax.ShapeDtypeStruct((6, 4), jnp.float32, sharding=sharding)}
    model = model_from_pytree(tree)
    assert model.groups[0].spec == Spec("model", "data")
    assert model.details == {"mesh": "data=2,model=3"}
    result = shardlab.plan(tree, "data=2,model=3")
    assert result.rows[0].parameter.shard_shape == sharding.shard_shape((6, 4)) == (2, 2)
    assert result.notes == ()
    (note,) = shardlab.plan(tree, "data=4,model=3").notes
    assert note == "The model's own specs were made for the mesh data=2,model=3; this one is " + (
        "data=4,model=3."
    )


def test_boxes_of_linen_give_mesh_axes_or_names():
    class Layer(linen.Module):
        @linen.compact
        def __call__(self, x):
            kernel = linen.with_logical_partitioning(linen.initializers.normal(), ("embed", "mlp"))
            bias = linen.with_partitioning(linen.initializers.zeros, ("tensor",))
            return linen.Dense(4, kernel_init=kernel, bias_init=bias)(x)

    result = jax.eval_shape(Layer().init, jax.random.key(0), jnp.zeros((2, 3)))
    by_path = {tensor.path: tensor for tensor in iterate_tensors(result)}
    assert by_path["params/Dense_0/kernel"].axes == ("embed", "mlp")
    assert by_path["params/Dense_0/kernel"].shape == (3, 4)
    assert by_path["params/Dense_0/bias"].spec == Spec("tensor")
    with pytest.raises(InvalidModel, match=r"jax\.eval_shape"):
        shardlab.plan(Layer(), "data=2")


def test_a_function_makes_what_it_returns_without_allocating():
    # 4 TB, and things that no traced function may return.
    model = model_from_pytree(lambda: {"w": jnp.zeros((1_000_000, 1_000_000)), "f": len, "t": "x"})
    assert model.n_parameters == 10**12
    assert model.notes == ("Not counted because they are not arrays: f (function), t (str).",)


def test_plain_containers_need_no_jax():
    code = (
        "import sys, numpy, shardlab\n"
        "tree = {'a': [numpy.zeros((8, 4), 'f4')]}\n"
        "plan = shardlab.plan(tree, 'data=2', rules={'rules': [('a', 'data')]})\n"
        "assert plan.rows[0].bytes_per_device == 64, plan\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def cyclic():
    inner = {}
    tree = {"layers": [Block(inner)]}
    inner["back"] = tree
    return tree


def deep(n):
    tree = STRUCT
    for _ in range(n):
        tree = [tree]
    return tree


def wide_as_paths():
    tree = [STRUCT]
    for _ in range(60):
        tree = [tree, tree]
    return tree


class Sized:
    def __init__(self, shape, dtype="float32"):
        self.shape, self.dtype = shape, dtype


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (cyclic(), "contains itself: the container at 'layers/0/kernel/back'"),
        (deep(MAX_DEPTH + 1), "more than 200 nested containers"),
        (deep(100_000), "more than 200 nested containers"),
        (Custom(deep(100_000)), "more than 200 nested containers"),
        ({"a": Sized((3, -1))}, "The array at 'a' is invalid: its shape: a size of -1"),
        ({"a": Sized((float("nan"),))}, "The array at 'a' is invalid"),
        ({"a": Sized("ab")}, "The array at 'a' is invalid"),
        ({"a": Sized((2,), "float33")}, "Unknown dtype 'float33'"),
        ({"a": {"b": Broken(STRUCT)}}, "The Broken at 'a/b' cannot be flattened: RuntimeError"),
        ({}, "There is no array in pytree"),
        ({"n": 3}, r"There is no array in pytree: n \(int\)"),
        (lambda: 3, "There is no array"),
        (lambda x: x, "cannot be called without 'x'"),
        (None, "None is not a model"),
        (3.5, "3.5 is not a model"),
        (b"llama", "is not a model"),
    ],
)
def test_what_cannot_be_read_is_reported_with_its_place(tree, message):
    with pytest.raises(InvalidModel, match=message):
        shardlab.plan(tree, "data=2")


def test_a_container_in_many_places_is_an_error(monkeypatch):
    monkeypatch.setattr("shardlab.planner.models.pytree.MAX_NODES", 10_000)
    with pytest.raises(InvalidModel, match="more than 10,000 nodes"):
        model_from_pytree(wide_as_paths())
