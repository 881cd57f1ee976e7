"""Remedies: the cheapest change that makes a plan fit, each kind in the order of its cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardlab
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.memory.workload import Workload


def remedies(*args, **options):
    """Return the finding, and each remedy with its bytes; every one is applied, and must fit."""
    plan = shardlab.plan(*args, **options)
    (finding,) = [entry for entry in plan.findings if entry.code == "plan.does_not_fit"]
    changes = finding.details["changes"]
    for change in changes:
        changed_plan = apply_change(change["options"], *args, **options)
        assert changed_plan.fits, change
        assert changed_plan.bytes_per_device == change["bytes_per_device"], change
    return finding, [(change["words"], change["bytes_per_device"]) for change in changes]


def apply_change(change, model, mesh, **options):
    """Return the plan with the options of a remedy, as a user would pass them."""
    options = {**options, "strategy": change.get("strategy", options.get("strategy"))}
    if "moments" in change:
        options["policy"] = f"moments={change['moments']}"
    if "workload" in change:
        options["workload"] = replace(options["workload"], **change["workload"])
    if change.get("specs", ()) is None:  # instead of the rules
        options.pop("rules", None)
    elif "specs" in change:
        options["rules"] = {
            "specs": dict(change["specs"]),
            "rules": options.get("rules", []),
        }
    return shardlab.plan(model, change.get("mesh", mesh), **options)


TRAIN = {"optimizer": "adamw", "hardware": "tpu-v5p"}


@pytest.mark.parametrize(
    ("model", "mesh", "options", "text"),
    [
        # states first: parameters stay replicated, and nothing is recomputed
        ("llama3-70b", "data=8,tensor=8", {"strategy": "tensor"}, "strategy tensor+zero1"),
        ("llama3-70b", "data=64", {"strategy": "data-parallel"}, "strategy zero3"),
        # then arithmetic
        (
            "llama3-8b",
            "fsdp=16",
            {"strategy": "fsdp", "workload": Workload(batch=32, sequence=8192, remat="none")},
            "remat dots",
        ),
        # then time
        (
            "llama3-8b",
            "fsdp=16",
            {"strategy": "fsdp", "workload": Workload(batch=512, sequence=8192)},
            "microbatch 128 (4 gradient accumulation steps)",
        ),
        # then more devices
        ("llama3-70b", "fsdp=8", {"strategy": "fsdp"}, "mesh fsdp=16, 16 devices instead of 8"),
    ],
)
def test_the_cheapest_remedy_comes_first(model, mesh, options, text):
    finding, found_remedies = remedies(model, mesh, **TRAIN, **options)
    assert found_remedies[0][0] == text
    assert finding.fix.startswith(f"{text}: ")


def test_a_remedy_makes_the_plan_fit():
    options = TRAIN | {"workload": Workload(batch=512, sequence=8192)}
    finding, found_remedies = remedies("llama3-8b", "fsdp=16", strategy="fsdp", **options)
    changed = options | {"workload": Workload(batch=512, sequence=8192, microbatch=128)}
    changed_plan = shardlab.plan("llama3-8b", "fsdp=16", strategy="fsdp", **changed)
    assert changed_plan.fits
    assert changed_plan.bytes_per_device == found_remedies[0][1]
    # and one step fewer is not enough
    larger = options | {"workload": Workload(batch=512, sequence=8192, microbatch=256)}
    assert not shardlab.plan("llama3-8b", "fsdp=16", strategy="fsdp", **larger).fits
    assert finding.details["needed"] > finding.details["usable"] >= found_remedies[0][1]


def test_lower_precision_comes_before_more_devices():
    # 16 bytes a parameter are 16.1 GB on 8 devices, 12 are 12.0
    finding, found_remedies = remedies(
        "llama3-8b", "fsdp=8", strategy="fsdp", **TRAIN | {"hardware": "tpu-v5e"}
    )
    assert [text for text, _ in found_remedies] == [
        "bf16 moments",
        "mesh fsdp=16, 16 devices instead of 8",
    ]
    assert finding.shows[-1] == "would also fit: mesh fsdp=16, 16 devices instead of 8 (8.0 GB)"


def test_rules_are_fixed_by_zero_by_sharding_replicated_tensors_or_by_a_strategy():
    rules = [("mlp", [None, "data"]), (".*", [])]
    finding, found_remedies = remedies(
        "llama3-8b", "data=8", rules=rules, optimizer="adamw", hardware="tpu-v5p", headroom=0.65
    )
    assert [text for text, _ in found_remedies[:3]] == [
        "strategy zero1 on top of the rules",
        "shard 'model.layers.*.self_attn.q_proj.weight' as P('data') and 3 more",
        "strategy fsdp instead of the rules",
    ]
    assert finding.severity == "error"


def test_serving_takes_a_smaller_cache_more_devices_or_a_smaller_batch():
    _, found_remedies = remedies(
        "llama3-8b",
        "tensor=2",
        strategy="tensor",
        hardware="tpu-v5e",
        workload=Workload(batch=32, sequence=4096),
    )
    assert [text for text, _ in found_remedies] == [
        "an int8 KV cache",
        "mesh tensor=4, 4 devices instead of 2",
        "batch 23",
    ]


def test_remedies_are_combined_if_none_is_enough():
    work = Workload(batch=256, sequence=8192, remat="none")
    small = TRAIN | {"hardware": "tpu-v5e", "headroom": 0.02}
    _, found_remedies = remedies("llama3-8b", "fsdp=16", strategy="fsdp", **small, workload=work)
    ((text, n_bytes),) = found_remedies
    assert text == (
        "remat full and microbatch 16 (16 gradient accumulation steps) and bf16 moments"
    )
    found_remedies = shardlab.plan(
        "llama3-8b",
        "fsdp=16",
        strategy="fsdp",
        policy="moments=bf16",
        workload=Workload(batch=256, sequence=8192, microbatch=16),
        **small,
    )
    assert found_remedies.fits
    assert found_remedies.bytes_per_device == n_bytes


def test_more_devices_come_with_a_divisible_batch():
    _, found_remedies = remedies(
        "llama3.1-405b",
        "fsdp=16",
        strategy="fsdp",
        **TRAIN,
        workload=Workload(batch=16, sequence=4096),
    )
    assert found_remedies[0][0] == "mesh fsdp=128, 128 devices instead of 16, with batch 128"


def test_if_nothing_helps_the_fix_says_so():
    chip = parse_hardware("tpu-v5p", {"hbm_bytes": 1000})
    finding, found_remedies = remedies("llama3-8b", "fsdp=2", strategy="fsdp", hardware=chip)
    assert found_remedies == []
    assert finding.fix.startswith("a smaller model, or a chip with more memory")


@pytest.mark.parametrize(
    ("model", "mesh", "options", "text"),
    [
        # neither 8,192 nor the batch is divisible by 48: both are by 32, on fewer devices
        (
            "llama3-70b",
            "fsdp=48,tensor=8",
            {
                "strategy": "fsdp+tensor",
                "hardware": "h100",
                "workload": Workload(batch=512, sequence=8192),
            },
            "mesh fsdp=32,tensor=8, 256 devices instead of 384",
        ),
        ("llama3-70b", "fsdp=96", {"strategy": "fsdp"}, "mesh fsdp=64, 64 devices instead of 96"),
        (
            "llama3-70b",
            "fsdp=100000",
            {"strategy": "fsdp"},
            "mesh fsdp=8192, 8,192 devices instead of 100,000",
        ),
        # 8 experts are not divisible by 16: the same devices in another mesh
        (
            "mixtral-8x7b",
            "fsdp=8,expert=16",
            {"strategy": "fsdp+expert", "hardware": "h100"},
            "mesh fsdp=16,expert=8, on the same 128 devices",
        ),
        # an axis of the mesh that shards nothing
        ("llama3-70b", "fsdp=4,tensor=8", {"strategy": "fsdp"}, "strategy fsdp+tensor"),
        # replicas of everything do not shrink with more devices
        (
            "llama3-70b",
            "data=1",
            {"strategy": "data-parallel"},
            "mesh data=16, 16 devices instead of 1, and strategy zero3",
        ),
        # more tensor parallelism than kv heads is worse than another axis
        (
            "llama3-70b",
            "tensor=8",
            {"strategy": "tensor"},
            "mesh fsdp=2,tensor=8, 16 devices instead of 8, and strategy fsdp+tensor",
        ),
    ],
)
def test_a_mesh_that_does_not_divide_the_model_is_replaced_by_one_that_does(
    model, mesh, options, text
):
    _, found_remedies = remedies(model, mesh, **TRAIN | options)
    assert found_remedies[0][0] == text


def test_an_indivisible_batch_is_fixed_together_with_the_rest():
    _, found_remedies = remedies(
        "llama3-8b",
        "data=8",
        strategy="data-parallel",
        **TRAIN,
        workload=Workload(batch=1, sequence=4096),
    )
    assert found_remedies[0][0] == "batch 8 and strategy zero1"


def test_a_sequence_that_is_too_long_for_a_device_is_sharded_over_a_tensor_axis():
    _, found_remedies = remedies(
        "gemma2-27b",
        "fsdp=16",
        strategy="fsdp",
        **TRAIN | {"hardware": "tpu-v5e"},
        workload=Workload(batch=16, sequence=8192),
    )
    assert [text for text, _ in found_remedies] == [
        "mesh fsdp=16,tensor=4, 64 devices instead of 16, and strategy fsdp+tensor"
    ]


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        ("data=8", "mesh data=4,tensor=2, on the same 8 devices, and strategy tensor"),
        ("data=1", "mesh data=1,tensor=2, 2 devices instead of 1, and strategy tensor"),
    ],
)
def test_serving_is_sharded_over_a_tensor_axis(mesh, text):
    options = {"strategy": "data-parallel", "hardware": "tpu-v5p"}
    _, found_remedies = remedies("llama3-70b", mesh, **options)
    assert found_remedies[0][0] == text


def test_many_times_the_devices_are_not_proposed_next_to_a_free_remedy():
    _, found_remedies = remedies("llama3.1-405b", "data=128,model=128", strategy="tensor", **TRAIN)
    assert all("devices instead" not in text for text, _ in found_remedies)


def test_indivisible_sizes_must_be_fixed_first():
    rules = {"rules": [(".*proj", [None, "odd"])]}
    finding, found_remedies = remedies("llama3-70b", "odd=3", rules=rules, hardware="tpu-v5e")
    assert found_remedies == []
    assert finding.fix.startswith("first fix the indivisible sizes (plan.indivisible)")
    # 4,096 tokens over 3 devices
    options = {"strategy": "fsdp", **TRAIN, "workload": Workload(batch=8, sequence=4096)}
    finding, found_remedies = remedies("llama3-70b", "fsdp=8,context=3", **options)
    assert found_remedies == []
    assert finding.fix.startswith("first fix the indivisible sizes (plan.indivisible)")


def test_without_rules_a_strategy_replaces_nothing():
    _, found_remedies = remedies("llama3-8b", "fsdp=64", optimizer="adamw", hardware="tpu-v5p")
    assert "strategy fsdp" in [text for text, _ in found_remedies]
