"""Advice: exhaustive, weighed as plans are, timed, and each loser with its reason."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shardlab._text.units import bytes_text
from shardlab.errors import (
    InvalidEfficiency,
    InvalidSize,
    InvalidType,
    LabError,
    TooManyDevices,
    UnknownFigure,
    UnknownOption,
)
from shardlab.hardware.chips import parse_hardware
from shardlab.planner.memory.activations import ACTIVATION_MARGINS
from shardlab.planner.advice.advice import Advice
from shardlab.planner.advice.make_advice import advise
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.load import load_model
from shardlab.planner.plan import KINDS
from shardlab.sharding.factors import products


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
        batch=batch,
        sequence=int(advice.choices["sequence"]),
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


def needed(made, margin):
    """With so many times the activations that are estimated."""
    return made.bytes_per_device + (margin - 1) * made.bytes_by_kind["activations"]


def test_what_fits_has_room_for_activations_as_measured_and_what_does_not_has_none(llama):
    usable = llama.room.usable_bytes
    assert usable == int(96e9 * 0.9)
    for each in weighed(llama):
        assert (needed(each, ACTIVATION_MARGINS[each.remat]) > usable) == (each.why == "memory")


def test_with_a_margin_of_one_the_estimate_decides():
    asked = ("llama3-8b", "tpu-v5e", 16)
    sure, bold = (
        advise(*asked, batch=32, sequence=4096, activation_margin=margin) for margin in (None, 1)
    )
    usable = sure.room.usable_bytes
    for each in weighed(bold):
        assert (each.bytes_per_device > usable) == (each.why == "memory")
    edge = next(each for each in sure.others if each.why == "memory" and each.step)
    assert (edge.mesh_text, edge.remat) == (bold.best.mesh_text, bold.best.remat)
    assert edge.step == bold.best.step  # it is timed all the same
    here, more = (
        bytes_text(n) for n in (edge.bytes_per_device, needed(edge, ACTIVATION_MARGINS["full"]))
    )
    assert edge.reason == (
        f"fits only if activations take no more than the estimate: {here} of 14.4 GB, "
        f"{more} if they take 1.9 times that"
    )
    assert "room for 1 times their estimate, as given" in " ".join(bold.notes)


def test_margins_are_the_largest_that_were_measured():
    page = (Path(__file__).parents[2] / "docs/plan-memory.md").read_text("utf-8")
    for remat in ("none", "dots", "full"):
        _, most = re.search(rf"\| `{remat}` \| ([\d.]+) to ([\d.]+) \|", page).groups()
        assert ACTIVATION_MARGINS[remat] == float(most)
    assert ACTIVATION_MARGINS["selective"] == ACTIVATION_MARGINS["none"]


def test_a_batch_is_divided_into_as_few_microbatches_as_fit(llama):
    for each in llama.ranked[:5]:
        assert each.n_microbatches > 1
        more = planned(llama, "llama3-70b", replace(each, n_microbatches=each.n_microbatches // 2))
        extra = (ACTIVATION_MARGINS[each.remat] - 1) * more.bytes_of("activations")
        assert more.bytes_per_device + extra > llama.room.usable_bytes


# --- ranking ---


def test_what_fits_is_in_the_order_of_its_time(llama, mixture):
    for advice in (llama, mixture):
        order = [each.step.expected for each in advice.ranked]
        assert order == pytest.approx(sorted(order), rel=1e-5)
        assert len({each.mesh for each in advice.ranked}) == len(advice.ranked)


def test_of_a_mesh_the_quickest_way_is_taken():
    for only in ("none", "dots", "full"):
        one = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096, remat=only)
        times = {each.mesh: each.step.expected for each in one.ranked}
        both = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096)
        for each in both.ranked:
            assert each.step.expected <= times.get(each.mesh, 1e9) * 1.00001


def test_each_loser_says_why(llama):
    reasons = {each.why: each.reason for each in reversed(everything(llama))}
    assert set(reasons) == {"", "variant", "slower", "memory"}
    assert all(each.reason for each in everything(llama))
    assert reasons[""] == "compute bounds it"
    too_large = [each for each in llama.others if each.why == "memory"]
    nearest = next(each for each in too_large if each.step is None)
    assert nearest.reason.startswith("does not fit: ")
    assert (
        f"of 86.4 GB, {max(nearest.bytes_by_kind, key=nearest.bytes_by_kind.get)}" in nearest.reason
    )


def test_experts_bound_their_axis(mixture):
    said = {each.reason for each in mixture.others if each.why == "model"}
    assert {f"expert={size} does not divide 8 experts" for size in (3, 6, 12, 16, 24, 48)} <= said


def test_an_axis_that_divides_nothing_is_refused():
    [refused] = [
        each.reason
        for each in advise("gemma2-2b", "h100", 11, batch=7, sequence=128, optimizer="sgd").others
        if each.mesh_text == "tensor=11"
    ]
    assert refused == "tensor=11 divides no tensor of the model"


def test_a_tensor_axis_beyond_the_kv_heads_is_a_candidate():
    # Llama 3.1 405B in bf16 is served on 16 GPUs of two nodes with tensor parallelism of 16
    # (arXiv 2407.21783, section 6.1)
    advice = advise("llama3.1-405b", "h100", 16, batch=16, sequence=8192, optimizer="none")
    assert advice.best.mesh_text == "tensor=16"
    made = planned(advice, "llama3.1-405b", advice.best)
    assert made.bytes_per_device == advice.best.bytes_per_device
    assert round(made.bytes_per_device / 1e9, 1) == 67.1


def test_what_a_tensor_axis_leaves_whole_is_computed_by_each_of_its_devices():
    advice = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096, remat="none")
    times = {each.mesh_text: each.step.compute_seconds for each in advice.ranked}
    # keys and values of 8 heads: 2 x 4096 x 1024 in 32 layers, for 15 devices more than one
    more = 6 * 15 * 32 * 2 * 4096 * 1024 * 16 * 4096 / (16 * 459e12)
    assert times["tensor=16"] - times["fsdp=2,tensor=8"] == pytest.approx(more, rel=1e-6)
    assert times["fsdp=2,tensor=8"] == times["fsdp=16"]


def test_heads_that_no_axis_divides_are_attended_by_all():
    # 28 heads over 8 devices: plans leave queries whole
    advice = advise("qwen2.5-7b", "h100", 8, batch=8, sequence=4096, optimizer="none")
    flops = {each.mesh_text: each.step for each in advice.ranked}
    assert flops["tensor=8"].model_flops == flops["data=8"].flops
    attention = 4 * 28 * 28 * 128 * 4096 * 8
    assert flops["tensor=8"].flops - flops["data=8"].flops > 7 * attention


def test_a_batch_bounds_the_axes_that_cut_it():
    advice = advise("llama3-8b", "tpu-v5p", 64, batch=8, sequence=4096)
    refused = {each.mesh_text: each.reason for each in advice.others if each.why == "batch"}
    assert refused["data=4,fsdp=16"] == "batch 8 cannot be cut in 64 (data=4 x fsdp=16)"
    assert all(
        8 % (dict(each.mesh).get("data", 1) * dict(each.mesh).get("fsdp", 1)) == 0
        for each in advice.ranked
    )
    assert {each.mesh_text for each in advice.ranked[:3]} <= {
        *("fsdp=8,tensor=8", "data=2,fsdp=4,tensor=8", "data=4,fsdp=2,tensor=8", "data=8,tensor=8")
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


def test_what_is_waited_for_stays_within_a_node():
    # Llama 3 405B was trained with tensor parallelism inside nodes alone (arXiv 2407.21783, 3.3.2)
    best = advise("llama3.1-405b", "h100", 1024, batch=1024, sequence=8192).best
    assert dict(best.mesh).get("tensor", 1) <= 8
    assert "tensor 2 in a node" in best.laid


def test_a_small_model_on_a_torus_is_cut_by_fsdp_alone():
    # JAX scaling book, training.md: FSDP is bound by compute from C / W tokens a chip on, here
    # 9.2e14 / (2 x 2 x 9e10) = 2,550; there are 8,192
    advice = advise("gemma2-9b", "tpu-v6e", 256, batch=256, sequence=8192)
    assert (advice.best.mesh_text, advice.best.laid) == ("fsdp=256", "fsdp 16x16")


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
        workload=Workload(batch=1000, sequence=4000, remat="4"),
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


def test_llama_70b_in_int8_decodes_a_token_in_17_ms_on_8_chips_of_v5e():
    # applied-inference.md: batch 32, 8192 tokens, 112 GB of parameters and cache, "about 17ms" by
    # memory bandwidth alone
    asked = {"batch": 32, "sequence": 8192, "optimizer": "none", "policy": "int8"}
    best = advise("llama3-70b", "tpu-v5e", 8, **asked, cache_dtype="int8").best
    assert best.mesh_text == "tensor=8"
    assert 8 * best.bytes_per_device == pytest.approx(112e9, rel=0.02)
    assert best.step.lower == best.step.reading_seconds == pytest.approx(17e-3, rel=0.04)


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
    asked = ("gemma2-2b", "h100", 11)
    assert not advise(*asked, batch=1, sequence=4096 * 11, context=False).ranked
    found = advise(*asked, batch=1, sequence=4096 * 11)
    assert [each.mesh_text for each in found.ranked] == ["data=1,context=11"]


def test_context_is_tried_where_devices_would_repeat_all_heads():
    asked = ("llama3-8b", "h100", 64)
    [alone] = advise(*asked, batch=1, sequence=65536, context=False).ranked
    assert alone.mesh_text == "tensor=64"  # of 32 heads
    best = advise(*asked, batch=1, sequence=65536).best
    assert "context" in dict(best.mesh)
    assert best.step.expected < alone.step.expected / 4


# --- where nothing fits ---


def test_the_least_multiple_of_the_chips_that_is_enough_is_found():
    asked = {"batch": 8, "sequence": 1024}
    advice = advise("llama3-70b", "h100", 4, **asked)
    assert not advice.ranked
    n = advice.enough_chips
    assert n % 4 == 0
    assert advice.enough.mesh == advise("llama3-70b", "h100", n, **asked).best.mesh
    for fewer in range(8, n, 4):
        assert not advise("llama3-70b", "h100", fewer, **asked).ranked


def test_where_no_number_of_chips_is_enough_it_says_how_many_were_tried():
    chip = parse_hardware("h100", {"hbm_bytes": 1e6})
    advice = advise("llama3-8b", chip, 8, batch=8, sequence=1024)
    assert (advice.ranked, advice.enough) == ((), None)
    assert advice.enough_chips > 8


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
        ({"chips": 0}, InvalidSize, "The size of the chips is 0."),
        ({"chips": True}, InvalidType, "The number of chips is True."),
        ({"chips": 2.5}, InvalidType, "The size of the chips is 2.5"),
        ({"chips": 2**31}, TooManyDevices, "2,147,483,648 chips are more than XLA can count."),
        ({"chips": 5_040_000}, TooManyDevices, "too many to try"),
        ({"hardware": 5}, InvalidType, "5 is not a chip."),
        ({"figures": 5}, InvalidType, "5 are no figures."),
        ({"batch": None}, InvalidType, "There is no batch."),
        ({"batch": -1}, InvalidSize, "The size of the batch is -1."),
        ({"remat": "ful"}, UnknownOption, "There is no remat policy 'ful'."),
        ({"optimizer": "adm"}, UnknownOption, "There is no optimizer 'adm'"),
        ({"zero": 3}, InvalidType, "The ZeRO stages are 3."),
        ({"activation_margin": 0}, UnknownOption, "The margin of activations is 0."),
        ({"activation_margin": float("nan")}, UnknownOption, "The margin of activations is nan."),
        ({"activation_margin": True}, UnknownOption, "The margin of activations is True."),
        ({"cache_dtype": "in8"}, LabError, "in8"),
        ({"zero": ()}, InvalidType, "The ZeRO stages are ()."),
        ({"headroom": float("nan")}, LabError, "The headroom is nan."),
        ({"network_efficiency": 0}, InvalidEfficiency, "The efficiency is 0."),
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
