"""Advice: exhaustive, weighed as plans are, timed, and each loser with its reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shardlab.cost.hardware import parse_hardware
from shardlab.errors import (
    BadEfficiency,
    BadSize,
    BadType,
    LabError,
    TooManyDevices,
    UnknownChoice,
    UnknownFigure,
)
from shardlab.layouts.divisors import products
from shardlab.plans.advise import advise
from shardlab.plans.plan import plan
from shardlab.plans.sources.load import load_model
from shardlab.plans.workload import Workload
from shardlab.records.advice import Advice
from shardlab.records.plan import KINDS


@pytest.fixture(scope="module")
def llama():
    return advise("llama3-70b", "tpu-v5p", 512, batch=1024, sequence=8192)


@pytest.fixture(scope="module")
def mixture():
    return advise("mixtral-8x7b", "h100", 48, batch=96, sequence=4096, optimizer="adafactor")


def everything(advice):
    return (*advice.ranked, *advice.others)


def weighed(advice):
    return [each for each in everything(advice) if each.strategy]


# --- exhaustive ---


def test_every_factorisation_is_a_candidate(llama, mixture):
    for advice, axes in (
        (llama, ("data", "fsdp", "tensor")),
        (mixture, ("data", "fsdp", "expert", "tensor")),
    ):
        wanted = {
            tuple((name, size) for name, size in zip(axes, sizes, strict=True) if size > 1)
            for sizes in products(advice.n_devices, len(axes))
        }
        assert {each.mesh for each in everything(advice)} == wanted


def test_every_zero_stage_and_remat_policy_of_a_mesh_is_tried_once(llama):
    mesh = (("data", 8), ("fsdp", 16), ("tensor", 4))
    ways = sorted((each.strategy, each.remat) for each in everything(llama) if each.mesh == mesh)
    stages = ("fsdp+tensor", "fsdp+tensor+zero1", "fsdp+tensor+zero2")
    assert ways == [
        (stage, remat) for stage in stages for remat in ("dots", "full", "none", "selective")
    ]


def test_no_layout_has_two_names(llama):
    assert all(size > 1 for each in everything(llama) for _, size in each.mesh)
    assert all(
        "zero" not in each.strategy for each in weighed(llama) if "data" not in dict(each.mesh)
    )
    keys = [(each.mesh, each.strategy, each.remat) for each in everything(llama)]
    assert len(set(keys)) == len(keys)


# --- memory: the plan's, to the byte ---


def planned(advice, name, each, **choices):
    batch = int(advice.choices["batch"])
    workload = Workload(
        batch,
        int(advice.choices["sequence"]),
        remat=each.remat or "full",
        microbatch=batch // each.n_microbatches if each.n_microbatches > 1 else None,
    )
    optimizer = advice.choices["optimizer"]
    return plan(
        name,
        each.mesh_text,
        strategy=each.strategy,
        optimizer=optimizer,
        workload=workload,
        **choices,
    )


@pytest.mark.parametrize(("which", "name"), [("llama", "llama3-70b"), ("mixture", "mixtral-8x7b")])
def test_memory_is_that_of_the_plan_to_the_byte(which, name, request):
    advice = request.getfixturevalue(which)
    candidates = weighed(advice)
    for each in candidates[:: len(candidates) // 25]:
        made = planned(advice, name, each)
        assert {kind: made.bytes_of(kind) for kind in KINDS} == dict(each.bytes_by_kind)
        assert made.bytes_per_device == each.bytes_per_device


def test_memory_of_inference_is_that_of_the_plan():
    advice = advise("deepseek-v3-main", "h200", 32, batch=64, sequence=4096, optimizer="none")
    for each in weighed(advice):
        assert planned(advice, "deepseek-v3-main", each).bytes_per_device == each.bytes_per_device
    assert {name for each in weighed(advice) for name, _ in each.mesh} == {
        "data",
        "expert",
        "tensor",
    }


def test_what_fits_is_within_the_room_and_what_does_not_is_beyond(llama):
    usable = llama.room.usable_bytes
    assert usable == int(96e9 * 0.9)
    for each in weighed(llama):
        assert (each.bytes_per_device > usable) == (each.why == "memory")


def test_a_batch_is_divided_into_as_few_microbatches_as_fit(llama):
    for each in llama.ranked[:5]:
        assert each.n_microbatches > 1
        more = planned(llama, "llama3-70b", replace(each, n_microbatches=each.n_microbatches // 2))
        assert more.bytes_per_device > llama.room.usable_bytes


# --- ranking ---


def test_what_fits_is_in_the_order_of_its_time(llama, mixture):
    for advice in (llama, mixture):
        order = [each.step.lower for each in advice.ranked]
        assert order == pytest.approx(sorted(order), rel=1e-5)
        assert len({each.mesh for each in advice.ranked}) == len(advice.ranked)


def test_of_a_mesh_the_quickest_way_is_taken():
    for only in ("none", "dots", "full"):
        one = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096, remat=only)
        times = {each.mesh: each.step.lower for each in one.ranked}
        both = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096)
        for each in both.ranked:
            assert each.step.lower <= times.get(each.mesh, 1e9) * 1.00001


def test_each_loser_says_why(llama):
    reasons = {each.why: each.reason for each in reversed(everything(llama))}
    assert set(reasons) == {"", "variant", "slower", "memory", "model"}
    assert all(each.reason for each in everything(llama))
    assert reasons[""] == "the best: compute bounds it"
    nearest = next(each for each in llama.others if each.why == "memory")
    assert nearest.reason.startswith("does not fit: ")
    assert (
        f"of 86.4 GB, {max(nearest.bytes_by_kind, key=nearest.bytes_by_kind.get)}" in nearest.reason
    )


def test_kv_heads_and_experts_bound_their_axes(llama, mixture):
    said = {each.reason for each in llama.others if each.why == "model"}
    assert "tensor=16 does not divide 8 kv heads" in said
    said = {each.reason for each in mixture.others if each.why == "model"}
    assert {"tensor=3 does not divide 8 kv heads", "expert=16 does not divide 8 experts"} <= said


def test_a_batch_bounds_the_axes_that_cut_it():
    advice = advise("llama3-8b", "tpu-v5p", 64, batch=8, sequence=4096)
    refused = {each.mesh_text: each.reason for each in advice.others if each.why == "batch"}
    assert refused["data=4,fsdp=16"] == "batch 8 cannot be cut in 64 (data=4 x fsdp=16)"
    assert {each.mesh for each in advice.ranked} == {
        tuple((name, size) for name, size in axes if size > 1)
        for data, fsdp in ((1, 8), (2, 4), (4, 2), (8, 1))
        for axes in [(("data", data), ("fsdp", fsdp), ("tensor", 8))]
    }


def test_on_switches_what_leaves_a_node_costs_more():
    fast, slow = (
        advise("llama3-8b", "h100", 64, batch=64, sequence=4096, figures={"node_egress": egress})
        for egress in (4e12, 1e10)
    )
    times = [
        {each.mesh: each.step.communication_seconds for each in advice.ranked}
        for advice in (fast, slow)
    ]
    tensor = (("fsdp", 8), ("tensor", 8))
    assert times[1][tensor] > 10 * times[0][tensor]
    assert slow.best.step.lower >= fast.best.step.lower


def test_efficiencies_slow_arithmetic_and_network():
    whole = advise("llama3-8b", "tpu-v5p", 8, batch=8, sequence=4096)
    half = advise(
        "llama3-8b",
        "tpu-v5p",
        8,
        batch=8,
        sequence=4096,
        compute_efficiency=0.5,
        network_efficiency=0.25,
    )
    mesh = whole.best.mesh
    [other] = [each.step for each in half.ranked if each.mesh == mesh]
    assert other.compute_seconds == pytest.approx(2 * whole.best.step.compute_seconds)
    assert other.communication_seconds == pytest.approx(4 * whole.best.step.communication_seconds)
    assert other.utilisation(other.lower) <= 0.5


def test_what_is_found_does_not_hang_on_chance():
    first, second = (
        json.dumps(advise("mixtral-8x7b", "tpu-v5p", 16, batch=16, sequence=2048).to_json())
        for _ in range(2)
    )
    assert first == second


# --- the scaling book: applied-training.md (0819a7d, 2025-02) ---


def test_llama_70b_needs_225_chips_for_4m_tokens():
    # 140 GB of parameters, 560 GB of Adam in float32, 20.97 TB of checkpoints, 96 GB a chip; the
    # book counts no gradients
    made = plan(
        "llama3-70b", "data=1", strategy="data-parallel", optimizer="adam",
        workload=Workload(1000, 4000, remat="4"),
    )  # fmt: skip
    weights = made.bytes_of("parameters") + made.bytes_of("optimizer")
    assert weights == pytest.approx(700e9, rel=0.01)
    checkpoints = next(each for each in made.items if each.kind == "activations").bytes_per_device
    assert checkpoints == pytest.approx(20.97e12, rel=0.001)
    assert int((weights + checkpoints) / 96e9) == 225


def test_1024_sequences_cannot_be_cut_over_a_pod_without_their_length():
    # "we can only really do pure data parallelism/FSDP up to 1024 chips"; with 2-way sequence and
    # 4-way tensor parallelism it works
    asked = {"batch": 1024, "sequence": 4096, "remat": "none", "zero": 0}
    alone = advise("llama3-70b", "tpu-v5p", 8192, **asked, context=False)
    assert "batch 1,024 cannot be cut in 8,192 (fsdp=8192)" in {
        each.reason for each in alone.others
    }
    both = advise("llama3-70b", "tpu-v5p", 8192, **asked, context=True)
    mesh = (("fsdp", 1024), ("context", 2), ("tensor", 4))
    [found] = [each for each in both.ranked if each.mesh == mesh]
    assert found.bytes_per_device < 20e9


# --- what is not known ---


def test_without_batch_and_sequence_memory_ranks():
    advice = advise("llama3-8b", "h100", 8)
    held = [each.bytes_per_device for each in advice.ranked]
    assert held == sorted(held)
    assert all(each.step is None for each in advice.ranked)
    assert advice.notes[0].startswith("Without batch and sequence memory alone is counted")


def test_a_model_without_measures_is_ranked_by_memory():
    model = replace(load_model("llama3-8b"), architecture=None)
    advice = advise(model, "h100", 8, batch=8, sequence=4096)
    assert advice.notes[0].startswith("The model's measures are not known")
    assert advice.best.step is None
    assert advice.best.bytes_per_device == min(each.bytes_per_device for each in advice.ranked)


def test_context_is_tried_where_nothing_fits_without():
    asked = ("llama3-8b", "h100", 64)
    assert not advise(*asked, batch=1, sequence=65536, context=False).ranked
    found = advise(*asked, batch=1, sequence=65536)
    assert all("context" in dict(each.mesh) for each in found.ranked)
    assert found.ranked


@pytest.mark.parametrize(
    ("hardware", "chips", "figure"),
    [("a100", 16, "node_egress"), ("trainium2", 4, "link_bandwidth")],
)
def test_a_figure_that_nobody_publishes_is_asked_for(hardware, chips, figure):
    asked = {"batch": 16, "sequence": 1024}
    with pytest.raises(UnknownFigure, match=f"no published figure '{figure}'") as raised:
        advise("llama3-8b", hardware, chips, **asked)
    assert f"--figure {figure}=" in raised.value.fix
    assert advise("llama3-8b", hardware, chips, **asked, figures={figure: 1e11}).ranked


def test_within_a_node_nothing_about_others_is_needed():
    assert advise("llama3-8b", "a100", 8, batch=8, sequence=1024).ranked


@pytest.mark.parametrize("chips", [1, 7, 2**31 - 1])
def test_any_number_of_chips_is_answered(chips):
    advice = advise("gemma2-2b", "tpu-v5p", chips, batch=7, sequence=128)
    assert bool(advice.ranked) == (chips != 2**31 - 1)


def test_a_batch_that_nobody_trains_with_is_answered_at_once():
    advice = advise("llama3-8b", "h100", 8, batch=2**61 - 1, sequence=1)  # a prime
    assert advice.best.n_microbatches == 2**61 - 1


def test_a_model_without_layers_is_timed():
    arch = replace(load_model("llama3-8b").architecture, layers=0)
    model = replace(load_model("llama3-8b"), architecture=arch)
    assert advise(model, "h100", 8, batch=8, sequence=128).best.step.lower > 0


def test_two_devices_of_a_chip_are_both_counted():
    advice = advise("llama3-8b", "tpu-7x", 4, batch=8, sequence=1024)
    assert (advice.n_chips, advice.n_devices) == (4, 8)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"chips": 0}, BadSize, "The size of the chips is 0."),
        ({"chips": True}, BadType, "The number of chips is True."),
        ({"chips": 2.5}, BadType, "The size of the chips is 2.5"),
        ({"chips": 2**31}, TooManyDevices, "2,147,483,648 chips are more than XLA can count."),
        ({"chips": 5_040_000}, TooManyDevices, "too many to try"),
        ({"hardware": 5}, BadType, "5 is not a chip."),
        ({"figures": 5}, BadType, "5 are no figures."),
        ({"batch": None}, BadType, "There is no batch."),
        ({"batch": -1}, BadSize, "The size of the batch is -1."),
        ({"remat": "ful"}, UnknownChoice, "There is no remat policy 'ful'."),
        ({"optimizer": "adm"}, UnknownChoice, "There is no optimizer 'adm'"),
        ({"zero": 3}, BadType, "The ZeRO stages are 3."),
        ({"zero": ()}, BadType, "The ZeRO stages are ()."),
        ({"headroom": float("nan")}, LabError, "The headroom is nan."),
        ({"network_efficiency": 0}, BadEfficiency, "The efficiency is 0."),
    ],
)
def test_what_cannot_be_used_is_refused(change, error, words):
    asked = {"model": "llama3-8b", "hardware": "h100", "chips": 8, "batch": 8, "sequence": 1024}
    with pytest.raises(error) as raised:
        advise(**{**asked, **change})
    assert words in str(raised.value)


# --- the record ---


def test_json_holds_all_of_it(llama, mixture):
    for advice in (llama, mixture):
        again = Advice.from_json(json.loads(json.dumps(advice.to_json())))
        assert again == advice


def test_a_chip_of_ones_own_is_used():
    chip = parse_hardware("h100", {"hbm_bytes": 40e9})
    advice = advise("llama3-8b", chip, 8, batch=8, sequence=1024)
    assert advice.room.hbm_bytes == 40_000_000_000
    assert [each.source for each in advice.figures if each.name == "hbm_bytes"] == ["given"]
