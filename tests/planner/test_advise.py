"""Advice: exhaustive, with the memory of plans, timed, and candidate loser with its reason."""

from __future__ import annotations

import json
from dataclasses import replace

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
from shardlab.planner.advice.advice import Advice
from shardlab.planner.advice.make_advice import advise
from shardlab.planner.advice.mesh_conventions import MeshConventions
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.models.load import load_model
from shardlab.planner.plan import KINDS
from shardlab.sharding.factors import factorizations


@pytest.fixture(scope="module")
def llama():
    return advise("llama3-70b", "tpu-v5p", 512, batch=1024, sequence=8192)


@pytest.fixture(scope="module")
def mixture():
    return advise("mixtral-8x7b", "h100", 48, batch=96, sequence=4096, optimizer="adafactor")


def all_candidates(advice):
    return (*advice.ranked, *advice.others)


def usable_candidates(advice):
    return [candidate for candidate in all_candidates(advice) if candidate.strategy]


# --- exhaustive ---


def test_every_factorisation_is_a_candidate(llama, mixture):
    for advice, axes in (
        (llama, ("data", "fsdp", "tensor")),
        (mixture, ("data", "fsdp", "expert", "tensor")),
    ):
        expected = {
            tuple((name, size) for name, size in zip(axes, sizes, strict=True) if size > 1)
            for sizes in factorizations(advice.n_devices, len(axes))
        }
        meshes = {candidate.mesh for candidate in all_candidates(advice)}
        assert {mesh for mesh in meshes if "stage" not in dict(mesh)} == expected


def test_every_zero_stage_and_remat_policy_of_a_mesh_is_tried_once(llama):
    mesh = (("data", 8), ("fsdp", 16), ("tensor", 4))
    ways = sorted(
        (candidate.strategy, candidate.remat)
        for candidate in all_candidates(llama)
        if candidate.mesh == mesh
    )
    stages = ("fsdp+tensor", "fsdp+tensor+zero1", "fsdp+tensor+zero2")
    assert ways == [
        (stage, remat) for stage in stages for remat in ("dots", "full", "none", "selective")
    ]


def test_no_candidate_is_listed_twice(llama):
    assert all(size > 1 for candidate in all_candidates(llama) for _, size in candidate.mesh)
    assert all(
        "zero" not in candidate.strategy
        for candidate in usable_candidates(llama)
        if "data" not in dict(candidate.mesh)
    )
    keys = [
        (candidate.mesh, candidate.strategy, candidate.remat) for candidate in all_candidates(llama)
    ]
    assert len(set(keys)) == len(keys)


# --- memory: the plan's, to the byte ---


def plan_candidate(advice, name, candidate, **options):
    batch = int(advice.choices["batch"])
    workload = Workload(
        batch=batch,
        sequence=int(advice.choices["sequence"]),
        remat=candidate.remat or "full",
        microbatch=batch // candidate.n_microbatches if candidate.n_microbatches > 1 else None,
    )
    optimizer = advice.choices["optimizer"]
    return plan(
        name,
        candidate.mesh_text,
        strategy=candidate.strategy,
        optimizer=optimizer,
        workload=workload,
        **{"hardware": advice.hardware, **options},
    )


@pytest.mark.parametrize(
    ("fixture", "name"), [("llama", "llama3-70b"), ("mixture", "mixtral-8x7b")]
)
def test_memory_is_that_of_the_plan_to_the_byte(fixture, name, request):
    advice = request.getfixturevalue(fixture)
    # A plan stacks the layers of a pipeline in one array, which factored optimizers store
    # otherwise, and replicates layers that stages do not divide; test_advise_command has one.
    candidates = [
        candidate for candidate in usable_candidates(advice) if "stage" not in dict(candidate.mesh)
    ]
    for candidate in candidates[:: len(candidates) // 25]:
        candidate_plan = plan_candidate(advice, name, candidate)
        assert {kind: candidate_plan.bytes_of(kind) for kind in KINDS} == dict(
            candidate.bytes_by_kind
        )
        assert candidate_plan.bytes_per_device == candidate.bytes_per_device


def test_memory_of_inference_is_that_of_the_plan():
    advice = advise("deepseek-v3-main", "h200", 32, batch=64, sequence=4096, optimizer="none")
    for candidate in usable_candidates(advice):
        assert (
            plan_candidate(advice, "deepseek-v3-main", candidate).bytes_per_device
            == candidate.bytes_per_device
        )
    assert {name for candidate in usable_candidates(advice) for name, _ in candidate.mesh} == {
        "data",
        "expert",
        "tensor",
    }


def required_bytes(candidate, margin):
    """Return the bytes with that many times the estimated activations."""
    return candidate.bytes_per_device + (margin - 1) * candidate.bytes_by_kind["activations"]


def test_candidates_that_fit_are_those_whose_plan_fits(llama):
    usable = llama.budget.usable_bytes
    assert usable == int(96e9 * 0.9)
    for candidate in usable_candidates(llama):
        assert (candidate.bytes_per_device > usable) == (candidate.loss_kind == "memory")


def test_a_margin_leaves_memory_for_more_activations_than_estimated():
    arguments = ("llama3-8b", "tpu-v5e", 16)
    bold, sure = (
        advise(*arguments, batch=32, sequence=4096, activation_margin=margin) for margin in (1, 2)
    )
    usable = sure.budget.usable_bytes
    for candidate in usable_candidates(sure):
        assert (required_bytes(candidate, 2) > usable) == (candidate.loss_kind == "memory")
    edge = next(
        candidate for candidate in sure.others if candidate.loss_kind == "memory" and candidate.step
    )
    assert edge.bytes_per_device <= usable  # it is timed too, because it may fit
    assert edge.reason == (
        "fits only if activations take no more than the estimate: "
        f"{bytes_text(edge.bytes_per_device)} of 14.4 GB, "
        f"{bytes_text(required_bytes(edge, 2))} if they take 2 times that"
    )
    assert "Activations may take 2 times their estimate, as requested" in " ".join(sure.notes)
    assert "calibrated on XLA's buffer assignments" in " ".join(bold.notes)


def test_a_batch_is_divided_into_as_few_microbatches_as_fit(llama):
    divided = [candidate for candidate in llama.ranked if candidate.n_microbatches > 1]
    assert divided
    for candidate in divided[:5]:
        larger = plan_candidate(
            llama, "llama3-70b", replace(candidate, n_microbatches=candidate.n_microbatches // 2)
        )
        assert larger.bytes_per_device > llama.budget.usable_bytes


# --- ranking ---


def test_candidates_that_fit_are_ordered_by_time_and_by_how_usual_they_are(llama, mixture):
    for advice in (llama, mixture):
        conventions = MeshConventions(
            hardware=parse_hardware(advice.hardware), n_devices=advice.n_devices
        )
        for software in {candidate.framework for candidate in advice.ranked}:
            order = [
                candidate.step.expected * conventions.penalty(candidate.mesh)
                for candidate in advice.ranked
                if candidate.framework == software
            ]
            assert order == pytest.approx(sorted(order), rel=1e-5)
        assert len({candidate.mesh for candidate in advice.ranked}) == len(advice.ranked)


def test_the_fastest_variant_of_a_mesh_is_ranked():
    for policy in ("none", "dots", "full"):
        single = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096, remat=policy)
        times = {candidate.mesh: candidate.step.expected for candidate in single.ranked}
        every_policy = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096)
        for candidate in every_policy.ranked:
            assert candidate.step.expected <= times.get(candidate.mesh, 1e9) * 1.00001


def test_each_loser_has_a_reason(llama):
    reasons = {
        candidate.loss_kind: candidate.reason for candidate in reversed(all_candidates(llama))
    }
    assert set(reasons) == {"", "variant", "slower", "memory"}
    assert all(candidate.reason for candidate in all_candidates(llama))
    assert reasons[""] == "bound by compute"
    too_large = [candidate for candidate in llama.others if candidate.loss_kind == "memory"]
    nearest = next(candidate for candidate in too_large if candidate.step is None)
    assert nearest.reason.startswith("does not fit: ")
    assert (
        f"of 86.4 GB, {max(nearest.bytes_by_kind, key=nearest.bytes_by_kind.get)}" in nearest.reason
    )


def test_experts_must_be_divisible_by_their_axis(mixture):
    reasons = {candidate.reason for candidate in mixture.others if candidate.loss_kind == "model"}
    sizes = (3, 6, 12, 16, 24, 48)
    assert {f"8 experts are not divisible by expert={size}" for size in sizes} <= reasons


def test_an_axis_that_divides_no_tensor_is_rejected():
    [reason] = [
        candidate.reason
        for candidate in advise(
            "gemma2-2b", "h100", 11, batch=7, sequence=128, optimizer="sgd"
        ).others
        if candidate.mesh_text == "tensor=11"
    ]
    assert reason == "8 heads and width 2,304 are not divisible by tensor=11"


def test_a_tensor_axis_that_divides_neither_heads_nor_width_is_not_ranked():
    seven = advise("llama3-8b", "h100", 7, batch=128, sequence=4096)
    assert seven.ranked == ()
    reasons = {candidate.mesh_text: candidate.reason for candidate in seven.others}
    assert reasons["tensor=7"] == "32 heads and width 4,096 are not divisible by tensor=7"
    # 8 heads, but the width of 2,304 is divisible: heads are repeated, products are not.
    assert "tensor=9" in {
        candidate.mesh_text
        for candidate in advise("gemma2-2b", "h100", 9, batch=9, sequence=1024).ranked
    }


def test_a_tensor_axis_beyond_the_kv_heads_is_a_candidate():
    # Llama 3.1 405B in bf16 is served on 16 GPUs of two nodes with tensor parallelism of 16
    # (arXiv 2407.21783, section 6.1)
    advice = advise("llama3.1-405b", "h100", 16, batch=16, sequence=8192, optimizer="none")
    assert advice.best.mesh_text == "tensor=16"
    candidate_plan = plan_candidate(advice, "llama3.1-405b", advice.best)
    assert candidate_plan.bytes_per_device == advice.best.bytes_per_device
    assert round(candidate_plan.bytes_per_device / 1e9, 1) == 67.1


def test_what_a_tensor_axis_does_not_shard_is_computed_by_each_of_its_devices():
    advice = advise("llama3-8b", "tpu-v5p", 16, batch=16, sequence=4096, remat="none")
    flops = {candidate.mesh_text: candidate.step.flops for candidate in advice.ranked}
    # keys and values of 8 heads: 2 x 4096 x 1024 in 32 layers, on 15 additional devices
    redundant = 6 * 15 * 32 * 2 * 4096 * 1024 * 16 * 4096
    assert flops["tensor=16"] - flops["fsdp=2,tensor=8"] == pytest.approx(redundant, rel=1e-6)
    assert flops["fsdp=2,tensor=8"] == pytest.approx(flops["fsdp=16"])


def test_heads_that_no_axis_divides_are_computed_by_all_devices():
    # 28 heads over 8 devices: plans replicate queries
    advice = advise("qwen2.5-7b", "h100", 8, batch=8, sequence=4096, optimizer="none")
    flops = {candidate.mesh_text: candidate.step for candidate in advice.ranked}
    # an embedding is looked up, not multiplied, but counts in the FLOPs of the model
    lookup = 2 * 152064 * 3584 * 8
    assert flops["tensor=8"].model_flops - lookup == pytest.approx(flops["data=8"].flops, rel=1e-3)
    attention = 4 * 28 * 28 * 128 * 4096 * 8
    assert flops["tensor=8"].flops - flops["data=8"].flops > 7 * attention


def test_a_batch_must_be_divisible_by_its_axes():
    advice = advise("llama3-8b", "tpu-v5p", 64, batch=8, sequence=4096)
    reasons = {
        candidate.mesh_text: candidate.reason
        for candidate in advice.others
        if candidate.loss_kind == "batch"
    }
    assert reasons["data=4,fsdp=16"] == "batch 8 is not divisible by 64 (data=4 x fsdp=16)"
    assert all(
        8 % (dict(candidate.mesh).get("data", 1) * dict(candidate.mesh).get("fsdp", 1)) == 0
        for candidate in advice.ranked
    )
    assert {"fsdp=8,tensor=8", "data=8,tensor=8"} <= {
        candidate.mesh_text for candidate in advice.ranked[:3]
    }


def test_on_switches_communication_between_nodes_costs_more():
    fast, slow = (
        advise("llama3-8b", "h100", 64, batch=64, sequence=4096, figures={"node_egress": egress})
        for egress in (4e12, 1e10)
    )
    times = [
        {candidate.mesh: candidate.step.communication_seconds for candidate in advice.ranked}
        for advice in (fast, slow)
    ]
    tensor = (("fsdp", 8), ("tensor", 8))
    assert times[1][tensor] > 10 * times[0][tensor]
    assert slow.best.step.lower >= fast.best.step.lower


def test_exposed_communication_stays_within_a_node():
    # Llama 3 405B was trained with tensor parallelism inside nodes alone (arXiv 2407.21783, 3.3.2)
    best = advise("llama3.1-405b", "h100", 1024, batch=1024, sequence=8192).best
    assert 1 < dict(best.mesh)["tensor"] <= 8
    assert f"tensor {dict(best.mesh)['tensor']} in a node" in best.placement


def test_a_small_model_on_a_torus_uses_fsdp_alone():
    # JAX scaling book, training.md: FSDP is bound by compute from C / W tokens per chip, here
    # 9.2e14 / (2 x 2 x 9e10) = 2,550; there are 8,192
    advice = advise("gemma2-9b", "tpu-v6e", 256, batch=256, sequence=8192)
    assert (advice.best.mesh_text, advice.best.placement) == ("fsdp=256", "fsdp 16x16")


def test_efficiencies_replace_the_calibrated_ones():
    full, half = (
        advise(
            *("llama3-8b", "tpu-v5p", 64),
            batch=64,
            sequence=4096,
            remat="none",
            compute_efficiency=efficiency,
            network_efficiency=efficiency / 2,
        )
        for efficiency in (1.0, 0.5)
    )
    mesh = full.best.mesh
    [step] = [candidate.step for candidate in half.ranked if candidate.mesh == mesh]
    for fast, slow in zip(full.best.step.operations, step.operations, strict=True):
        ratio = 2 if fast.bound == slow.bound == "compute" else 1
        assert slow.seconds == pytest.approx(ratio * fast.seconds, rel=0.01)
    assert step.overlapped_seconds == pytest.approx(2 * full.best.step.overlapped_seconds, rel=0.05)
    assert "efficiency: 0.5 of the compute peak, as requested" in str(half)


def test_advice_is_deterministic():
    first, second = (
        json.dumps(advise("mixtral-8x7b", "tpu-v5p", 16, batch=16, sequence=2048).to_json())
        for _ in range(2)
    )
    assert first == second


# --- the scaling book: applied-training.md (0819a7d, 2025-02) ---


def test_llama_70b_needs_225_chips_for_4m_tokens():
    # 140 GB of parameters, 560 GB of Adam in float32, 20.97 TB of checkpoints, 96 GB a chip; the
    # book counts no gradients
    one_device = plan(
        "llama3-70b", "data=1", strategy="data-parallel", optimizer="adam",
        workload=Workload(batch=1000, sequence=4000, remat="4"),
    )  # fmt: skip
    weights = one_device.bytes_of("parameters") + one_device.bytes_of("optimizer")
    assert weights == pytest.approx(700e9, rel=0.01)
    checkpoints = next(
        item for item in one_device.items if item.kind == "activations"
    ).bytes_per_device
    assert checkpoints == pytest.approx(20.97e12, rel=0.001)
    assert int((weights + checkpoints) / 96e9) == 225


def test_1024_sequences_cannot_be_sharded_over_a_pod_without_a_context_axis():
    # "we can only really do pure data parallelism/FSDP up to 1024 chips"; with 2-way sequence and
    # 4-way tensor parallelism it works
    options = {"batch": 1024, "sequence": 4096, "remat": "none", "zero": 0}
    without_context = advise("llama3-70b", "tpu-v5p", 8192, **options, context=False)
    assert "batch 1,024 is not divisible by 8,192 (fsdp=8192)" in {
        candidate.reason for candidate in without_context.others
    }
    with_context = advise("llama3-70b", "tpu-v5p", 8192, **options, context=True)
    mesh = (("fsdp", 1024), ("context", 2), ("tensor", 4))
    [candidate] = [candidate for candidate in with_context.ranked if candidate.mesh == mesh]
    assert candidate.bytes_per_device < 25e9


def test_llama_70b_in_int8_decodes_a_token_in_17_ms_on_8_chips_of_v5e():
    # applied-inference.md: batch 32, 8192 tokens, 112 GB of parameters and cache, "about 17ms" by
    # memory bandwidth alone
    options = {"batch": 32, "sequence": 8192, "optimizer": "none", "policy": "int8"}
    best = advise("llama3-70b", "tpu-v5e", 8, **options, cache_dtype="int8").best
    assert best.mesh_text == "tensor=8"
    assert 8 * best.bytes_per_device == pytest.approx(112e9, rel=0.02)
    reading = best.bytes_per_device / 8.1e11
    assert reading == pytest.approx(17e-3, rel=0.04)
    # at the bandwidth that programs reach, with the collectives that the book leaves out
    assert reading / 0.85 < best.step.busy_seconds < best.step.expected < 2 * reading


# --- missing information ---


def test_without_batch_and_sequence_memory_ranks():
    advice = advise("llama3-8b", "h100", 8)
    sizes = [candidate.bytes_per_device for candidate in advice.ranked]
    assert sizes == sorted(sizes)
    assert all(candidate.step is None for candidate in advice.ranked)
    assert advice.notes[0].startswith("Without batch and sequence only memory is counted")


def test_a_model_of_unknown_architecture_is_ranked_by_memory():
    model = replace(load_model("llama3-8b"), architecture=None)
    advice = advise(model, "h100", 8, batch=8, sequence=4096)
    assert advice.notes[0].startswith("The model's architecture is unknown")
    assert advice.best.step is None
    assert advice.best.bytes_per_device == min(
        candidate.bytes_per_device for candidate in advice.ranked
    )


def test_context_is_tried_if_nothing_fits_without():
    arguments = ("gemma2-2b", "h100", 11)
    assert not advise(*arguments, batch=1, sequence=4096 * 11, context=False).ranked
    advice = advise(*arguments, batch=1, sequence=4096 * 11)
    assert [candidate.mesh_text for candidate in advice.ranked] == ["data=1,context=11"]


def test_context_is_tried_if_devices_would_repeat_all_heads():
    arguments = ("llama3-8b", "h100", 64)
    options = {"batch": 1, "sequence": 65536, "pipeline": False}
    [tensor] = advise(*arguments, **options, context=False).ranked
    assert tensor.mesh_text == "tensor=64"  # of 32 heads
    best = advise(*arguments, **options).best
    assert "context" in dict(best.mesh)
    assert best.step.expected < tensor.step.expected / 4


# --- nothing fits ---


def test_the_smallest_multiple_of_the_devices_that_is_enough_is_found():
    options = {"batch": 8, "sequence": 1024}
    advice = advise("llama3-70b", "h100", 4, **options)
    assert not advice.ranked
    n_devices = advice.sufficient_devices
    assert n_devices % 4 == 0
    assert advice.sufficient.mesh == advise("llama3-70b", "h100", n_devices, **options).best.mesh
    for fewer in range(8, n_devices, 4):
        assert not advise("llama3-70b", "h100", fewer, **options).ranked


def test_if_no_number_of_devices_is_enough_it_says_how_many_were_tried():
    chip = parse_hardware("h100", {"hbm_bytes": 1e6})
    advice = advise("llama3-8b", chip, 8, batch=8, sequence=1024)
    assert (advice.ranked, advice.sufficient, advice.sufficient_devices) == ((), None, 0)
    assert advice.devices_tried > 8


@pytest.mark.parametrize(
    ("hardware", "devices", "figure"),
    [("trainium2", 4, "link_bandwidth")],
)
def test_an_unpublished_figure_must_be_given(hardware, devices, figure):
    options = {"batch": 16, "sequence": 1024}
    with pytest.raises(UnknownFigure, match=f"no published figure '{figure}'") as raised:
        advise("llama3-8b", hardware, devices, **options)
    assert f"--figure {figure}=" in raised.value.fix
    assert advise("llama3-8b", hardware, devices, **options, figures={figure: 1e11}).ranked


def test_within_a_node_no_figure_between_nodes_is_needed():
    assert advise("llama3-8b", "a100", 8, batch=8, sequence=1024).ranked


@pytest.mark.parametrize("devices", [1, 7, 2**31 - 1])
def test_any_number_of_devices_is_accepted(devices):
    advice = advise("gemma2-2b", "tpu-v5p", devices, batch=7, sequence=128)
    assert bool(advice.ranked) == (devices != 2**31 - 1)


def test_a_huge_prime_batch_takes_no_time():
    advice = advise("llama3-8b", "h100", 8, batch=2**61 - 1, sequence=1)  # a prime
    assert advice.best.n_microbatches == 2**61 - 1


def test_a_model_without_layers_is_timed():
    arch = replace(load_model("llama3-8b").architecture, layers=0)
    model = replace(load_model("llama3-8b"), architecture=arch)
    assert advise(model, "h100", 8, batch=8, sequence=128).best.step.lower > 0


def test_two_devices_of_a_chip_are_both_counted():
    advice = advise("llama3-8b", "tpu-7x", 8, batch=8, sequence=1024)
    assert (advice.n_chips, advice.n_devices) == (4, 8)
    assert "8 tpu-7x devices (4 chips)" in str(advice)
    with pytest.raises(InvalidType, match="7 devices are not a whole number of chips") as raised:
        advise("llama3-8b", "tpu-7x", 7, batch=8, sequence=1024)
    assert raised.value.fix == "6 or 8 devices."


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"devices": 0}, InvalidSize, "the number of devices is 0."),
        ({"devices": True}, InvalidType, "The number of devices is True."),
        ({"devices": 2.5}, InvalidType, "the number of devices is 2.5"),
        ({"devices": 2**31}, TooManyDevices, "2,147,483,648 devices are more than XLA can count."),
        ({"devices": 5_040_000}, TooManyDevices, "too many to try"),
        ({"hardware": 5}, InvalidType, "5 is not hardware."),
        ({"figures": 5}, InvalidType, "5 is not a mapping of figures."),
        ({"batch": None}, InvalidType, "There is no batch."),
        ({"batch": -1}, InvalidSize, "The size of the batch is -1."),
        ({"remat": "ful"}, UnknownOption, "Unknown remat policy 'ful'."),
        ({"optimizer": "adm"}, UnknownOption, "Unknown optimizer 'adm'"),
        ({"zero": 3}, InvalidType, "The ZeRO stages are 3."),
        ({"activation_margin": 0}, UnknownOption, "The activation margin is 0."),
        ({"activation_margin": float("nan")}, UnknownOption, "The activation margin is nan."),
        ({"activation_margin": True}, UnknownOption, "The activation margin is True."),
        ({"cache_dtype": "in8"}, LabError, "in8"),
        ({"zero": ()}, InvalidType, "The ZeRO stages are ()."),
        ({"headroom": float("nan")}, LabError, "The headroom is nan."),
        ({"network_efficiency": 0}, InvalidEfficiency, "The efficiency is 0."),
    ],
)
def test_invalid_arguments_are_rejected(change, error, message):
    arguments = {
        "model": "llama3-8b",
        "hardware": "h100",
        "devices": 8,
        "batch": 8,
        "sequence": 1024,
    }
    with pytest.raises(error) as raised:
        advise(**{**arguments, **change})
    assert message in str(raised.value)


# --- the record ---


def test_json_round_trips(llama, mixture):
    for advice in (llama, mixture):
        loaded = Advice.from_json(json.loads(json.dumps(advice.to_json())))
        assert loaded == advice


def test_a_custom_chip_is_used():
    chip = parse_hardware("h100", {"hbm_bytes": 40e9})
    advice = advise("llama3-8b", chip, 8, batch=8, sequence=1024)
    assert advice.budget.hbm_bytes == 40_000_000_000
    sources = [figure.source for figure in advice.figures if figure.name == "hbm_bytes"]
    assert sources == ["set by the user"]


def test_advice_of_an_older_version_is_read(mixture):
    data = json.loads(json.dumps(mixture.to_json()))
    data["format_version"] = 1
    data |= {"room": data.pop("budget"), "enough": data.pop("sufficient")}
    data["enough_chips"] = data.pop("sufficient_devices")
    del data["devices_tried"]
    for entry in (*data["ranked"], *data["others"]):
        entry |= {"why": entry.pop("loss_kind"), "laid": entry.pop("placement")}
        del entry["zero"], entry["rejection"]
    loaded = Advice.from_json(data)
    assert loaded.best.placement == mixture.best.placement
    assert [candidate.loss_kind for candidate in loaded.others] == [
        candidate.loss_kind for candidate in mixture.others
    ]


def test_a_named_mesh_that_is_not_tried_says_which_option_tries_it():
    advice = advise("llama3-8b", "tpu-v5p", 64, batch=64, sequence=4096, mesh="dp=8,pp=4,tp=2")
    assert advice.requested.mesh_text == "data=8,stage=4,tensor=2"
    assert advice.requested.reason.endswith("not ranked: tried with --pipeline only")
