"""Logical rules: flax.linen and flax.nnx are the reference."""

from __future__ import annotations

import pytest
from flax import linen as nn
from flax import nnx
from flax.core import spmd
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardlab.planner.model import Model
from shardlab.planner.models.load import load_model
from shardlab.planner.rules.logical_axes import (
    find_displaced_names,
    logical_entries,
    logical_spec,
    translate_meanings,
)
from shardlab.planner.rules.matching import match_rules
from shardlab.planner.rules.rules import parse_rules
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec, parse_spec

NAMES = ("embed", "mlp", "heads", "vocab")
AXES = ("data", "fsdp", "tensor")
MESH = Mesh(data=2, fsdp=3, tensor=5)
mesh_axes = st.one_of(
    st.none(),
    st.sampled_from(AXES),
    st.lists(st.sampled_from(AXES), unique=True, max_size=3).map(tuple),
)
rule_lists = st.lists(st.tuples(st.sampled_from(NAMES), mesh_axes), max_size=8)
tensor_axes = st.lists(st.sampled_from((*NAMES, None)), max_size=4).map(tuple)


def is_linen_axes(axes):
    names = [name for name in axes if name is not None]
    return len(set(names)) == len(names)  # Flax refuses a name that comes twice


@settings(max_examples=150, deadline=None)
@given(tensor_axes.filter(is_linen_axes), rule_lists)
def test_specs_are_those_of_flax_linen(axes, rules):
    parsed = parse_rules({"logical": rules})
    expected = nn.logical_to_mesh_axes(axes, rules=rules)
    assert Spec(*logical_entries(axes, parsed)) == parse_spec(P(*expected))


@settings(max_examples=150, deadline=None)
@given(tensor_axes, rule_lists)
def test_specs_are_those_of_flax_nnx(axes, rules):
    parsed = parse_rules({"logical": rules, "logical_semantics": "nnx"})
    expected = spmd.from_sharding_rules(axes, rules)
    assert Spec(*logical_entries(axes, parsed)) == parse_spec(P(*expected))


def test_linen_and_nnx_differ_in_a_name_without_a_rule_and_in_the_rule_that_counts():
    rules = [("embed", "fsdp"), ("embed", "data")]
    linen = parse_rules({"logical": rules})
    nnx = parse_rules({"logical": rules, "logical_semantics": "nnx"})
    assert logical_entries(("embed", "tensor"), linen) == (("fsdp",), ())
    assert logical_entries(("embed", "tensor"), nnx) == (("data",), ("tensor",))


def test_mesh_axes_that_the_mesh_lacks_are_left_out_once_all_is_assigned():
    """As MaxText's remove_size_one_mesh_axis does: they may have kept a second rule from it."""
    rules = parse_rules({"logical": [("embed", ("fsdp", "context")), ("mlp", "fsdp_transpose")]})
    assert logical_spec(("embed", "mlp"), rules, MESH) == Spec("fsdp", None)


def test_a_tensor_whose_names_no_rule_has_is_left_to_what_comes_next():
    assert logical_spec(("kv", None), parse_rules({"logical": [("embed", "fsdp")]}), MESH) is None


def test_names_inferred_from_a_path_are_those_that_the_rules_use():
    rules = parse_rules(
        {"logical": [(name, "fsdp") for name in ("exp", "embed_moe", "embed", "mlp")]}
    )
    assert translate_meanings(("experts", "mlp", "embed"), rules) == ("exp", "mlp", "embed_moe")
    assert translate_meanings(("vocab", "embed"), rules) == ("vocab", "embed")
    assert translate_meanings((None, "norm"), rules) == (None, "norm")


@pytest.mark.parametrize(
    ("rules", "out"),
    [
        ([("heads", "tensor"), ("mlp", "tensor")], {"mlp": ("tensor",)}),
        ([("heads", "tensor"), ("mlp", "tensor"), ("mlp", "fsdp")], {}),
        ([("heads", "tensor"), ("mlp", "tensor"), ("mlp", ())], {}),
        ([("heads", "tensor"), ("mlp", ("stage", "tensor"))], {"mlp": ("tensor",)}),
        ([("heads", "tensor")], {}),
        ([("heads", None), ("mlp", "tensor")], {}),
    ],
)
def test_an_axis_is_displaced_if_the_mesh_axes_of_all_its_rules_are_in_use(rules, out):
    assert find_displaced_names(("heads", "mlp"), parse_rules({"logical": rules}), MESH) == out


BF16 = parse_dtype("bf16")
BY_NAME = parse_rules({"logical": [("mlp", "tensor"), ("embed", "fsdp")]})


def test_logical_rules_go_by_the_names_that_a_path_tells_where_the_model_has_none():
    architecture = parse_tensor_group("layers.{0..1}.up_proj.weight", (10, 6), BF16)
    (placed,) = match_rules(Model(name="m", groups=(architecture,)), BY_NAME, MESH)
    assert (placed.spec, placed.rule) == (Spec("tensor", "fsdp"), "logical rules for mlp, embed")


def test_where_an_author_named_some_axes_tensors_without_names_are_left_replicated_as_in_flax():
    class Block(nnx.Module):
        def __init__(self, rngs):
            init = nnx.with_partitioning(nnx.initializers.zeros, ("embed", "mlp"))
            self.up_proj = nnx.Linear(6, 10, rngs=rngs, kernel_init=init)

    def block():
        return Block(nnx.Rngs(0))

    with nnx.use_eager_sharding(False):
        state = nnx.eval_shape(lambda: nnx.state(block()))
    with spmd.logical_axis_rules([("mlp", "tensor"), ("embed", "fsdp")]):
        specs = nnx.get_partition_spec(state)
    flax = {"/".join(path): parse_spec(item) for path, item in nnx.to_flat_state(specs)}
    placed = {item.group.name: item.spec for item in match_rules(load_model(block), BY_NAME, MESH)}
    assert placed == flax
    assert placed == {"up_proj/bias": Spec(), "up_proj/kernel": Spec("fsdp", "tensor")}
