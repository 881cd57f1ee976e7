"""Findings about plans: each where it belongs, with its numbers, and not where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import shardlab
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.findings.limits import Limits
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.load import load_model
from shardlab.planner.plan import Plan
from shardlab.planner.rules.rules import Rule, Rules, parse_rules
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.sharding.dtype import parse_dtype

BF16 = parse_dtype("bf16")
EVERY = Limits(replicated_bytes=1)


def tiny(**shapes):
    """A model of bf16 tensors by name and shape; `__` stands for a dot."""
    names = ((name.replace("__", "."), shape) for name, shape in shapes.items())
    return Model(
        name="tiny", groups=tuple(parse_tensor_group(name, shape, BF16) for name, shape in names)
    )


def chip(n_bytes):
    return parse_hardware("tpu-v5p", {"hbm_bytes": n_bytes})


def by(*pairs):
    """Rules of patterns, which a lone name might not be taken for."""
    return {"rules": list(pairs)}


def found(made, code):
    return [each for each in made.findings if each.code == code]


def only(made, code):
    (one,) = found(made, code)
    return one


# --- does it fit ---


def test_a_plan_that_does_not_fit_says_how_much_and_what_is_largest():
    model = tiny(up=(30, 10), down=(10, 20))
    made = shardlab.plan(
        model, "data=2", strategy="data-parallel", hardware=chip(1000), headroom=0.2
    )
    one = only(made, "plan.does_not_fit")
    assert one.severity == "error"
    assert not made.ok
    assert one.what == (
        "Each device needs 1.0 KB, and tpu-v5p has 800 bytes of 1.0 KB after a headroom of 20%: "
        "200 bytes too much."
    )
    assert one.cause == "headroom"
    assert one.shows[:2] == (
        "by kind: parameters 1.0 KB",
        "largest: up ×1 600 bytes, down ×1 400 bytes",
    )
    assert one.fix.startswith("mesh data=1,tensor=2, on the same 2 devices, and strategy tensor: ")


def test_a_plan_fits_to_the_last_byte():
    model = tiny(up=(30, 10))
    fits, tight = chip(600), chip(599)
    assert not found(shardlab.plan(model, "data=1", hardware=fits, headroom=0), "plan.does_not_fit")
    assert found(shardlab.plan(model, "data=1", hardware=tight, headroom=0), "plan.does_not_fit")


def test_without_hardware_nothing_is_said_of_room():
    made = shardlab.plan("llama3-70b", "data=8", strategy="data-parallel", optimizer="adamw")
    assert not {found.code for found in made.findings} & {"plan.does_not_fit", "plan.low_headroom"}


def test_little_to_spare_is_told_and_much_is_not():
    model = tiny(up=(30, 10))
    one = only(shardlab.plan(model, "data=1", hardware=chip(700)), "plan.low_headroom")
    assert one.severity == "info"
    assert one.what.startswith("It fits with 30 bytes to spare beyond the headroom")
    assert not found(shardlab.plan(model, "data=1", hardware=chip(800)), "plan.low_headroom")


def test_a_tight_training_plan_without_a_workload_says_what_is_missing():
    made = shardlab.plan(tiny(up=(30, 10)), "data=1", hardware=chip(5_500), optimizer="adamw")
    assert "Activations are not counted" in only(made, "plan.low_headroom").what


# --- mesh axes that cut nothing ---


@pytest.mark.parametrize(
    ("mesh", "options", "what", "fix"),
    [
        (
            "fsdp=4,tensor=128",
            {"strategy": "fsdp"},
            "Mesh axis 'tensor'=128 cuts nothing",
            "strategy fsdp+tensor, or a mesh without it.",
        ),
        (
            "data=2,tensor=4",
            {"strategy": "zero2", "optimizer": "adamw"},
            "Mesh axis 'tensor'=4 cuts nothing",
            "strategy tensor+zero2, or",
        ),
        (
            "fsdp=4,x=3,y=2",
            {"strategy": "fsdp"},
            "Mesh axes 'x'=3 and 'y'=2 cut nothing",
            "another name for 'x' that says what it cuts (data, fsdp, tensor), or a mesh without",
        ),
        (
            "fsdp=4,x=3",
            by(("proj|embed|head", ["fsdp"]), ("norm", [])),
            "Mesh axis 'x'=3 cuts nothing",
            "rules that cut tensors over 'x'",
        ),
        (
            "tensor=5",
            {"strategy": "tensor"},
            "Mesh axis 'tensor'=5 cuts nothing",
            "a size of 'tensor' that divides the heads, or",
        ),
    ],
)
def test_a_mesh_axis_that_cuts_nothing_is_told(mesh, options, what, fix):
    one = only(shardlab.plan("llama3-8b", mesh, **options), "plan.unused_mesh_axis")
    assert one.severity == "warning"
    assert one.what.startswith(what)
    assert one.fix.startswith(fix)


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("data=4,fsdp=2", "fsdp"),  # the batch
        ("fsdp=2,expert=4", "fsdp"),
        ("fsdp=2,context=4", "fsdp"),  # the sequence
        ("fsdp=4,tensor=1", "fsdp"),
        ("fsdp=4,tensor=2", "fsdp+tensor"),
    ],
)
def test_a_mesh_axis_that_cuts_something_is_not(mesh, strategy):
    assert not found(shardlab.plan("llama3-8b", mesh, strategy=strategy), "plan.unused_mesh_axis")


def test_a_stage_axis_cuts_nothing_until_stacked_layers_are_cut_over_it():
    options = {"optimizer": "adamw", "workload": Workload(batch=16, sequence=128)}
    idle = shardlab.plan("llama3-8b", "fsdp=2,stage=4", strategy="fsdp", **options)
    assert only(idle, "plan.unused_mesh_axis").fix.startswith("strategy fsdp+pipeline, or")
    whole = shardlab.plan("llama3-8b", "fsdp=2", strategy="fsdp", **options)
    assert idle.bytes_per_device == whole.bytes_per_device
    rules = {"logical": [("layers", "stage"), ("embed", "fsdp")]}
    made = shardlab.plan("llama3-8b", "fsdp=2,stage=4", rules=rules, stack="layers", **options)
    assert not found(made, "plan.unused_mesh_axis")
    (up,) = [row for row in made.rows if "mlp.up_proj" in row.path]
    assert up.parameter.shard_shape == (32 // 4, 14336, 4096 // 2)


def test_where_nothing_is_cut_at_all_that_is_said_once():
    made = shardlab.plan("llama3-8b", "tensor=4", rules=by((".*", [])))
    assert not found(made, "plan.unused_mesh_axis")
    assert found(made, "rule.catch_all_replicates")


# --- what does not divide ---


def test_an_axis_that_does_not_divide_is_an_error_as_it_is_in_jax():
    made = shardlab.plan(
        tiny(up=(10, 12), down=(12, 10)), "data=3,tensor=4", rules=by(("up|down", "tensor"))
    )
    one = only(made, "plan.indivisible")
    assert one.what == (
        "Array axis 0 of 'up' has size 10, which 4 shards over 'tensor'=4 cannot split evenly: "
        "JAX refuses it."
    )
    assert (
        one.fix
        == "size 8 or 12 on array axis 0, or cut array axis 1 (12) instead, or leave it whole."
    )
    assert one.details["nearest"] == [8, 12]
    sharding = NamedSharding(AbstractMesh((3, 4), ("data", "tensor")), PartitionSpec("tensor"))
    assert sharding.shard_shape((12, 10)) == (3, 10)
    with pytest.raises(ValueError, match="evenly divide"):
        sharding.shard_shape((10, 12))


def test_a_mesh_axis_that_would_divide_is_named():
    made = shardlab.plan(tiny(up=(10, 7)), "data=5,tensor=4", rules=by(("up", "tensor")))
    assert "or over 'data'=5" in only(made, "plan.indivisible").fix


def test_tensors_of_one_size_share_a_finding():
    made = shardlab.plan(
        tiny(a=(10, 7), b=(10, 9), c=(6, 9)), "tensor=4", rules=by((".", "tensor"))
    )
    first, second = found(made, "plan.indivisible")
    assert "'a' (and of 1 more) has size 10" in first.what
    assert first.details["paths"] == ["a", "b"]
    assert "'c' has size 6" in second.what


@pytest.mark.parametrize(
    ("mesh", "work", "what", "fix"),
    [
        (
            "data=4",
            Workload(batch=10, sequence=8),
            "The batch of 10 sequences cannot be split",
            "8 or 12.",
        ),
        (
            "fsdp=4",
            Workload(batch=12, sequence=8, microbatch=6),
            "The microbatch of 6 sequences",
            "4 or 8.",
        ),
        ("context=3", Workload(batch=4, sequence=8), "The sequence of 8 tokens", "6 or 9."),
        (
            "data=64",
            Workload(batch=8, sequence=8),
            "The batch of 8 sequences",
            "64, or fewer devices",
        ),
    ],
)
def test_batch_and_sequence_must_divide_too(mesh, work, what, fix):
    made = shardlab.plan(tiny(up=(64, 3)), mesh, rules=by(("up", [])), workload=work)
    one = only(made, "plan.indivisible")
    assert one.what.startswith(what)
    assert one.fix.startswith(fix)


def test_the_last_device_of_a_padded_axis_holds_less():
    # 10 rows of 7 over 4 devices: 3, 3, 3 and 1
    made = shardlab.plan(tiny(up=(10, 7)), "tensor=4", rules=by(("up", "tensor")))
    one = only(made, "plan.imbalanced")
    assert made.bytes_per_device == 3 * 7 * 2
    assert one.details == {"first": 42, "last": 14}
    assert "The first device holds 42 bytes, the last 14 bytes" in one.what


def test_layers_that_stages_do_not_divide_are_told():
    made = shardlab.plan("deepseek-v3", "stage=4,fsdp=64", strategy="fsdp+pipeline")
    one = only(made, "plan.unsharded")
    assert one.what.startswith("Strategy part pipeline could not cut")
    assert any("does not divide over 'stage' of size 4" in line for line in one.shows)
    made = shardlab.plan("llama3-70b", "stage=4,fsdp=64", strategy="fsdp+pipeline")
    assert not made.findings


# --- what is whole ---


def test_what_is_whole_while_the_rest_is_cut_is_one_finding_with_bytes_and_rule():
    made = shardlab.plan(
        tiny(up=(8, 6), table=(100, 6), other=(90, 6), small=(3, 2)),
        "data=2,tensor=4",
        rules=by(("up", "tensor"), ("table|other|small", [])),
        limits=Limits(replicated_bytes=1000),
    )
    one = only(made, "plan.replicated")
    assert one.what == (
        "2 lines of tensors are whole on each of 8 devices, 2.3 KB on every one of them, while "
        "others are cut."
    )
    assert one.shows[0] == (
        "table ×1: 1.2 KB on each device, 8.4 KB of copies in all, by rule 2: table|other|small"
    )
    assert one.fix == "cut array axis 0 of 'table' over 'tensor': 300 bytes on each device."
    assert one.details == {"paths": ["table", "other"], "bytes_per_device": 2280}


def test_rules_that_cut_nothing_give_one_summary():
    model = tiny(**{f"t{n}": (8, 6 + n) for n in range(300)})
    made = shardlab.plan(model, "data=2", rules=by(("t", [])), limits=EVERY)
    one = only(made, "plan.replicated")
    assert one.what.startswith("Nothing is cut: each of 2 devices holds all")


@pytest.mark.parametrize("strategy", ["data-parallel", "zero1", "zero2"])
def test_copies_that_a_strategy_stands_for_are_not_told(strategy):
    made = shardlab.plan("llama3-8b", "data=8", strategy=strategy, optimizer="adamw", limits=EVERY)
    assert not found(made, "plan.replicated")


def test_one_device_has_no_copies():
    made = shardlab.plan("llama3-8b", "data=1", rules=by(("embed", [])), limits=EVERY)
    assert not found(made, "plan.replicated")


def test_what_lint_said_is_not_said_again():
    made = shardlab.plan(
        tiny(up=(8, 6), table=(100, 6)), "data=2", rules=by(("up", "data")), limits=EVERY
    )
    assert found(made, "rule.unmatched")
    assert not found(made, "plan.replicated")


def test_what_a_rule_with_a_reason_leaves_whole_is_only_mentioned():
    model = tiny(up=(8, 6), table=(100, 6))
    rules = parse_rules(by(("up", "data"), ("table", [])))
    assert found(shardlab.plan(model, "data=2", rules=rules, limits=EVERY), "plan.replicated")
    meant = replace(rules.rules[1], reason="looked up on every device")
    rules = replace(rules, rules=(rules.rules[0], meant))
    assert isinstance(rules, Rules)
    assert isinstance(meant, Rule)
    one = only(shardlab.plan(model, "data=2", rules=rules, limits=EVERY), "plan.replicated")
    assert one.severity == "info"
    assert one.shows[0].endswith(", since 'looked up on every device'")


def test_states_copied_along_a_batch_axis_are_told_with_what_zero_saves():
    options = {"optimizer": "adamw", "hardware": "tpu-v5p"}
    made = shardlab.plan("llama3-8b", "data=8,tensor=4", strategy="tensor", **options)
    one = only(made, "plan.optimizer_replicated")
    assert one.severity == "info"
    assert "strategy tensor+zero1" in one.fix
    zero = shardlab.plan("llama3-8b", "data=8,tensor=4", strategy="tensor+zero1", **options)
    really = made.bytes_of("optimizer") - zero.bytes_of("optimizer")
    assert one.details["saved"] == pytest.approx(really, rel=0.001)
    assert not found(zero, "plan.optimizer_replicated")


# --- what a strategy could not cut ---


def test_a_size_that_a_strategy_stumbled_over_is_told_with_what_it_costs():
    mesh, options = "fsdp=4,expert=16", {"strategy": "fsdp+expert", "optimizer": "adamw"}
    made = shardlab.plan("mixtral-8x7b", mesh, **options)
    one = only(made, "plan.unsharded")
    assert one.what.startswith(
        "Strategy part expert could not cut 3 lines of tensors over 'expert' of size 16, which "
        "does not divide 8 experts: 169.1 GB"
    )
    assert one.fix == "'expert' of size 8, and the other devices on another axis."
    experts = sum(row.bytes_per_device for row in made.rows if "experts.w" in row.path)
    assert one.details["excess"] == pytest.approx(experts * 15 / 16)
    mended = shardlab.plan("mixtral-8x7b", "fsdp=8,expert=8", **options)
    assert not found(mended, "plan.unsharded")


def test_what_a_strategy_could_not_cut_is_not_told_as_whole_too():
    made = shardlab.plan("llama3-8b", "fsdp=12", strategy="fsdp")
    one = only(made, "plan.unsharded")
    assert "over 'fsdp' of size 12, which does not divide 4,096: " in one.what
    # a hidden size is no choice, and a vocabulary is padded easily
    assert one.fix == "'fsdp' of size 4, and the other devices on another axis."
    table = tiny(embed_tokens__weight=(50257, 64))
    padded = shardlab.plan(table, "tensor=8", strategy="tensor", limits=EVERY)
    assert only(padded, "plan.unsharded").fix.endswith("or 50,256 or 50,264 in place of 50,257.")
    assert not found(made, "plan.replicated")


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp"])
def test_a_tensor_that_no_stage_can_cut_is_told_once(strategy):
    made = shardlab.plan(
        tiny(w=(75, 10)), "data=64", strategy=strategy, optimizer="adamw", limits=EVERY
    )
    one = only(made, "plan.unsharded")
    assert "over 'data' of size 64, which does not divide 75: " in one.what
    assert one.details["paths"] == ["w"]


def test_a_size_named_for_an_axis_divides_all_that_is_cut_now():
    # 7 would divide the 28 heads, and not the rest that 8 divides
    made = shardlab.plan("qwen2.5-7b", "tensor=8", strategy="tensor")
    assert only(made, "plan.unsharded").fix.startswith("'tensor' of size 4,")
    assert not found(shardlab.plan("qwen2.5-7b", "tensor=4", strategy="tensor"), "plan.unsharded")


# --- heads and tables ---


def test_fewer_kv_heads_than_tensor_devices_are_told():
    one = only(
        shardlab.plan(
            "llama3-70b", "tensor=16", strategy="tensor", workload=Workload(batch=1, sequence=8192)
        ),
        "plan.kv_heads_replicated",
    )
    assert one.what == (
        "There are 8 kv heads for 16 devices over tensor=16: 2 devices share each, and hold copies "
        "of its keys and values."
    )
    assert one.fix.startswith("8 devices on the tensor axis and 2 times as many on a batch axis")
    assert one.shows[0].startswith("model.layers.*.self_attn.k_proj.weight and others like it")


@pytest.mark.parametrize(
    ("mesh", "words", "fix"),
    [
        ("tensor=5", "some devices have 2 of them and others fewer", "1 device on the tensor"),
        ("tensor=12", "devices have parts of heads", "4 devices on the tensor axis and 3 times as"),
    ],
)
def test_kv_heads_that_the_tensor_axis_does_not_divide_are_told(mesh, words, fix):
    made = shardlab.plan("llama3-70b", mesh, rules=by(("mlp", "tensor"), (".*", [])))
    one = only(made, "plan.kv_heads_replicated")
    assert words in one.what
    assert one.fix.startswith(fix)


def test_keys_cut_inside_a_head_are_told():
    rules = by(("k_proj|v_proj", "tensor"), (".*", []))
    one = only(shardlab.plan("llama3-70b", "tensor=16", rules=rules), "plan.kv_heads_replicated")
    assert "k_proj.weight is cut inside heads, [64, 8192] on a device" in one.shows[0]


@pytest.mark.parametrize(
    ("model", "mesh", "strategy"),
    [
        ("llama3-70b", "tensor=8", "tensor"),
        ("deepseek-v3", "tensor=3,fsdp=2", "fsdp"),  # the axis cuts nothing
        ("deepseek-v3", "tensor=256", "tensor"),  # a latent array in place of heads
    ],
)
def test_heads_that_suffice_are_not_told(model, mesh, strategy):
    assert not found(shardlab.plan(model, mesh, strategy=strategy), "plan.kv_heads_replicated")


@pytest.mark.parametrize(
    ("spec", "is_told"),
    [
        (["fsdp"], True),
        ([["fsdp", "tensor"]], True),
        (["fsdp", "tensor"], True),
        (["tensor"], False),
        (["tensor", "fsdp"], False),
        ([None, "fsdp"], False),
        ([None, ["fsdp", "tensor"]], False),
        ([], False),
    ],
)
def test_a_vocabulary_cut_by_the_axis_of_the_batch_is_told(spec, is_told):
    rules = by(("embed_tokens", spec), ("lm_head", ["fsdp"]), (".*", [None, "fsdp"]))
    made = shardlab.plan("llama3-70b", "fsdp=4,tensor=2", rules=rules)
    assert bool(found(made, "plan.embedding_sharding")) == is_told


def test_an_embedding_finding_names_the_table_and_what_a_gather_takes():
    made = shardlab.plan("llama3-70b", "fsdp=4,tensor=2", rules=by(("embed", ["fsdp", "tensor"])))
    one = only(made, "plan.embedding_sharding")
    assert "'model.embed_tokens.weight' (128,256 rows) is cut over 'fsdp'" in one.what
    assert one.details["gathered_bytes"] == 128256 * 8192 * 2 // 2
    assert one.fix == "the vocabulary over 'tensor', and the embedding axis over 'fsdp'."


def test_an_embedding_axis_that_does_not_divide_is_not_proposed():
    made = shardlab.plan("llama3-70b", "fsdp=48,tensor=8", strategy="fsdp+tensor")
    one = only(made, "plan.embedding_sharding")
    assert one.fix == "the vocabulary over 'tensor': 48 does not divide the embedding axis (8192)."


# --- in all ---


def test_what_a_strategy_leaves_whole_is_mended_by_another_strategy():
    made = shardlab.plan("mixtral-8x7b", "data=2,expert=8", strategy="expert")
    one = only(made, "plan.replicated")
    assert one.fix.startswith("strategy expert+zero3, which cuts them over the axes of the batch")
    mended = shardlab.plan("mixtral-8x7b", "data=2,expert=8", strategy="expert+zero3")
    assert not found(mended, "plan.replicated")


def test_zero_is_not_advised_twice():
    options = {"strategy": "data-parallel", "optimizer": "adamw"}
    made = shardlab.plan("llama3-8b", "data=8", hardware="tpu-v5p", **options)
    assert only(made, "plan.does_not_fit").fix.startswith("strategy zero1")
    assert not found(made, "plan.optimizer_replicated")
    assert found(shardlab.plan("llama3-8b", "data=8", **options), "plan.optimizer_replicated")


def test_activations_that_were_measured_to_take_more_make_a_plan_tight():
    work = Workload(batch=48, sequence=4096, remat="none")
    options = {"strategy": "fsdp", "optimizer": "adamw", "workload": work}
    made = shardlab.plan("llama3-8b", "fsdp=16", hardware="tpu-v5p", **options)
    one = only(made, "plan.low_headroom")
    assert "up to 2.1 times what is estimated for activations with remat none: " in one.what
    more = made.bytes_per_device + 1.1 * made.bytes_of("activations")
    assert made.bytes_per_device < made.room.usable_bytes < more
    options["workload"] = Workload(batch=16, sequence=4096, remat="none")
    roomy = shardlab.plan("llama3-8b", "fsdp=16", hardware="tpu-v5p", **options)
    assert not found(roomy, "plan.low_headroom")


def test_findings_survive_a_saved_plan():
    made = shardlab.plan(
        "llama3-70b",
        "tensor=16",
        strategy="tensor",
        hardware="tpu-v5e",
        workload=Workload(batch=32, sequence=8192),
    )
    assert len(made.findings) >= 2
    assert Plan.from_json(made.to_json()).findings == made.findings


@pytest.mark.parametrize("bad", [2, -0.1, float("nan"), "much", None])
def test_a_headroom_that_is_no_share_is_refused(bad):
    with pytest.raises(shardlab.errors.LabError, match="headroom"):
        shardlab.plan("llama3-8b", "data=1", hardware="tpu-v5p", headroom=bad)


def test_a_model_without_tensors_has_no_findings():
    arch = load_model("llama3-8b").architecture
    assert isinstance(arch, Architecture)
    assert shardlab.plan(Model(name="none", groups=()), "data=8", hardware="tpu-v5p").findings == ()
