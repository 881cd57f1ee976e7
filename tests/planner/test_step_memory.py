"""Peak memory of a step: one model for plan and advise, compared with XLA's buffer assignments."""

from __future__ import annotations

import pytest

import shardlab
from shardlab.planner.memory.workload import Workload

CHIPS = {"tpu-v5p": 16, "h100": 16}


@pytest.mark.parametrize("hardware", CHIPS)
@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_plan_and_advise_count_the_same_bytes_on_every_mesh(hardware, model):
    options = {"optimizer": "adamw", "policy": "f32,gradients=f32,master=none"}
    advice = shardlab.advise(
        model,
        hardware,
        CHIPS[hardware],
        batch=32,
        sequence=8192,
        pipeline=False,
        remat="dots",
        zero=1,
        **options,
    )
    candidates = [candidate for candidate in (*advice.ranked, *advice.others) if candidate.strategy]
    assert len(candidates) >= 10
    for candidate in candidates:
        workload = Workload(
            batch=32,
            sequence=8192,
            remat=candidate.remat,
            microbatch=32 // candidate.n_microbatches if candidate.n_microbatches > 1 else None,
        )
        plan = shardlab.plan(
            model,
            candidate.mesh_text,
            strategy=candidate.strategy,
            hardware=hardware,
            workload=workload,
            **options,
        )
        assert plan.bytes_per_device == candidate.bytes_per_device, candidate.mesh_text
        assert plan.fits == (candidate.loss_kind != "memory"), candidate.mesh_text


def peak(**changes):
    options = {"batch": 16, "sequence": 4096} | changes
    return shardlab.plan(
        "llama3-8b",
        "fsdp=8",
        strategy="fsdp",
        optimizer="adamw",
        policy="f32,gradients=f32,master=none",
        workload=Workload(**options),
    )


def test_the_peak_at_the_loss_is_the_one_that_xla_allocates():
    # benchmarks/data/tpu_memory.json: 23,565,878,784 bytes on v5p, fsdp=8, remat full
    assert peak().bytes_per_device == pytest.approx(23_565_878_784, rel=0.01)
    # saving queries, keys and values adds exactly these tensors: 26,787,317,312 bytes there
    saved = peak(remat="query_proj+key_proj+value_proj").bytes_per_device - peak().bytes_per_device
    assert saved == 32 * 8192 * (4096 + 2 * 1024) * 2


def test_chunks_of_the_loss_move_the_peak_to_the_backward_pass():
    unchunked, chunked = peak(), peak(loss_chunks=8)
    assert [item.name for item in unchunked.items][-1] == "at the loss: logits"
    assert [item.name for item in chunked.items][-1] == "in the backward pass: one layer"
    assert chunked.bytes_per_device < unchunked.bytes_per_device


def test_offloaded_activations_are_not_on_the_device():
    inputs = 32 * 8192 * 4096 * 2
    offloaded = peak(offload="decoder_layer_input")
    assert peak().bytes_per_device - offloaded.bytes_per_device == inputs
    assert "on the host: decoder_layer_input" in offloaded.items[1].formula


def test_offloaded_optimizer_states_return_for_the_update():
    # With many tokens the loss needs more than the update, and the states are not there.
    on_device, offloaded = peak(batch=32), peak(batch=32, offload_optimizer=True)
    states = on_device.bytes_of("optimizer") - 4  # without the counter
    assert on_device.bytes_per_device - offloaded.bytes_per_device == states
    # With few, the update is the peak: parameters, gradients and states.
    small = peak(batch=8, sequence=128, offload_optimizer=True)
    needed = sum(on_device.bytes_of(kind) for kind in ("parameters", "gradients", "optimizer"))
    assert small.bytes_per_device == needed


@pytest.mark.parametrize(("framework", "larger"), [("torchtitan", True), ("maxtext", False)])
def test_pytorch_holds_more_of_the_logits_than_xla(framework, larger):
    def plan_with(framework):
        return shardlab.plan(
            "llama3-8b",
            "fsdp=16",
            strategy="fsdp",
            optimizer="adamw",
            framework=framework,
            workload=Workload(batch=32, sequence=8192),
        ).bytes_per_device

    assert (plan_with(framework) > plan_with(None)) == larger


def test_selective_remat_of_torchtitan_saves_what_its_time_assumes():
    # The published peak is 77.0 GiB (benchmarks/data/gpu_memory.json, tt-8b-fsdp8).
    options = {"strategy": "fsdp", "optimizer": "adamw", "hardware": "h100-96gb"}
    plans = [
        shardlab.plan(
            "llama3-8b",
            "fsdp=8",
            workload=Workload(batch=16, sequence=8192, remat=remat),
            policy="f32,gradients=f32,master=none",
            **options,
        )
        for remat in ("selective", "query_proj+value_proj+mlpwi_0+context")
    ]
    assert plans[0].bytes_per_device == plans[1].bytes_per_device
    assert abs(plans[0].bytes_per_device / (77.0 * 2**30) - 1) < 0.1
