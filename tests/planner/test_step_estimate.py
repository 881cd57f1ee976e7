"""The time of a step on a chosen mesh, compared with published runs and with its own arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardlab.errors import InvalidModel, UnknownOption
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture
from shardlab.planner.models.load import load_model
from shardlab.planner.models.transformer import stage_groups, transformer_model
from shardlab.planner.strategies.pipeline_schedule import bubble_fraction, parse_schedule
from shardlab.planner.timing.estimate_step import estimate_prefill, estimate_step, step_estimator

GPT = {"gated": False, "vocab": 51200}
MEGATRON = {
    "22b": Architecture(
        layers=48, hidden=6144, heads=64, kv_heads=64, head_dim=96, ffn=24576, **GPT
    ),
    "175b": Architecture(
        layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128, ffn=49152, **GPT
    ),
    "530b": Architecture(
        layers=105, hidden=20480, heads=128, kv_heads=128, head_dim=160, ffn=81920, **GPT
    ),
    "1t": Architecture(
        layers=128, hidden=25600, heads=160, kv_heads=160, head_dim=160, ffn=102400, **GPT
    ),
}


# Korthikanti et al. 2022, arXiv 2205.05198, table 5: seconds of an iteration on A100 80 GB
@pytest.mark.parametrize(
    ("name", "mesh", "schedule", "batch", "microbatch", "full", "selective"),
    [
        ("22b", "tensor=8", "1f1b", 4, 4, 1.42, 1.10),
        ("175b", "stage=8,tensor=8", "interleaved:3", 64, 1, 18.13, 13.75),
        ("530b", "stage=35,tensor=8", "interleaved:3", 280, 1, 49.05, 37.83),
        ("1t", "stage=64,tensor=8", "1f1b", 512, 1, 94.42, 71.49),
    ],
)
def test_megatron_on_a100_takes_the_published_time(
    name, mesh, schedule, batch, microbatch, full, selective
):
    model = transformer_model(name, MEGATRON[name])
    for remat, sequence_parallel, measured in (
        ("full", False, full),
        ("selective", True, selective),
    ):
        workload = Workload(
            batch=batch,
            sequence=2048,
            microbatch=microbatch if microbatch < batch else None,
            remat=remat,
            flash=False,
            dropout=True,
            sequence_parallel=sequence_parallel,
        )
        step = estimate_step(
            model, mesh, hardware="a100", workload=workload, strategy="tensor", schedule=schedule
        )
        assert step.expected == pytest.approx(measured, rel=0.1)


def test_the_flops_of_a_step_are_those_of_the_model_and_what_is_recomputed():
    model = load_model("llama3-70b")
    none, full = (
        estimate_step(
            model,
            "fsdp=64",
            hardware="tpu-v5p",
            workload=Workload(batch=64, sequence=4096, remat=remat),
        )
        for remat in ("none", "full")
    )
    # Flash attention repeats the scores in its backward pass; the embedding is only looked up.
    assert none.flops == pytest.approx(none.model_flops, rel=0.02)
    # The last product of a layer, 28672 x 8192, is not repeated: its output is no operand.
    last = 2 * 64 * 4096 * 80 * 28672 * 8192
    assert (full.flops + last) / none.flops == pytest.approx(8 / 6, rel=0.02)


def test_a_pipeline_waits_less_with_more_microbatches_and_interleaving():
    model = load_model("llama3-70b")

    def estimate(n_microbatches, schedule):
        workload = Workload(batch=64, sequence=4096, microbatch=64 // n_microbatches, remat="none")
        return estimate_step(
            model,
            "stage=8,tensor=8",
            hardware="h100",
            workload=workload,
            strategy="tensor",
            schedule=schedule,
        )

    few, many = estimate(8, "1f1b"), estimate(64, "1f1b")
    assert few.bubble_seconds > 6 * many.bubble_seconds > 0
    interleaved, zero = estimate(8, "interleaved:5"), estimate(8, "zero-bubble")
    assert interleaved.bubble_seconds == pytest.approx(few.bubble_seconds / 5, rel=0.05)
    assert zero.bubble_seconds == pytest.approx(few.bubble_seconds / 3, rel=0.01)
    # interleaving sends activations between stages 5 times as often
    sent = {
        name: next(call.count for call in step.collectives if call.axes == ("stage",))
        for name, step in (("1f1b", few), ("interleaved", interleaved))
    }
    assert sent["interleaved"] == 5 * sent["1f1b"]


def test_126_layers_over_16_stages_are_eight_on_the_fullest():
    arch = load_model("llama3.1-405b").architecture
    assert (arch.layers, -(-arch.layers // 16)) == (126, 8)
    groups = stage_groups(load_model("llama3.1-405b").groups, 126, 8)
    assert {group.n_tensors for group in groups if "layers" in group.name} == {8}
    workload = Workload(batch=32, sequence=8192, microbatch=1, remat="none")
    even, uneven = (
        estimate_step(
            "llama3.1-405b",
            f"stage={n_stages},tensor=8",
            hardware="h100",
            workload=workload,
            strategy="tensor",
        )
        for n_stages in (14, 16)
    )
    # 9 layers a stage against 8: the fullest stage decides, and the longer pipeline waits longer
    # (and of 14 stages the last has the output table on top of its 9 layers)
    assert 0.8 < uneven.busy_seconds / even.busy_seconds < 1
    assert uneven.bubble_seconds > even.bubble_seconds


@pytest.mark.parametrize(
    ("schedule", "share"), [("1f1b", 7 / 32), ("interleaved:4", 7 / 128), ("zero-bubble", 7 / 96)]
)
def test_the_bubble_of_a_schedule(schedule, share):
    assert bubble_fraction(parse_schedule(schedule), 8, 32) == pytest.approx(share)


@pytest.mark.parametrize("text", ["gpipe", "interleaved:0", "interleaved:x", "1f1b:3", "", None])
def test_an_unknown_schedule_is_an_error(text):
    with pytest.raises(UnknownOption, match="Unknown pipeline schedule"):
        parse_schedule(text)


def test_a_model_without_an_architecture_cannot_be_timed():
    model = replace(load_model("llama3-8b"), architecture=None)
    with pytest.raises(InvalidModel, match="architecture of 'llama3-8b' is unknown"):
        estimate_step(model, "fsdp=2", hardware="h100", workload=Workload(batch=2, sequence=8))


def test_a_transformer_has_the_parameters_of_the_preset_with_its_sizes():
    for name in ("llama3-8b", "mixtral-8x7b", "qwen3-32b"):
        preset = load_model(name)
        built = transformer_model(name, preset.architecture)
        assert built.n_parameters == pytest.approx(preset.n_parameters, rel=1e-3)


def forward_flops(remat, framework):
    """FLOPs of the steps, in units of the forward products of one layer's gate projection."""
    options = {"hardware": "h100", "framework": framework}
    workload = Workload(batch=8, sequence=1024, remat=remat)
    return estimate_step("llama3-8b", "fsdp=8", workload=workload, **options).flops


def test_a_policy_repeats_what_it_does_not_save():
    unit = 2 * 8 * 1024 * 32 * 4096**2  # a product with 4096 x 4096 weights in all layers
    none = forward_flops("none", "xla-gpu")
    attention = forward_flops("dots", "xla-gpu") - none

    def repeated(remat, framework="xla-gpu"):
        return (forward_flops(remat, framework) - none) / unit

    # q 1, k and v 1/4 each, out 1, gate and up 3.5 each, down 3.5
    full = 1 + 0.25 + 0.25 + 1 + 3.5 + 3.5
    share = attention / unit
    assert repeated("full") == pytest.approx(full + share)
    assert repeated("full", "megatron") == pytest.approx(full + 3.5 + share)
    assert repeated("selective", "megatron") == 0
    assert repeated("selective", "torchtitan") == pytest.approx(0.25 + 1 + 3.5)  # k, out, up
    saved = "query_proj+key_proj+value_proj+context"
    assert repeated(saved) == pytest.approx(1 + 3.5 + 3.5)


def test_a_pipeline_is_timed_alike_however_its_mesh_is_written():
    workload = Workload(batch=128, sequence=8192, microbatch=2, remat="none")
    first, last = (
        estimate_step(
            "llama3-70b", mesh, hardware="h100", workload=workload, strategy="tensor+pipeline"
        ).expected
        for mesh in ("tensor=4,stage=8,data=2", "data=2,stage=8,tensor=4")
    )
    assert first == pytest.approx(last)


def test_prefill_computes_and_decoding_reads():
    options = {"hardware": "h200", "optimizer": "none", "strategy": "tensor"}
    workload = Workload(batch=8, sequence=2048)
    mesh = "data=1,tensor=4"
    prefill = estimate_prefill("llama3-70b", mesh, workload=workload, **options)
    token = estimate_step("llama3-70b", mesh, workload=workload, **options)
    assert prefill.memory_bound_seconds < 0.2 * prefill.busy_seconds
    assert token.memory_bound_seconds > 0.8 * token.busy_seconds
    # two FLOPs per parameter and token, and the attention of all prompts
    assert prefill.flops == pytest.approx(2 * 69.5e9 * 8 * 2048, rel=0.05)
    assert prefill.expected > 30 * token.expected


def test_scales_of_fp8_weights_are_no_products():
    work = step_estimator("deepseek-v3", "data=8", hardware="h100", strategy="data-parallel")[1]
    names = {product.name for product in work.products}
    assert "gate_proj" in names
    assert not {name for name in names if "scale" in name}
