"""The time of a step: the scaling book's examples for training.

JAX scaling book, training.md and applied-training.md at 0819a7d (2025-02-18), with its notation: B
tokens, D hidden, F feed-forward, N chips, X-way FSDP, Y-way tensor parallelism, alpha = C / W.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from hardware.peak_hardware import peak_hardware
from shardlab.hardware.chips import parse_hardware
from shardlab.hardware.step_timer import StepCollective, StepTimer

# The book has no latency in these formulas.
V5P = parse_hardware(peak_hardware("tpu-v5p"), {"hop_latency": 1e-30})
ANY_SIDE = replace(V5P, longest_side=None)  # "using the optical switches to reconfigure"
ALPHA = 4.59e14 / 1.8e11
D = 8192


def forward(n_tokens, x, y, f):
    """Steps 1, 2, 4 and 6 of the book's algorithm for FSDP and tensor parallelism, in bf16."""
    collectives = []
    if x > 1:
        collectives.append(
            StepCollective(
                what="W_in, W_out",
                axes=("fsdp",),
                op="all_gather",
                payload_bytes=2 * D * f // (x * y),
                count=2,
            )
        )
    if y > 1:
        array = 2 * n_tokens * D // x
        collectives.append(
            StepCollective(
                what="In", axes=("tensor",), op="all_gather", payload_bytes=array // y, count=1
            )
        )
        collectives.append(
            StepCollective(
                what="Out", axes=("tensor",), op="psum_scatter", payload_bytes=array, count=1
            )
        )
    return collectives


def communication(n_tokens, x, y, f, chip=ANY_SIDE):
    mesh = tuple((name, size) for name, size in (("fsdp", x), ("tensor", y)) if size > 1)
    return sum(
        collective.total_seconds
        for collective in StepTimer(hardware=chip).fastest_placement(
            mesh, forward(n_tokens, x, y, f)
        )[1]
    )


def compute_seconds(flops, n, efficiency):
    return flops / (n * efficiency * V5P.figure("bf16_flops").value)


def arithmetic(n_tokens, n, f):
    return compute_seconds(4 * n_tokens * D * f, n, 1.0)


@pytest.mark.parametrize(("n_axes", "tokens"), [(1, 2550), (2, 1275), (3, 850)])
def test_fsdp_is_bound_by_communication_below_2550_tokens_over_n_axes(n_axes, tokens):
    chip = replace(ANY_SIDE, torus_axes=n_axes)
    sent = communication(1, 4**3, 1, 32768, chip)
    computed = arithmetic(4**3, 4**3, 32768)  # one token a chip
    assert sent / computed == pytest.approx(tokens, rel=0.001)


def test_tensor_parallelism_is_bound_by_communication_beyond_f_over_2550():
    f = 28672
    # The same at any batch: Y > F / 2550, 11 for LLaMA-3 70B; "8 way, but not 16".
    for y, is_bound in ((8, False), (16, True)):
        mesh = (("idle", 8), ("other", 8), ("tensor", y))  # a slice large enough for rings
        times = StepTimer(hardware=ANY_SIDE).fastest_placement(mesh, forward(10**6, 1, y, f))[1]
        sent, computed = (
            sum(collective.total_seconds for collective in times),
            arithmetic(10**6, y, f),
        )
        assert (sent > computed) == is_bound
        assert sent / computed == pytest.approx(y * ALPHA / f, rel=0.001)


def test_the_best_mix_for_64_chips_is_16_by_4():
    # "N = 64, B = 48,000, F = 32,768 gives X = 13.9. So we would choose X to be 16 and Y to be 4"
    assert sqrt(48_000 / 32_768 * 2 * 64) == pytest.approx(13.7, abs=0.2)
    mixes = [(2**power, 64 >> power) for power in range(1, 6)]
    # 8 x 8 with two torus axes for the activations sends as much.
    least = min(communication(48_000, *mix, 32_768) for mix in mixes)
    assert communication(48_000, 16, 4, 32_768) == pytest.approx(least)
    assert communication(48_000, 32, 2, 32_768) > 1.2 * least


def test_llama_70b_on_a_pod_of_8960_is_best_with_4_way_tensor_parallelism():
    # X_opt = sqrt(2 B N / F) = 1618, "2048-way FSDP and 4-way model parallelism"
    batch, f = 4 * 1024 * 1024, 28672
    assert sqrt(2 * batch * 8960 / f) == pytest.approx(1618, rel=0.001)
    best = min((1, 2, 4, 8, 16), key=lambda y: communication(batch, 8960 // y, y, f))
    assert best == 4


def test_llama_70b_with_4m_tokens_on_a_pod_is_bound_with_fsdp_alone_and_hardly_with_the_mix():
    batch, f = 4 * 1024 * 1024, 28672
    assert batch // 8960 == 468  # below 850, above 2 x 2550^2 / F = 453
    computed = arithmetic(batch, 8960, f)
    assert communication(batch, 8960, 1, f) / computed == pytest.approx(850 / 468, rel=0.01)
    assert 0.95 < communication(batch, 2240, 4, f) / computed < 1.1


def test_on_16x16x16_every_scheme_is_bound_below_a_batch_of_1_6_million():
    f = 4 * 8192
    threshold = 4096 * 2 * ALPHA**2 / f
    assert threshold == pytest.approx(1.6e6, rel=0.02)
    mixes = [(2**power, 4096 >> power) for power in range(1, 13)]
    for batch, is_bound in ((threshold * 0.9, True), (threshold * 1.15, False)):
        least = min(communication(int(batch), *mix, f) for mix in mixes)
        assert (least > arithmetic(batch, 4096, f)) == is_bound


@pytest.mark.parametrize(("batch", "is_pure"), [(3 * 10**6, False), (10**7, True)])
def test_on_16x16x16_pure_fsdp_is_best_from_6_million_tokens_on(batch, is_pure):
    f = 4 * 8192
    mixes = [(2**power, 4096 >> power) for power in range(1, 13)]
    best = min(mixes, key=lambda mix: communication(batch, *mix, f))
    assert (best == (4096, 1)) == is_pure
    if not is_pure:
        # The book's "8-long axis for model sharding" rounds sqrt(2 B N / F) = 866, which leaves 4.7
        # chips for the tensor axis: 4 and 8 are nearly as good.
        assert best[1] in (4, 8)
        shortest = communication(batch, *best, f)
        assert communication(batch, 512, 8, f) < 1.1 * shortest


def test_llama_70b_takes_44_days_on_a_pod_at_40_percent():
    seconds = compute_seconds(6.3e24, 8960, 0.4)
    assert seconds == pytest.approx(3.8e6, rel=0.01)
    assert round(seconds / 86400) == 44
    assert compute_seconds(6.3e24, 1, 1.0) / (365.25 * 86400) == pytest.approx(435, rel=0.01)


def test_llama_70b_takes_17_days_on_18823_chips_at_50_percent():
    assert round(compute_seconds(6.3e24, 18_823, 0.5) / 86400) == 17


def test_data_parallelism_over_dcn_needs_75_000_tokens_per_pod():
    # "C / W_DCN = 3.8e18 / 5e13 = 76,000": gradients of a layer summed against its backward pass.
    pods, per_pod = 16, 8960
    all_reduce = StepCollective(
        what="gradients",
        axes=("data",),
        op="psum",
        payload_bytes=2 * 2 * D * 32768 // per_pod,
        count=1,
    )
    time = StepTimer(hardware=V5P).fastest_placement(
        (("data", pods), ("fsdp", per_pod)), [all_reduce]
    )[1][0]
    assert time.network == "DCN"
    backward = compute_seconds(8 * D * 32768, per_pod, 1.0)  # of one token in a pod
    # the book leaves out (m-1)/m of m pods
    assert time.seconds * pods / (pods - 1) / backward == pytest.approx(75_000, rel=0.03)


def test_an_efficiency_slows_the_network_alone():
    collective = StepCollective(
        what="", axes=("fsdp",), op="all_gather", payload_bytes=2**26, count=3
    )
    full, half = (
        StepTimer(hardware=V5P, efficiency=efficiency).fastest_placement(
            (("fsdp", 64),), [collective]
        )[1][0]
        for efficiency in (1.0, 0.5)
    )
    assert half.total_seconds == pytest.approx(2 * full.total_seconds)
    assert full.total_seconds == pytest.approx(3 * full.seconds)
