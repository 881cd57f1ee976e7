"""Stacking: many tensors in one array, with the same bytes."""

from __future__ import annotations

import pytest

from shardlab.errors import UnknownOption
from shardlab.planner.make_plan import plan
from shardlab.planner.model import Model
from shardlab.planner.models.presets import load_preset, preset_names
from shardlab.planner.strategies.layer_stack import stack_model
from shardlab.planner.tensor_group import Tensor, group_tensors, parse_tensor_group
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.spec import Spec

BF16 = parse_dtype("bf16")


@pytest.mark.parametrize("over", ["experts", "layers", "all"])
@pytest.mark.parametrize("name", preset_names())
def test_a_stacked_preset_has_the_same_bytes_in_fewer_arrays(name, over):
    model = load_preset(name)
    stacked = stack_model(model, over)
    assert (stacked.n_parameters, stacked.n_bytes) == (model.n_parameters, model.n_bytes)
    has_experts = model.architecture.experts > 0
    assert (stacked.n_tensors < model.n_tensors) == (has_experts or over != "experts")


def test_layers_and_experts_become_the_first_array_axes():
    model = Model(
        name="m",
        groups=(parse_tensor_group("layers.{0..3}.experts.{0..7}.w1.weight", (6, 5), BF16),),
    )
    shapes = {over: [(group.name, group.n_tensors, group.shape, group.stacked_meanings)
                     for group in stack_model(model, over).groups]
              for over in ("experts", "layers", "all")}  # fmt: skip
    assert shapes == {
        "experts": [("layers.*.experts.w1.weight", 4, (8, 6, 5), ("experts", "mlp", "embed"))],
        "layers": [("layers.experts.*.w1.weight", 8, (4, 6, 5), ("layers", "mlp", "embed"))],
        "all": [
            ("layers.experts.w1.weight", 1, (4, 8, 6, 5), ("layers", "experts", "mlp", "embed"))
        ],
    }


LOGICAL = {
    "own": [("embed", ("fsdp", "expert")), ("mlp", "tensor"), ("heads", "tensor")],
    "maxtext": [
        *(("embed_vocab", ("fsdp", "expert")), ("vocab", "tensor"), ("q_heads", "tensor")),
        *(("kv_heads", "tensor"), ("kv", None), ("q_lora", ("fsdp", "expert"))),
        *(("q_lora_up_proj", None), ("kv_lora", ("fsdp", "expert")), ("kv_lora_up_proj", None)),
        *(("mlp", "tensor"), ("embed", ("fsdp", "expert")), ("norm", "tensor")),
    ],
}


@pytest.mark.parametrize("rules", LOGICAL.values(), ids=LOGICAL)
@pytest.mark.parametrize("name", preset_names())
def test_logical_rules_give_a_stacked_model_the_same_bytes(name, rules):
    def plan_summary(over):
        result = plan(name, "fsdp=4,expert=2,tensor=2", rules={"logical": rules}, stack=over)
        return result.bytes_of("parameters"), {finding.code for finding in result.findings}

    separate = plan_summary(None)
    assert [plan_summary(over) for over in ("experts", "layers", "all")] == [separate] * 3


def test_stacked_experts_have_the_names_that_maxtext_s_rules_use():
    """MaxText: moe.py names its kernels exp, embed_moe and mlp_moe."""
    logical = [("exp", "expert"), ("mlp_moe", "tensor"), ("embed_moe", "fsdp"), ("embed", "tensor")]
    result = plan(
        "mixtral-8x7b", "fsdp=8,expert=4,tensor=2", rules={"logical": logical}, stack="all"
    )
    w1 = next(row for row in result.rows if "w1" in row.path)
    assert (w1.parameter.spec, w1.rule) == (
        Spec(None, "expert", "tensor", "fsdp"),
        "logical rules for layers, exp, mlp_moe, embed_moe",
    )


def test_an_author_s_names_of_axes_stay_when_stacked():
    group = parse_tensor_group("layers.{0..3}.w", (6, 5), BF16, axes=("hidden", "fsdp"))
    (stacked,) = stack_model(Model(name="m", groups=(group,)), "layers").groups
    assert stacked.axes == ("layers", "hidden", "fsdp")


def test_layers_with_fewer_experts_are_stacked_separately():
    paths = [f"layers.{i}.experts.{j}.w1.weight" for i, n in enumerate((3, 5, 3)) for j in range(n)]
    model = Model(name="m", groups=group_tensors(Tensor(path, (6, 5), BF16) for path in paths))
    stacked = stack_model(model, "experts").groups
    assert {(tuple(finding.paths()), finding.shape) for finding in stacked} == {
        (("layers.0.experts.w1.weight", "layers.2.experts.w1.weight"), (3, 6, 5)),
        (("layers.1.experts.w1.weight",), (5, 6, 5)),
    }


def test_a_spec_of_the_model_s_own_moves_with_its_axes():
    group = parse_tensor_group("layers.{0..3}.up_proj.weight", (6, 5), BF16, spec=Spec("x", None))
    (stacked,) = stack_model(Model(name="m", groups=(group,)), "layers").groups
    assert (stacked.shape, stacked.spec) == ((4, 6, 5), Spec(None, "x", None))


def test_a_plan_says_that_it_stacked():
    result = plan("mixtral-8x7b", "expert=8", strategy="expert")
    assert result.notes[-1] == (
        "The experts among the source's 995 tensors are stacked: 323 arrays with the same bytes."
    )
    arrays = {row.path: row.parameter.shard_shape for row in result.rows}
    assert arrays["model.layers.*.block_sparse_moe.experts.w1.weight"] == (1, 14336, 4096)
    scanned = plan("llama3-8b", "fsdp=8", strategy="fsdp", stack="layers")
    assert max(row.n_tensors for row in scanned.rows) == 1


@pytest.mark.parametrize("over", ["expert", "", None, 3, b"all"])
def test_what_cannot_be_stacked_is_rejected(over):
    with pytest.raises(
        UnknownOption, match=r"Cannot stack .*\. Known options: experts, layers, all"
    ):
        stack_model(load_preset("llama3-8b"), over)
