"""Findings about plans: each is reported with its numbers, and only when it applies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import shardlab
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.findings.finding_limits import Limits
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
    """Return a model of bf16 tensors by name and shape; `__` stands for a dot."""
    names = ((name.replace("__", "."), shape) for name, shape in shapes.items())
    return Model(
        name="tiny", groups=tuple(parse_tensor_group(name, shape, BF16) for name, shape in names)
    )


def chip(n_bytes):
    return parse_hardware("tpu-v5p", {"hbm_bytes": n_bytes})


def by(*pairs):
    """Return rules with these patterns."""
    return {"rules": list(pairs)}


def findings(plan, code):
    return [finding for finding in plan.findings if finding.code == code]


def only(plan, code):
    (finding,) = findings(plan, code)
    return finding


# --- does it fit ---


def test_a_plan_that_does_not_fit_says_how_much_and_what_is_largest():
    model = tiny(up=(30, 10), down=(10, 20))
    plan = shardlab.plan(
        model, "data=2", strategy="data-parallel", hardware=chip(1000), headroom=0.2
    )
    finding = only(plan, "plan.does_not_fit")
    assert finding.severity == "error"
    assert not plan.ok
    assert finding.what == (
        "Each device needs 1.0 kB, and tpu-v5p has 800 bytes of 1.0 kB after 20% headroom: "
        "200 bytes too much."
    )
    assert finding.cause == "headroom"
    assert finding.shows[:2] == (
        "by kind: parameters 1.0 kB",
        "largest: up ×1 600 bytes, down ×1 400 bytes",
    )
    assert finding.fix.startswith(
        "mesh data=1,tensor=2, on the same 2 devices, and strategy tensor: "
    )


def test_a_plan_fits_to_the_last_byte():
    model = tiny(up=(30, 10))
    fits, tight = chip(600), chip(599)
    assert not findings(
        shardlab.plan(model, "data=1", hardware=fits, headroom=0), "plan.does_not_fit"
    )
    assert findings(shardlab.plan(model, "data=1", hardware=tight, headroom=0), "plan.does_not_fit")


def test_without_hardware_memory_is_not_reported():
    plan = shardlab.plan("llama3-70b", "data=8", strategy="data-parallel", optimizer="adamw")
    assert not {finding.code for finding in plan.findings} & {
        "plan.does_not_fit",
        "plan.low_headroom",
    }


def test_low_headroom_is_reported_and_enough_headroom_is_not():
    model = tiny(up=(30, 10))
    finding = only(shardlab.plan(model, "data=1", hardware=chip(700)), "plan.low_headroom")
    assert finding.severity == "info"
    assert finding.what.startswith("It fits with 30 bytes free beyond the headroom")
    assert not findings(shardlab.plan(model, "data=1", hardware=chip(800)), "plan.low_headroom")


def test_a_training_plan_with_low_headroom_and_no_workload_names_what_is_missing():
    plan = shardlab.plan(tiny(up=(30, 10)), "data=1", hardware=chip(5_500), optimizer="adamw")
    assert "Activations are not counted" in only(plan, "plan.low_headroom").what


# --- unused mesh axes ---


@pytest.mark.parametrize(
    ("mesh", "options", "what", "fix"),
    [
        (
            "fsdp=4,tensor=128",
            {"strategy": "fsdp"},
            "Mesh axis 'tensor'=128 shards nothing",
            "strategy fsdp+tensor, or a mesh without it.",
        ),
        (
            "data=2,tensor=4",
            {"strategy": "zero2", "optimizer": "adamw"},
            "Mesh axis 'tensor'=4 shards nothing",
            "strategy tensor+zero2, or",
        ),
        (
            "fsdp=4,x=3,y=2",
            {"strategy": "fsdp"},
            "Mesh axes 'x'=3 and 'y'=2 shard nothing",
            "another name for 'x' that says what it shards (data, fsdp, tensor), or a mesh without",
        ),
        (
            "fsdp=4,x=3",
            by(("proj|embed|head", ["fsdp"]), ("norm", [])),
            "Mesh axis 'x'=3 shards nothing",
            "rules that shard tensors over 'x'",
        ),
        (
            "tensor=5",
            {"strategy": "tensor"},
            "Mesh axis 'tensor'=5 shards nothing",
            "a size of 'tensor' that divides the heads, or",
        ),
    ],
)
def test_an_unused_mesh_axis_is_reported(mesh, options, what, fix):
    finding = only(shardlab.plan("llama3-8b", mesh, **options), "plan.unused_mesh_axis")
    assert finding.severity == "warning"
    assert finding.what.startswith(what)
    assert finding.fix.startswith(fix)


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
def test_a_used_mesh_axis_is_not_reported(mesh, strategy):
    assert not findings(
        shardlab.plan("llama3-8b", mesh, strategy=strategy), "plan.unused_mesh_axis"
    )


def test_a_stage_axis_is_unused_until_stacked_layers_are_sharded_over_it():
    options = {"optimizer": "adamw", "workload": Workload(batch=16, sequence=128)}
    idle = shardlab.plan("llama3-8b", "fsdp=2,stage=4", strategy="fsdp", **options)
    assert only(idle, "plan.unused_mesh_axis").fix.startswith("strategy fsdp+pipeline, or")
    whole = shardlab.plan("llama3-8b", "fsdp=2", strategy="fsdp", **options)
    assert idle.bytes_per_device == whole.bytes_per_device
    rules = {"logical": [("layers", "stage"), ("embed", "fsdp")]}
    plan = shardlab.plan("llama3-8b", "fsdp=2,stage=4", rules=rules, stack="layers", **options)
    assert not findings(plan, "plan.unused_mesh_axis")
    (up,) = [row for row in plan.rows if "mlp.up_proj" in row.path]
    assert up.parameter.shard_shape == (32 // 4, 14336, 4096 // 2)


def test_if_nothing_is_sharded_that_is_reported_once():
    plan = shardlab.plan("llama3-8b", "tensor=4", rules=by((".*", [])))
    assert not findings(plan, "plan.unused_mesh_axis")
    assert findings(plan, "rule.catch_all_replicates")


# --- divisibility ---


def test_an_indivisible_dimension_is_an_error_as_in_jax():
    plan = shardlab.plan(
        tiny(up=(10, 12), down=(12, 10)), "data=3,tensor=4", rules=by(("up|down", "tensor"))
    )
    finding = only(plan, "plan.indivisible")
    assert finding.what == (
        "Dimension 0 of 'up' has size 10, which is not divisible by 4 (mesh axis 'tensor'=4): "
        "JAX rejects it."
    )
    assert (
        finding.fix
        == "size 8 or 12 for dimension 0, or shard dimension 1 (12) instead, or replicate it."
    )
    assert finding.details["nearest"] == [8, 12]
    sharding = NamedSharding(AbstractMesh((3, 4), ("data", "tensor")), PartitionSpec("tensor"))
    assert sharding.shard_shape((12, 10)) == (3, 10)
    with pytest.raises(ValueError, match="evenly divide"):
        sharding.shard_shape((10, 12))


def test_a_mesh_axis_that_divides_is_suggested():
    plan = shardlab.plan(tiny(up=(10, 7)), "data=5,tensor=4", rules=by(("up", "tensor")))
    assert "or shard it over 'data'=5" in only(plan, "plan.indivisible").fix


def test_tensors_of_one_size_share_a_finding():
    plan = shardlab.plan(
        tiny(a=(10, 7), b=(10, 9), c=(6, 9)), "tensor=4", rules=by((".", "tensor"))
    )
    first, second = findings(plan, "plan.indivisible")
    assert "'a' (and of 1 more) has size 10" in first.what
    assert first.details["paths"] == ["a", "b"]
    assert "'c' has size 6" in second.what


@pytest.mark.parametrize(
    ("mesh", "work", "what", "fix"),
    [
        (
            "data=4",
            Workload(batch=10, sequence=8),
            "The batch of 10 sequences is not divisible by 4 (data=4)",
            "batch 8 or 12.",
        ),
        (
            "fsdp=4",
            Workload(batch=12, sequence=8, microbatch=6),
            "The microbatch of 6 sequences",
            "microbatch 4 or 8.",
        ),
        (
            "context=3",
            Workload(batch=4, sequence=8),
            "The sequence of 8 tokens",
            "sequence 6 or 9.",
        ),
        (
            "data=64",
            Workload(batch=8, sequence=8),
            "The batch of 8 sequences",
            "batch 64, or fewer devices",
        ),
    ],
)
def test_batch_and_sequence_must_be_divisible_too(mesh, work, what, fix):
    plan = shardlab.plan(tiny(up=(64, 3)), mesh, rules=by(("up", [])), workload=work)
    finding = only(plan, "plan.indivisible")
    assert finding.what.startswith(what)
    assert finding.fix.startswith(fix)


def test_the_last_device_of_a_padded_dimension_stores_less():
    # 10 rows of 7 over 4 devices: 3, 3, 3 and 1
    plan = shardlab.plan(tiny(up=(10, 7)), "tensor=4", rules=by(("up", "tensor")))
    finding = only(plan, "plan.imbalanced")
    assert plan.bytes_per_device == 3 * 7 * 2
    assert finding.details == {"first": 42, "last": 14}
    assert "The first device stores 42 bytes, the last 14 bytes" in finding.what


def test_stages_with_different_numbers_of_layers_are_counted_by_the_fullest():
    plan = shardlab.plan("llama3.1-405b", "tensor=8,stage=16,data=2", strategy="tensor+pipeline")
    assert not plan.findings
    up = next(row for row in plan.rows if "up_proj" in row.path)
    assert up.arrays[0].shard_shape == (8, 53248 // 8, 16384)  # 126 layers over 16 stages
    assert plan.notes[-1] == (
        "126 layers are not divisible by 16 stages: some have 8, the others 7; the fullest is "
        "counted."
    )
    # Rules are for arrays, where JAX rejects it.
    plan = shardlab.plan(
        "llama3.1-405b", "stage=16,tensor=8", rules=by(("layers", "stage")), stack="layers"
    )
    assert "plan.indivisible" in {finding.code for finding in plan.findings}


@pytest.mark.parametrize(("schedule", "n_held"), [("1f1b", 8.0), ("interleaved:2", 11.5)])
def test_a_schedule_decides_how_many_microbatches_are_in_flight(schedule, n_held):
    saved = {}
    for mesh in ("stage=8,tensor=4", "stage=1,tensor=4"):
        plan = shardlab.plan(
            "llama3-70b",
            mesh,
            strategy="tensor+pipeline",
            optimizer="adamw",
            workload={
                "batch": 128,
                "sequence": 8192,
                "microbatch": 1,
                "remat": "none",
                "schedule": schedule,
            },
        )
        saved[mesh] = next(item for item in plan.items if item.name.startswith("saved"))
    pipelined, single = saved.values()
    assert pipelined.bytes_per_device == n_held * single.bytes_per_device / 8
    assert pipelined.formula.startswith(f"{n_held:g} microbatches in flight")


# --- replicated tensors ---


def test_replicated_tensors_are_one_finding_with_bytes_and_rule():
    plan = shardlab.plan(
        tiny(up=(8, 6), table=(100, 6), other=(90, 6), small=(3, 2)),
        "data=2,tensor=4",
        rules=by(("up", "tensor"), ("table|other|small", [])),
        limits=Limits(replicated_bytes=1000),
    )
    finding = only(plan, "plan.replicated")
    assert finding.what == (
        "2 rows of tensors are replicated on all 8 devices, 2.3 kB per device, while others are "
        "sharded."
    )
    assert finding.shows[0] == (
        "table ×1: 1.2 kB per device, 8.4 kB of replicas in total, by rule 2: table|other|small"
    )
    assert finding.fix == "shard dimension 0 of 'table' over 'tensor': 300 bytes per device."
    assert finding.details == {"paths": ["table", "other"], "bytes_per_device": 2280}


def test_rules_that_shard_nothing_give_one_summary():
    model = tiny(**{f"t{n}": (8, 6 + n) for n in range(300)})
    plan = shardlab.plan(model, "data=2", rules=by(("t", [])), limits=EVERY)
    finding = only(plan, "plan.replicated")
    assert finding.what.startswith("Nothing is sharded: each of 2 devices stores all")


@pytest.mark.parametrize("strategy", ["data-parallel", "zero1", "zero2"])
def test_intended_replicas_of_a_strategy_are_not_reported(strategy):
    plan = shardlab.plan("llama3-8b", "data=8", strategy=strategy, optimizer="adamw", limits=EVERY)
    assert not findings(plan, "plan.replicated")


def test_one_device_has_no_replicas():
    plan = shardlab.plan("llama3-8b", "data=1", rules=by(("embed", [])), limits=EVERY)
    assert not findings(plan, "plan.replicated")


def test_findings_of_lint_are_not_repeated():
    plan = shardlab.plan(
        tiny(up=(8, 6), table=(100, 6)), "data=2", rules=by(("up", "data")), limits=EVERY
    )
    assert findings(plan, "rule.unmatched")
    assert not findings(plan, "plan.replicated")


def test_tensors_replicated_by_a_rule_with_a_reason_are_only_info():
    model = tiny(up=(8, 6), table=(100, 6))
    rules = parse_rules(by(("up", "data"), ("table", [])))
    assert findings(shardlab.plan(model, "data=2", rules=rules, limits=EVERY), "plan.replicated")
    intended = replace(rules.rules[1], reason="looked up on every device")
    rules = replace(rules, rules=(rules.rules[0], intended))
    assert isinstance(rules, Rules)
    assert isinstance(intended, Rule)
    finding = only(shardlab.plan(model, "data=2", rules=rules, limits=EVERY), "plan.replicated")
    assert finding.severity == "info"
    assert finding.shows[0].endswith(", because 'looked up on every device'")


def test_replicated_states_are_reported_with_what_zero_saves():
    options = {"optimizer": "adamw", "hardware": "tpu-v5p"}
    plan = shardlab.plan("llama3-8b", "data=8,tensor=4", strategy="tensor", **options)
    finding = only(plan, "plan.optimizer_replicated")
    assert finding.severity == "info"
    assert "strategy tensor+zero1" in finding.fix
    zero = shardlab.plan("llama3-8b", "data=8,tensor=4", strategy="tensor+zero1", **options)
    really = plan.bytes_of("optimizer") - zero.bytes_of("optimizer")
    assert finding.details["saved"] == pytest.approx(really, rel=0.001)
    assert not findings(zero, "plan.optimizer_replicated")


# --- unsharded tensors ---


def test_a_size_that_a_strategy_cannot_shard_is_reported_with_its_cost():
    mesh, options = "fsdp=4,expert=16", {"strategy": "fsdp+expert", "optimizer": "adamw"}
    plan = shardlab.plan("mixtral-8x7b", mesh, **options)
    finding = only(plan, "plan.unsharded")
    assert finding.what.startswith(
        "Strategy part expert could not shard 3 rows of tensors over 'expert' of size 16, because "
        "8 experts are not divisible by it: 169.1 GB"
    )
    assert finding.fix == "'expert' of size 8, and the other devices on another axis."
    experts = sum(row.bytes_per_device for row in plan.rows if "experts.w" in row.path)
    assert finding.details["excess"] == pytest.approx(experts * 15 / 16)
    fixed = shardlab.plan("mixtral-8x7b", "fsdp=8,expert=8", **options)
    assert not findings(fixed, "plan.unsharded")


def test_unsharded_tensors_are_not_also_reported_as_replicated():
    plan = shardlab.plan("llama3-8b", "fsdp=12", strategy="fsdp")
    finding = only(plan, "plan.unsharded")
    assert "over 'fsdp' of size 12, because 4,096 is not divisible by it: " in finding.what
    # a hidden size is no choice, and a vocabulary is padded easily
    assert finding.fix == "'fsdp' of size 4, and the other devices on another axis."
    table = tiny(embed_tokens__weight=(50257, 64))
    padded = shardlab.plan(table, "tensor=8", strategy="tensor", limits=EVERY)
    assert only(padded, "plan.unsharded").fix.endswith("or 50,256 or 50,264 instead of 50,257.")
    assert not findings(plan, "plan.replicated")


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp"])
def test_a_tensor_that_no_zero_stage_can_shard_is_reported_once(strategy):
    plan = shardlab.plan(
        tiny(w=(75, 10)), "data=64", strategy=strategy, optimizer="adamw", limits=EVERY
    )
    finding = only(plan, "plan.unsharded")
    assert "over 'data' of size 64, because 75 is not divisible by it: " in finding.what
    assert finding.details["paths"] == ["w"]


def test_a_suggested_axis_size_divides_everything_that_is_sharded_now():
    # 7 would divide the 28 heads, but not the rest, which 8 divides
    plan = shardlab.plan("qwen2.5-7b", "tensor=8", strategy="tensor")
    assert only(plan, "plan.unsharded").fix.startswith("'tensor' of size 4,")
    assert not findings(
        shardlab.plan("qwen2.5-7b", "tensor=4", strategy="tensor"), "plan.unsharded"
    )


# --- heads and tables ---


def test_fewer_kv_heads_than_tensor_devices_are_reported():
    finding = only(
        shardlab.plan(
            "llama3-70b", "tensor=16", strategy="tensor", workload=Workload(batch=1, sequence=8192)
        ),
        "plan.kv_heads_replicated",
    )
    assert finding.what == (
        "There are 8 kv heads for 16 devices over tensor=16: 2 devices hold replicas of the keys "
        "and values of each."
    )
    assert finding.fix.startswith(
        "8 devices on the tensor axis and 2 times as many on a batch axis"
    )
    assert finding.shows[0].startswith("model.layers.*.self_attn.k_proj.weight and others like it")


@pytest.mark.parametrize(
    ("mesh", "text", "fix"),
    [
        ("tensor=5", "some devices have 2 of them and others fewer", "1 device on the tensor"),
        (
            "tensor=12",
            "shards do not align with heads",
            "4 devices on the tensor axis and 3",
        ),
    ],
)
def test_kv_heads_not_divisible_by_the_tensor_axis_are_reported(mesh, text, fix):
    plan = shardlab.plan("llama3-70b", mesh, rules=by(("mlp", "tensor"), (".*", [])))
    finding = only(plan, "plan.kv_heads_replicated")
    assert text in finding.what
    assert finding.fix.startswith(fix)


def test_keys_sharded_inside_a_head_are_reported():
    rules = by(("k_proj|v_proj", "tensor"), (".*", []))
    finding = only(
        shardlab.plan("llama3-70b", "tensor=16", rules=rules), "plan.kv_heads_replicated"
    )
    assert "k_proj.weight is sharded inside heads, [64, 8192] per device" in finding.shows[0]


@pytest.mark.parametrize(
    ("model", "mesh", "strategy"),
    [
        ("llama3-70b", "tensor=8", "tensor"),
        ("deepseek-v3", "tensor=3,fsdp=2", "fsdp"),  # the axis shards nothing
        ("deepseek-v3", "tensor=256", "tensor"),  # a latent array instead of heads
    ],
)
def test_enough_kv_heads_are_not_reported(model, mesh, strategy):
    assert not findings(shardlab.plan(model, mesh, strategy=strategy), "plan.kv_heads_replicated")


@pytest.mark.parametrize(
    ("spec", "is_reported"),
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
def test_a_vocabulary_sharded_over_a_batch_axis_is_reported(spec, is_reported):
    rules = by(("embed_tokens", spec), ("lm_head", ["fsdp"]), (".*", [None, "fsdp"]))
    plan = shardlab.plan("llama3-70b", "fsdp=4,tensor=2", rules=rules)
    assert bool(findings(plan, "plan.embedding_sharding")) == is_reported


def test_an_embedding_finding_names_the_table_and_the_cost_of_a_gather():
    plan = shardlab.plan("llama3-70b", "fsdp=4,tensor=2", rules=by(("embed", ["fsdp", "tensor"])))
    finding = only(plan, "plan.embedding_sharding")
    assert "'model.embed_tokens.weight' (128,256 rows) is sharded over 'fsdp'" in finding.what
    assert finding.details["gathered_bytes"] == 128256 * 8192 * 2 // 2
    assert finding.fix == (
        "shard the vocabulary over 'tensor', and shard the embedding dimension over 'fsdp'."
    )


def test_an_indivisible_embedding_dimension_is_not_suggested():
    plan = shardlab.plan("llama3-70b", "fsdp=48,tensor=8", strategy="fsdp+tensor")
    finding = only(plan, "plan.embedding_sharding")
    assert finding.fix == (
        "shard the vocabulary over 'tensor': the embedding dimension (8192) is not divisible by 48."
    )


# --- combinations ---


def test_tensors_that_a_strategy_replicates_are_fixed_by_another_strategy():
    plan = shardlab.plan("mixtral-8x7b", "data=2,expert=8", strategy="expert")
    finding = only(plan, "plan.replicated")
    assert finding.fix.startswith(
        "strategy expert+zero3, which also shards them over the batch axes"
    )
    fixed = shardlab.plan("mixtral-8x7b", "data=2,expert=8", strategy="expert+zero3")
    assert not findings(fixed, "plan.replicated")


def test_zero_is_not_recommended_twice():
    options = {"strategy": "data-parallel", "optimizer": "adamw"}
    plan = shardlab.plan("llama3-8b", "data=8", hardware="tpu-v5p", **options)
    assert only(plan, "plan.does_not_fit").fix.startswith("strategy zero1")
    assert not findings(plan, "plan.optimizer_replicated")
    assert findings(shardlab.plan("llama3-8b", "data=8", **options), "plan.optimizer_replicated")


def test_findings_survive_a_saved_plan():
    plan = shardlab.plan(
        "llama3-70b",
        "tensor=16",
        strategy="tensor",
        hardware="tpu-v5e",
        workload=Workload(batch=32, sequence=8192),
    )
    assert len(plan.findings) >= 2
    assert Plan.from_json(plan.to_json()).findings == plan.findings


@pytest.mark.parametrize("bad", [2, -0.1, float("nan"), "much", None])
def test_a_headroom_that_is_not_a_fraction_is_rejected(bad):
    with pytest.raises(shardlab.errors.LabError, match="headroom"):
        shardlab.plan("llama3-8b", "data=1", hardware="tpu-v5p", headroom=bad)


def test_a_model_without_tensors_has_no_findings():
    arch = load_model("llama3-8b").architecture
    assert isinstance(arch, Architecture)
    assert shardlab.plan(Model(name="none", groups=()), "data=8", hardware="tpu-v5p").findings == ()
