"""The cheapest change that makes a plan fit: each kind, in the order of its cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardlab
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.memory.workload import Workload


def changes(*args, **options):
    """The finding, and each change in words with its bytes; every one is made, and must fit."""
    made = shardlab.plan(*args, **options)
    (found,) = [each for each in made.findings if each.code == "plan.does_not_fit"]
    told = found.details["changes"]
    for change in told:
        again = applied(change["options"], *args, **options)
        assert again.fits, change
        assert again.bytes_per_device == change["bytes_per_device"], change
    return found, [(change["words"], change["bytes_per_device"]) for change in told]


def applied(other, model, mesh, **options):
    """The plan with the options that a change names, as a person would ask for it."""
    options = {**options, "strategy": other.get("strategy", options.get("strategy"))}
    if "moments" in other:
        options["policy"] = f"moments={other['moments']}"
    if "workload" in other:
        options["workload"] = replace(options["workload"], **other["workload"])
    if other.get("specs", ()) is None:  # in place of the rules
        options.pop("rules", None)
    elif "specs" in other:
        options["rules"] = {
            "specs": dict(other["specs"]),
            "rules": options.get("rules", []),
        }
    return shardlab.plan(model, other.get("mesh", mesh), **options)


TRAIN = {"optimizer": "adamw", "hardware": "tpu-v5p"}


@pytest.mark.parametrize(
    ("model", "mesh", "options", "words"),
    [
        # states first: parameters stay whole, and nothing is computed twice
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
            "a microbatch of 128 (4 parts of the batch, gradients added up)",
        ),
        # then more devices
        ("llama3-70b", "fsdp=8", {"strategy": "fsdp"}, "mesh fsdp=16, 16 devices in place of 8"),
    ],
)
def test_the_cheapest_change_comes_first(model, mesh, options, words):
    found, made = changes(model, mesh, **TRAIN, **options)
    assert made[0][0] == words
    assert found.fix.startswith(f"{words}: ")


def test_a_change_makes_the_plan_fit_when_it_is_made():
    options = TRAIN | {"workload": Workload(batch=512, sequence=8192)}
    found, made = changes("llama3-8b", "fsdp=16", strategy="fsdp", **options)
    changed = options | {"workload": Workload(batch=512, sequence=8192, microbatch=128)}
    again = shardlab.plan("llama3-8b", "fsdp=16", strategy="fsdp", **changed)
    assert again.fits
    assert again.bytes_per_device == made[0][1]
    # and one step less would not do
    larger = options | {"workload": Workload(batch=512, sequence=8192, microbatch=256)}
    assert not shardlab.plan("llama3-8b", "fsdp=16", strategy="fsdp", **larger).fits
    assert found.details["needed"] > found.details["usable"] >= made[0][1]


def test_precision_is_asked_for_before_devices():
    # 16 bytes a parameter are 16.1 GB on 8 devices, 12 are 12.0
    found, made = changes("llama3-8b", "fsdp=8", strategy="fsdp", **TRAIN | {"hardware": "tpu-v5e"})
    assert [words for words, _ in made] == [
        "moments in bf16",
        "mesh fsdp=16, 16 devices in place of 8",
    ]
    assert found.shows[-1] == "would fit too: mesh fsdp=16, 16 devices in place of 8 (8.0 GB)"


def test_rules_are_mended_by_states_by_cutting_what_is_whole_or_by_a_strategy():
    rules = [("mlp", [None, "data"]), (".*", [])]
    found, made = changes(
        "llama3-8b", "data=8", rules=rules, optimizer="adamw", hardware="tpu-v5p", headroom=0.65
    )
    assert [words for words, _ in made[:3]] == [
        "strategy zero1 beside the rules",
        "cut 'model.layers.*.self_attn.q_proj.weight' as P('data') and 3 more",
        "strategy fsdp in place of the rules",
    ]
    assert found.severity == "error"


def test_serving_takes_a_smaller_cache_more_devices_or_fewer_sequences():
    _, made = changes(
        "llama3-8b",
        "tensor=2",
        strategy="tensor",
        hardware="tpu-v5e",
        workload=Workload(batch=32, sequence=4096),
    )
    assert [words for words, _ in made] == [
        "a cache in int8",
        "mesh tensor=4, 4 devices in place of 2",
        "a batch of 23",
    ]


def test_changes_are_joined_where_none_suffices_alone():
    work = Workload(batch=256, sequence=8192, remat="none")
    small = TRAIN | {"hardware": "tpu-v5e", "headroom": 0.02}
    _, made = changes("llama3-8b", "fsdp=16", strategy="fsdp", **small, workload=work)
    ((words, n_bytes),) = made
    assert words == (
        "remat full and a microbatch of 16 (16 parts of the batch, gradients added up) and "
        "moments in bf16"
    )
    made = shardlab.plan(
        "llama3-8b",
        "fsdp=16",
        strategy="fsdp",
        policy="moments=bf16",
        workload=Workload(batch=256, sequence=8192, microbatch=16),
        **small,
    )
    assert made.fits
    assert made.bytes_per_device == n_bytes


def test_more_devices_bring_a_batch_that_fills_them():
    _, made = changes(
        "llama3.1-405b",
        "fsdp=16",
        strategy="fsdp",
        **TRAIN,
        workload=Workload(batch=16, sequence=4096),
    )
    assert made[0][0] == "mesh fsdp=128, 128 devices in place of 16, with a batch of 128"


def test_where_nothing_helps_it_is_said():
    chip = parse_hardware("tpu-v5p", {"hbm_bytes": 1000})
    found, made = changes("llama3-8b", "fsdp=2", strategy="fsdp", hardware=chip)
    assert made == []
    assert found.fix.startswith("a smaller model, or a chip with more memory")


@pytest.mark.parametrize(
    ("model", "mesh", "options", "words"),
    [
        # 8,192 does not divide over 48, nor the batch: 32 do, on fewer devices
        (
            "llama3-70b",
            "fsdp=48,tensor=8",
            {
                "strategy": "fsdp+tensor",
                "hardware": "h100",
                "workload": Workload(batch=512, sequence=8192),
            },
            "mesh fsdp=32,tensor=8, 256 devices in place of 384",
        ),
        ("llama3-70b", "fsdp=96", {"strategy": "fsdp"}, "mesh fsdp=64, 64 devices in place of 96"),
        (
            "llama3-70b",
            "fsdp=100000",
            {"strategy": "fsdp"},
            "mesh fsdp=8192, 8,192 devices in place of 100,000",
        ),
        # 8 experts do not divide over 16: the same devices in another mesh do
        (
            "mixtral-8x7b",
            "fsdp=8,expert=16",
            {"strategy": "fsdp+expert", "hardware": "h100"},
            "mesh fsdp=16,expert=8, on the same 128 devices",
        ),
        # an axis that is there, and that nothing is cut over
        ("llama3-70b", "fsdp=4,tensor=8", {"strategy": "fsdp"}, "strategy fsdp+tensor"),
        # copies of everything do not shrink with more of them
        (
            "llama3-70b",
            "data=1",
            {"strategy": "data-parallel"},
            "mesh data=16, 16 devices in place of 1, and strategy zero3",
        ),
        # more tensor parallelism than kv heads is worse than another axis
        (
            "llama3-70b",
            "tensor=8",
            {"strategy": "tensor"},
            "mesh fsdp=2,tensor=8, 16 devices in place of 8, and strategy fsdp+tensor",
        ),
    ],
)
def test_a_mesh_that_does_not_suit_the_model_is_mended_by_one_that_does(
    model, mesh, options, words
):
    _, made = changes(model, mesh, **TRAIN | options)
    assert made[0][0] == words


def test_a_batch_that_does_not_divide_is_mended_with_the_rest():
    _, made = changes(
        "llama3-8b",
        "data=8",
        strategy="data-parallel",
        **TRAIN,
        workload=Workload(batch=1, sequence=4096),
    )
    assert made[0][0] == "a batch of 8 and strategy zero1"


def test_a_sequence_that_is_too_much_for_a_device_is_cut_over_a_tensor_axis():
    _, made = changes(
        "gemma2-27b",
        "fsdp=16",
        strategy="fsdp",
        **TRAIN | {"hardware": "tpu-v5e"},
        workload=Workload(batch=16, sequence=8192),
    )
    assert [words for words, _ in made] == [
        "mesh fsdp=16,tensor=4, 64 devices in place of 16, and strategy fsdp+tensor"
    ]


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ("data=8", "mesh data=4,tensor=2, on the same 8 devices, and strategy tensor"),
        ("data=1", "mesh data=1,tensor=2, 2 devices in place of 1, and strategy tensor"),
    ],
)
def test_serving_is_cut_over_a_tensor_axis(mesh, words):
    options = {"strategy": "data-parallel", "hardware": "tpu-v5p"}
    _, made = changes("llama3-70b", mesh, **options)
    assert made[0][0] == words


def test_many_times_the_devices_are_no_advice_beside_a_change_that_needs_none():
    _, made = changes("llama3.1-405b", "data=128,model=128", strategy="tensor", **TRAIN)
    assert all("devices in place" not in words for words, _ in made)


def test_what_does_not_divide_is_to_be_mended_first():
    rules = {"rules": [(".*proj", [None, "odd"])]}
    found, made = changes("llama3-70b", "odd=3", rules=rules, hardware="tpu-v5e")
    assert made == []
    assert found.fix.startswith("first mend what does not divide (plan.indivisible)")
    # 4,096 tokens over 3 devices
    options = {"strategy": "fsdp", **TRAIN, "workload": Workload(batch=8, sequence=4096)}
    found, made = changes("llama3-70b", "fsdp=8,context=3", **options)
    assert made == []
    assert found.fix.startswith("first mend what does not divide (plan.indivisible)")


def test_without_rules_a_strategy_is_in_place_of_nothing():
    _, made = changes("llama3-8b", "fsdp=64", optimizer="adamw", hardware="tpu-v5p")
    assert "strategy fsdp" in [words for words, _ in made]
