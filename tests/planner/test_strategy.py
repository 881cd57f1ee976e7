"""Strategies: their specs for every preset and for unknown trees."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.errors import InvalidType, UnknownMeshAxis, UnknownOption
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.presets import load_preset, preset_names
from shardlab.planner.rules.matching import match_rules
from shardlab.planner.rules.rules import parse_rules
from shardlab.planner.rules.strategy_rules import derive_rules
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.planner.strategies.layer_stack import stack_model
from shardlab.planner.strategies.strategy import parse_strategy, shard_model, stack_for_strategy
from shardlab.planner.tensor_group import Tensor, TensorGroup, group_tensors, parse_tensor_group
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.sharding.partition import shard_shape
from shardlab.sharding.spec import Spec

BF16 = parse_dtype("bf16")
STRATEGIES = (
    "data-parallel",
    "fsdp",
    "tensor",
    "fsdp+tensor",
    "expert",
    "expert+fsdp",
    "expert+fsdp+tensor",
    "zero1",
    "zero2+tensor",
    "zero3",
    "pipeline+expert+fsdp+zero1",
)
MESHES = (
    Mesh(data=2, fsdp=64, tensor=8, expert=4, stage=2),
    Mesh(data=128, fsdp=2, model=128, ep=3, pp=5),  # where much does not divide
    Mesh(dp=5, fsdp=7, fsdp_transpose=2, tp=16, expert=16, pipeline=4),
)


def specs(model, strategy, mesh):
    placed = shard_model(model, parse_strategy(strategy), parse_mesh(mesh))
    return {sharded.group.name: sharded.spec for sharded in placed}


def of(*groups, architecture=None):
    return Model(name="made", groups=groups, architecture=architecture)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", preset_names())
def test_the_printed_rules_give_every_tensor_the_spec_of_the_strategy(name, mesh):
    for strategy in STRATEGIES:
        model = load_preset(name)
        placed = tuple(shard_model(model, parse_strategy(strategy), mesh))
        lines = derive_rules(placed)
        assert len(lines) <= 25
        model = stack_for_strategy(parse_strategy(strategy), model)
        rules = parse_rules([(line.pattern, line.spec) for line in lines])
        expected = {
            (sharded.group.name, sharded.group.numbers_text): sharded.spec for sharded in placed
        }
        for sharded in match_rules(model, rules, mesh):
            assert sharded.spec == expected.pop((sharded.group.name, sharded.group.numbers_text)), (
                strategy
            )
        assert expected == {}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", preset_names())
def test_every_spec_of_every_preset_divides(name, mesh):
    for strategy in STRATEGIES:
        for sharded in shard_model(load_preset(name), parse_strategy(strategy), mesh):
            for spec in (sharded.spec, sharded.gradient_spec, sharded.state_spec):
                if spec is not None:
                    # raises where it does not; only stages may have different numbers of layers
                    shard_shape(sharded.group.shape, _without_stages(spec, mesh), mesh)


def _without_stages(spec, mesh):
    stage_axes = mesh_axis_roles(mesh).get("stage", ())
    return Spec(*(tuple(name for name in axes if name not in stage_axes) for axes in spec.axes))


def test_llama_under_fsdp_and_tensor_is_sharded_as_in_megatron_and_maxtext():
    specs_by_name = specs(load_preset("llama3-70b"), "fsdp+tensor", "fsdp=64,tensor=8")
    column, row = Spec("tensor", "fsdp"), Spec("fsdp", "tensor")
    assert {name.removeprefix("model.").replace("layers.*.", ""): item
            for name, item in specs_by_name.items()} == {
        "embed_tokens.weight": column,
        "input_layernorm.weight": Spec(),
        "self_attn.q_proj.weight": column,
        "self_attn.k_proj.weight": column,
        "self_attn.v_proj.weight": column,
        "self_attn.o_proj.weight": row,
        "post_attention_layernorm.weight": Spec(),
        "mlp.gate_proj.weight": column,
        "mlp.up_proj.weight": column,
        "mlp.down_proj.weight": row,
        "norm.weight": Spec(),
        "lm_head.weight": column,
    }  # fmt: skip


def test_kv_heads_that_do_not_divide_stay_replicated_and_are_remembered():
    placed = shard_model(load_preset("llama3-70b"), parse_strategy("tensor"), Mesh(tensor=16))
    actual = {sharded.group.name: sharded for sharded in placed}
    query = actual["model.layers.*.self_attn.q_proj.weight"]
    key = actual["model.layers.*.self_attn.k_proj.weight"]
    assert (query.spec, query.declined) == (Spec("tensor"), ())
    assert key.spec == Spec()  # 1024 = 8 heads of 128 would divide by 16, through every head
    assert [str(sharded) for sharded in key.declined] == [
        "8 kv heads are not divisible by 16 (mesh axis 'tensor')"
    ]


def test_queries_keys_and_values_in_one_matrix_are_sharded_as_often_as_the_kv_heads():
    architecture = Architecture(
        layers=1, hidden=64, heads=8, kv_heads=2, head_dim=8, ffn=256, vocab=100
    )
    model = of(
        TensorGroup(path_parts=("attn.qkv_proj.weight",), shape=(96, 64), dtype=BF16),
        architecture=architecture,
    )
    assert specs(model, "tensor", "tensor=2") == {"attn.qkv_proj.weight": Spec("tensor")}
    # 96 = (8 + 2 + 2) heads of 8 would divide by 4, and 8 query heads too
    (placed,) = shard_model(model, parse_strategy("tensor"), Mesh(tensor=4))
    assert placed.spec == Spec()
    assert [str(skipped) for skipped in placed.declined] == [
        "2 kv heads are not divisible by 4 (mesh axis 'tensor')"
    ]


def test_zero3_shards_parameters_over_every_axis_that_shards_the_batch():
    model = of(parse_tensor_group("layers.0.mlp.up_proj.weight", (32, 16), BF16))
    specs_by_name = specs(model, "zero3", "data=2,fsdp=4,tensor=8")
    assert specs_by_name == {"layers.0.mlp.up_proj.weight": Spec(None, ("data", "fsdp"))}


def test_fsdp_leaves_a_bias_of_two_axes_replicated():
    model = of(
        TensorGroup(path_parts=("attn/query/bias",), shape=(8, 16), dtype=BF16),
        TensorGroup(path_parts=("w",), shape=(8, 16), dtype=BF16),
    )
    assert specs(model, "fsdp", "fsdp=4") == {"attn/query/bias": Spec(), "w": Spec(None, "fsdp")}


def test_heads_with_an_axis_of_their_own_need_no_architecture():
    model = of(
        TensorGroup(path_parts=("a/query/kernel",), shape=(64, 8, 16), dtype=BF16),
        TensorGroup(path_parts=("a/key/kernel",), shape=(64, 2, 16), dtype=BF16),
    )
    specs_by_name = specs(model, "tensor", "tensor=4")
    assert specs_by_name == {"a/query/kernel": Spec(None, "tensor"), "a/key/kernel": Spec()}


def test_fsdp_takes_another_axis_where_the_first_does_not_divide():
    model = of(parse_tensor_group("layers.0.mlp.up_proj.weight", (12, 10), BF16))
    assert specs(model, "fsdp", "fsdp=5") == {"layers.0.mlp.up_proj.weight": Spec(None, "fsdp")}
    assert specs(model, "fsdp", "fsdp=6") == {"layers.0.mlp.up_proj.weight": Spec("fsdp")}
    # both parts on one axis, the tensor part being the major one
    assert specs(model, "fsdp+tensor", "fsdp=3,tensor=2") == {
        "layers.0.mlp.up_proj.weight": Spec(("tensor", "fsdp"))
    }


def test_fsdp_that_divides_nothing_leaves_a_matrix_replicated_and_says_so():
    model = of(parse_tensor_group("layers.0.mlp.up_proj.weight", (12, 10), BF16))
    (placed,) = shard_model(model, parse_strategy("fsdp"), Mesh(fsdp=7))
    assert placed.spec == Spec()
    assert [str(skipped) for skipped in placed.declined] == [
        "dimension 1 of size 10 is not divisible by 7 (mesh axis 'fsdp')"
    ]


def test_several_mesh_axes_of_one_role_shard_one_dimension():
    model = of(parse_tensor_group("mlp.up_proj.weight", (12, 40), BF16))
    mesh = Mesh(fsdp=4, fsdp_transpose=5)
    assert specs(model, "fsdp", mesh) == {
        "mlp.up_proj.weight": Spec(None, ("fsdp", "fsdp_transpose"))
    }
    # 40 does not divide by 4 x 3: the last is given up
    assert specs(model, "fsdp", Mesh(fsdp=4, fsdp_transpose=3)) == {
        "mlp.up_proj.weight": Spec(("fsdp", "fsdp_transpose"))  # 12 does
    }
    assert specs(model, "fsdp", Mesh(fsdp=4, fsdp_transpose=7)) == {
        "mlp.up_proj.weight": Spec(None, "fsdp")
    }


def test_mesh_axes_of_size_1_are_left_out():
    model = of(parse_tensor_group("mlp.up_proj.weight", (12, 40), BF16))
    mesh = Mesh(data=1, fsdp=4, fsdp_transpose=1, tensor=1)
    assert specs(model, "fsdp+tensor+zero1", mesh) == {"mlp.up_proj.weight": Spec(None, "fsdp")}


def test_experts_are_stacked_and_all_else_is_sharded_over_their_axis_too():
    specs_by_name = specs(load_preset("mixtral-8x7b"), "expert+fsdp", "expert=8,fsdp=16")
    moe = "model.layers.*.block_sparse_moe"
    assert specs_by_name[f"{moe}.experts.w1.weight"] == Spec("expert", None, "fsdp")
    assert specs_by_name[f"{moe}.experts.w2.weight"] == Spec("expert", "fsdp")
    assert specs_by_name[f"{moe}.gate.weight"] == Spec(None, ("fsdp", "expert"))
    assert specs_by_name["model.layers.*.self_attn.q_proj.weight"] == Spec(None, ("fsdp", "expert"))


def test_too_many_devices_for_the_experts_leave_them_replicated():
    placed = shard_model(load_preset("mixtral-8x7b"), parse_strategy("expert"), Mesh(expert=16))
    experts = [sharded for sharded in placed if "experts" in sharded.group.name]
    assert [sharded.spec for sharded in experts] == [Spec()] * 3
    assert {str(sharded.declined[0]) for sharded in experts} == {
        "dimension 0 of size 8 is not divisible by 16 (mesh axis 'expert')"
    }


def test_a_dense_model_under_the_expert_strategy_is_left_replicated():
    specs_by_name = specs(load_preset("llama3-8b"), "expert", "expert=8")
    assert set(specs_by_name.values()) == {Spec()}


def test_a_pipeline_shards_stacked_layers_over_stages_and_leaves_tables_on_each():
    specs_by_name = specs(
        load_preset("llama3-8b"), "fsdp+tensor+pipeline", "stage=4,fsdp=8,tensor=2"
    )
    assert specs_by_name["model.layers.mlp.down_proj.weight"] == Spec("stage", "fsdp", "tensor")
    assert specs_by_name["model.layers.input_layernorm.weight"] == Spec("stage")
    assert specs_by_name["model.embed_tokens.weight"] == Spec("tensor", "fsdp")
    assert specs_by_name["model.norm.weight"] == Spec()


@pytest.mark.parametrize(("n_stages", "spec"), [(3, Spec("stage")), (64, Spec())])
def test_stages_may_have_different_numbers_of_layers_but_not_none(n_stages, spec):
    mesh = Mesh(stage=n_stages)
    (up,) = [
        sharded
        for sharded in shard_model(load_preset("llama3-8b"), parse_strategy("pp"), mesh)
        if "up_proj" in sharded.group.name
    ]
    assert up.spec == spec


def test_fsdp_never_shards_the_layers_of_a_stacked_model():
    model = stack_model(load_preset("llama3-8b"), "layers")
    for sharded in shard_model(model, parse_strategy("fsdp"), Mesh(fsdp=32)):
        position = (
            sharded.group.stacked_meanings.index("layers")
            if sharded.group.stacked_meanings
            else None
        )
        assert (
            position is None or position >= len(sharded.spec) or not sharded.spec.axes[position]
        ), sharded.group.name
    names = {
        sharded.group.name: sharded.spec
        for sharded in shard_model(model, parse_strategy("fsdp"), Mesh(fsdp=8))
    }
    assert names["model.layers.mlp.up_proj.weight"] == Spec(None, None, "fsdp")
    assert names["model.layers.input_layernorm.weight"] == Spec()  # stacked norms stay small


def test_unknown_names_are_sharded_by_shape():
    model = of(
        TensorGroup(path_parts=("foo/w",), shape=(6, 20), dtype=BF16),
        TensorGroup(path_parts=("bar/w",), shape=(20, 6), dtype=BF16),
        TensorGroup(path_parts=("conv/kernel",), shape=(3, 3, 8, 16), dtype=BF16),
        TensorGroup(path_parts=("foo/b",), shape=(20,), dtype=BF16),
        TensorGroup(path_parts=("step",), shape=(), dtype=BF16),
    )
    assert specs(model, "fsdp", "data=2") == {
        "foo/w": Spec(None, "data"),
        "bar/w": Spec("data"),
        "conv/kernel": Spec(None, None, None, "data"),
        "foo/b": Spec(),
        "step": Spec(),
    }
    # tensor takes the wide side, as Megatron does of a feed-forward part; fsdp the other one
    specs_by_name = specs(model, "fsdp+tensor", "fsdp=2,tensor=4")
    assert (specs_by_name["foo/w"], specs_by_name["bar/w"]) == (
        Spec("fsdp", "tensor"),
        Spec("tensor", "fsdp"),
    )


def test_zero_shards_states_then_gradients_then_parameters():
    model = of(parse_tensor_group("layers.0.mlp.up_proj.weight", (12, 10), BF16))
    full, cut = Spec(), Spec("data")
    for name, expected in {
        "data-parallel": (full, None, None),
        "zero1": (full, None, cut),
        "zero2": (full, cut, cut),
        "zero3": (cut, None, None),
    }.items():
        (placed,) = shard_model(model, parse_strategy(name), Mesh(data=4))
        assert (placed.spec, placed.gradient_spec, placed.state_spec) == expected, name


def test_zero_with_tensor_shards_the_axis_that_tensor_does_not_use():
    model = of(parse_tensor_group("layers.0.mlp.up_proj.weight", (12, 10), BF16))
    (placed,) = shard_model(model, parse_strategy("tensor+zero1"), Mesh(data=5, model=4))
    assert (placed.spec, placed.state_spec) == (Spec("model"), Spec("model", "data"))
    (placed,) = shard_model(model, parse_strategy("tensor+zero1"), Mesh(data=3, model=4))
    assert (placed.spec, placed.state_spec) == (Spec("model"), Spec(("model", "data")))


def test_zero_shards_over_the_expert_axis_what_is_no_expert():
    moe = "model.layers.*.block_sparse_moe"
    mesh = Mesh(data=2, expert=4)
    for name in ("expert+zero1", "expert+zero3"):
        placed = shard_model(load_preset("mixtral-8x7b"), parse_strategy(name), mesh)
        actual = {sharded.group.name: sharded.state_spec or sharded.spec for sharded in placed}
        assert actual["model.norm.weight"] == Spec(("data", "expert"))
        assert ("data", "expert") in actual["model.layers.*.self_attn.q_proj.weight"].axes
        assert set(actual[f"{moe}.experts.w1.weight"].mesh_axes) == {"expert", "data"}
        assert actual[f"{moe}.experts.w1.weight"].axes[0] == ("expert",)


def test_zero_shards_norms_too():
    (placed,) = shard_model(
        of(TensorGroup(path_parts=("norm.weight",), shape=(12,), dtype=BF16)),
        parse_strategy("zero3"),
        Mesh(data=4),
    )
    assert (placed.spec, placed.gradient_spec, placed.state_spec) == (
        Spec(),
        Spec("data"),
        Spec("data"),
    )


@pytest.mark.parametrize(
    ("alias", "parts", "zero"),
    [
        ("dp", (), 0),
        ("ddp", (), 0),
        ("FSDP+TP", ("tensor", "fsdp"), 0),
        ("tp + fsdp", ("tensor", "fsdp"), 0),
        ("ep+dp", ("expert",), 0),
        ("zero-1", (), 1),
        ("zero1+zero2", (), 2),
        ("zero3+tensor", ("tensor", "fsdp"), 3),
    ],
)
def test_other_names_for_the_same_strategies(alias, parts, zero):
    assert (parse_strategy(alias).parts, parse_strategy(alias).zero_stage) == (parts, zero)


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("fdsp", "Unknown strategy 'fdsp'", "Did you mean 'fsdp'?"),
        ("fsdp+tensro", "Unknown strategy 'tensro'", "Did you mean 'tensor'?"),
        ("zero4", "Unknown strategy 'zero4'", "Did you mean 'zero"),
        ("", "Unknown strategy ''", "such as 'fsdp+tensor'"),
        ("fsdp+", "Unknown strategy ''", "such as 'fsdp+tensor'"),
    ],
)
def test_an_unknown_strategy_suggests_the_nearest(name, message, fix):
    with pytest.raises(UnknownOption) as caught:
        parse_strategy(name)
    assert message in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize("name", [5, b"fsdp", None, ["fsdp"], True])
def test_a_strategy_is_text(name):
    with pytest.raises(InvalidType, match="is not a strategy"):
        parse_strategy(name)


@pytest.mark.parametrize(
    ("strategy", "mesh", "fix"),
    [
        ("tensor", "data=8", "name an axis tensor, model or tp, as in data=8,tensor=…."),
        ("fsdp", "model=8", "name an axis fsdp, fsdp_transpose, zero, data, dp or batch"),
        ("expert", "data=8", "as in data=8,expert=…."),
        (
            "zero1",
            "model=8",
            "name an axis data, dp, batch, fsdp, fsdp_transpose, zero, expert, experts, ep, "
            "sequence, context or sp",
        ),
        ("dp", "model=8", "name an axis data"),
    ],
)
def test_a_mesh_without_the_axis_of_a_part_is_rejected_with_what_to_write(strategy, mesh, fix):
    with pytest.raises(UnknownMeshAxis) as caught:
        specs(load_preset("llama3-8b"), strategy, mesh)
    assert f"The strategy {strategy!r} needs a mesh axis" in caught.value.what
    assert fix in caught.value.fix


def rules_given_back(tensors):
    """The lines of tensors cut over tensor=4, after checking that they give the same specs."""
    model, mesh = of(*group_tensors(tensors)), Mesh(tensor=4)
    placed = tuple(shard_model(model, parse_strategy("tensor"), mesh))
    lines = derive_rules(placed)
    by_kind = {kind: [line for line in lines if line.kind == kind] for kind in ("path", "pattern")}
    rules = parse_rules(
        {
            "specs": {line.pattern: line.spec for line in by_kind["path"]},
            "rules": [(line.pattern, line.spec) for line in by_kind["pattern"]],
        }
    )
    expected = {path: sharded.spec for sharded in placed for path in sharded.group.paths()}
    sharded_groups = match_rules(model, rules, mesh)
    assert {
        path: sharded.spec for sharded in sharded_groups for path in sharded.group.paths()
    } == expected
    return lines


def test_layers_that_alternate_are_matched_by_their_numbers():
    # odd layers have 6 columns, which 4 devices do not divide
    lines = rules_given_back(
        Tensor(f"layers.{n}.experts.{e}.up_proj.weight", (6 if n % 2 else 8, 3), BF16)
        for n in range(8)
        for e in range(3)
    )
    assert [(line.pattern, line.spec) for line in lines] == [
        (r"^layers\.(1|3|5|7)\.experts\.(0|1|2)\.up_proj\.weight$", Spec()),
        (r"up_proj\.weight$", Spec("tensor")),
    ]


def test_tensors_that_no_short_pattern_matches_are_named_by_path():
    tensors = [
        Tensor(f"layers.{n}.experts.{e}.up_proj.weight", (6 if (n + e) % 2 else 8, 3), BF16)
        for n in range(40)
        for e in range(40)
    ]
    lines = rules_given_back(tensors)
    assert max(len(line.pattern) for line in lines) < 100
    assert sum(line.kind == "path" for line in lines) == 800


NAMES = st.sampled_from(
    ["q_proj.weight", "k_proj.weight", "up.kernel", "foo", "norm.scale", "x.norm.scale", "w1", "b"]
)


@settings(max_examples=60, deadline=None)
@given(
    tensors=st.lists(
        st.tuples(
            st.sampled_from(
                ["", "layers.{0..3}.", "layers.7.", "a/b/", "layers.{0..3}.experts.{0..5}."]
            ),
            NAMES,
            st.lists(st.integers(0, 48), max_size=3),
        ),
        min_size=1,
        max_size=12,
        unique_by=lambda sharded: sharded[:2],
    ),
    sizes=st.tuples(*[st.integers(1, 6)] * 5),
    strategy=st.sampled_from(STRATEGIES),
)
def test_any_tree_is_sharded_so_that_it_divides_and_its_rules_say_it(tensors, sizes, strategy):
    mesh = Mesh(zip(("data", "fsdp", "tensor", "expert", "stage"), sizes, strict=True))
    architecture = Architecture(
        layers=4, hidden=24, heads=6, kv_heads=3, head_dim=4, ffn=48, vocab=96
    )
    groups = tuple(
        parse_tensor_group(prefix + name, tuple(shape), BF16) for prefix, name, shape in tensors
    )
    model = of(*groups, architecture=architecture)
    placed = tuple(shard_model(model, parse_strategy(strategy), mesh))
    assert sum(sharded.group.n_tensors * sharded.group.n_elements for sharded in placed) == (
        model.n_parameters
    )
    for sharded in placed:
        for spec in (sharded.spec, sharded.gradient_spec, sharded.state_spec):
            if spec is not None:
                shard_shape(sharded.group.shape, _without_stages(spec, mesh), mesh)
    rules = parse_rules([(line.pattern, line.spec) for line in derive_rules(placed)])
    stacked = stack_for_strategy(parse_strategy(strategy), model)
    actual = {
        path: sharded.spec
        for sharded in match_rules(stacked, rules, mesh)
        for path in sharded.group.paths()
    }
    assert actual == {path: sharded.spec for sharded in placed for path in sharded.group.paths()}


@pytest.mark.parametrize("axis", ["context", "cp"])
def test_fsdp_and_zero_also_shard_over_context(axis):
    # MaxText's logical rules: embed -> fsdp, sequence, context; torchtitan: the mesh dp_shard_cp
    mesh = parse_mesh(f"fsdp=4,{axis}=2,tensor=2")
    down = next(
        sharded
        for sharded in shard_model(load_preset("llama3-8b"), parse_strategy("fsdp+tensor"), mesh)
        if "down_proj" in sharded.group.name
    )
    assert down.spec == Spec(("fsdp", axis), "tensor")
    # Megatron's distributed optimizer: the data-parallel group with context parallelism
    mesh = parse_mesh(f"data=4,{axis}=2,tensor=2")
    down = next(
        sharded
        for sharded in shard_model(load_preset("llama3-8b"), parse_strategy("tensor+zero1"), mesh)
        if "down_proj" in sharded.group.name
    )
    assert (down.spec, down.state_spec) == (Spec(None, "tensor"), Spec(("data", axis), "tensor"))
