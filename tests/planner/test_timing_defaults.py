"""What a timed plan assumes if only model, chip, batch, sequence and mesh are known."""

from __future__ import annotations

import pytest

from shardlab.hardware.chips import parse_hardware
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture
from shardlab.planner.models.transformer import transformer_model
from shardlab.planner.timing.estimate_step import step_estimator
from shardlab.planner.timing.timing_defaults import (
    mesh_framework,
    with_timing_defaults,
)
from shardlab.sharding.mesh import parse_mesh

GPT_22B = Architecture(
    layers=48, hidden=6144, heads=64, kv_heads=64, head_dim=96, ffn=24576, vocab=51200, gated=False
)


def defaults(model, mesh, hardware, batch, sequence, strategy, **given):
    estimator, work = step_estimator(model, mesh, hardware=hardware, strategy=strategy)
    return with_timing_defaults(
        Workload(batch=batch, sequence=sequence, remat=given.pop("remat", "full")),
        estimator,
        work,
        **given,
    )


def test_the_megatron_22b_run_is_estimated_without_its_details():
    """Korthikanti et al. 2022, table 5: 1.42 s with full recomputation."""
    model = transformer_model("22b", GPT_22B)
    estimator, work = step_estimator(model, "tensor=8", hardware="a100", strategy="tensor")
    workload = with_timing_defaults(Workload(batch=4, sequence=2048), estimator, work)
    assert (workload.remat, workload.flash, workload.dropout) == ("full", False, True)
    step = estimator.estimate(GPT_22B, work, workload)[0]
    assert step.expected == pytest.approx(1.42, rel=0.1)


@pytest.mark.parametrize(
    ("hardware", "mesh", "architecture", "framework"),
    [
        ("a100", "data=2,tensor=4", GPT_22B, "megatron-2022"),
        ("h100", "data=2,tensor=4", GPT_22B, "megatron"),
        ("a100", "fsdp=8", GPT_22B, "torchtitan"),
        ("a100", "dp_shard=8", None, "torchtitan"),
        ("a100", "data=2,tensor=4", None, "megatron"),
        ("tpu-v5p", "fsdp=8", GPT_22B, "maxtext"),
    ],
)
def test_the_framework_follows_from_chip_mesh_and_model(hardware, mesh, architecture, framework):
    assumed = mesh_framework(parse_hardware(hardware), parse_mesh(mesh), architecture)
    assert assumed.name == framework


def test_long_sequences_that_do_not_fit_are_recomputed_in_full():
    short = defaults("llama3-8b", "fsdp=8", "h100", 16, 8192, "fsdp")
    long = defaults("llama3-8b", "fsdp=2,context=4", "h100", 2, 131072, "fsdp")
    assert (short.remat, short.microbatch) == ("selective", None)
    assert (long.remat, long.microbatch) == ("full", None)


def test_a_batch_that_does_not_fit_is_divided_into_microbatches():
    large = defaults("llama3-8b", "fsdp=8", "h100", 512, 8192, "fsdp")
    assert large.remat == "selective"
    assert large.n_microbatches > 4


def test_given_remat_stays_and_tpus_do_not_accumulate():
    given = defaults(
        "llama3-8b", "fsdp=8", "h100", 512, 8192, "fsdp", remat="none", is_remat_given=True
    )
    assert given.remat == "none"
    tpu = defaults("llama3-70b", "fsdp=64", "tpu-v6e", 256, 8192, "fsdp")
    assert (tpu.remat, tpu.n_microbatches) == ("full", 1)


def test_pytorch_pipelines_run_1f1b_and_megatron_interleaves():
    pytorch = defaults("llama3.1-405b", "stage=8,fsdp=8,tensor=8", "h100", 64, 8192, "fsdp+tensor")
    megatron = defaults("llama3-70b", "data=2,stage=8,tensor=4", "h100", 128, 8192, "tensor+zero1")
    assert str(pytorch.schedule) == "1f1b"
    assert str(megatron.schedule) == "interleaved"


def test_of_the_defaults_one_that_fits_a_device_is_preferred():
    """By the error of estimates alone the whole batch might have run: 90.4 GB on an 80 GB H100."""
    arguments = ("llama3-70b", "fsdp=64,tensor=8", "h100", 1024, 8192, "fsdp+tensor")
    might_fit = defaults(*arguments)
    fits = defaults(*arguments, usable_bytes=72_000_000_000)
    assert (might_fit.remat, fits.remat) == ("selective", "selective")
    assert fits.microbatch < might_fit.microbatch
    planned = plan(
        "llama3-70b", "fsdp=64,tensor=8", strategy="fsdp+tensor", hardware="h100",
        optimizer="adamw", workload=fits, framework="torchtitan",
    )  # fmt: skip
    assert planned.bytes_per_device <= 72_000_000_000
    assert any("(remat selective)" in item.name for item in planned.items)
    # Nothing fits 2 GB: then what might have run, as without a limit.
    assert defaults(*arguments, usable_bytes=2_000_000_000) == might_fit
