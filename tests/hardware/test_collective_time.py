"""Collective times: the worked examples of the JAX scaling book, and bounds for every call.

The book is jax-ml/scaling-book; sharding.md at commit 0819a7d (2025-02-18), gpus.md at 1a55377.
It rounds to two digits, so the comparisons do too.
"""

from __future__ import annotations

import json
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.peak_hardware import peak_hardware
from hardware.sample_traces import call, train_step, with_branches
from shardlab.errors import InvalidEfficiency, UnknownFigure, UnknownMeshAxis
from shardlab.hardware.chips import parse_hardware
from shardlab.hardware.estimate import Estimate
from shardlab.hardware.switched import Spans, dcn_time, spans_of, switched_time
from shardlab.hardware.torus import Side, torus_time
from shardlab.tracing.observation import Memory
from shardlab.tracing.trace import Trace
from shardlab.tracing.trace_estimate import estimate_trace

V5E = (("X", 8), ("Y", 4))
CUBE = (("X", 4), ("Y", 4), ("Z", 4))
NODE = (("X", 8),)
H100 = peak_hardware("h100")
UNIT = 256  # GPUs under one set of leaf switches


def microseconds(op, axes, shape, mesh, hardware, **options):
    trace = Trace(program="f", mesh=mesh, collectives=(call(op, axes, shape, mesh),), flops=0)
    return estimate_trace(trace, hardware, **options).calls[0].seconds * 1e6


# --- the book's TPU examples (sharding.md) ---


def test_pop_quiz_2_an_all_gather_without_wraparound():
    # AllGather_Y(bf16[2048_Y, 8192]) on v5e {X: 8, Y: 4}: 3 hops of 8.4 MB, 560 us
    assert microseconds("all_gather", "Y", (512, 8192), V5E, "tpu-v5e") == pytest.approx(560, 0.01)


def test_pop_quiz_2_a_small_one_is_bound_by_latency():
    # bf16[256_Y, 256]: 3 hops of 1 us
    assert microseconds("all_gather", "Y", (64, 256), V5E, "tpu-v5e") == pytest.approx(3)


def test_pop_quiz_2_with_a_ring_it_would_be_377_us():
    ring = torus_time("all_gather", 512 * 8192 * 2, [Side(4, True)], link=4.5e10, hop=1e-6)
    assert ring.seconds * 1e6 == pytest.approx(377, 0.015)  # from 34e6 bytes


def test_question_2_all_gather_over_one_axis_of_a_cube():
    # AllGather_X(bf16[1024_X, 4096_Y]): 2BD/Y bytes over 9e10, 23 us
    seconds = microseconds("all_gather", "X", (256, 1024), CUBE, "tpu-v4")
    assert seconds == pytest.approx(23, 0.02)


def test_question_2_all_gather_over_two_axes_has_twice_the_bandwidth():
    # AllGather_XY(bf16[1024_X, 4096_Y]): 46 us
    seconds = microseconds("all_gather", ("X", "Y"), (256, 1024), CUBE, "tpu-v4")
    assert seconds == pytest.approx(46, 0.02)


def test_question_2_an_all_reduce_is_twice_an_all_gather():
    # AllReduce_Z(bf16[1024, 4096]{U_Z}) of a full array: 4BD / W, 190 us
    seconds = microseconds("psum", "Z", (1024, 4096), CUBE, "tpu-v4")
    assert seconds == pytest.approx(190, 0.02)


def test_question_3_two_hops_of_latency():
    assert microseconds("all_gather", "X", (32,), CUBE, "tpu-v4") == pytest.approx(2)


def test_question_10_an_all_to_all_is_a_quarter_of_an_all_gather_on_a_ring():
    ring = [Side(16, True)]
    gather = torus_time("all_gather", 1 << 20, ring, link=9e10, hop=0)
    all_to_all = torus_time("all_to_all", 1 << 20, ring, link=9e10, hop=0)
    assert all_to_all.seconds == pytest.approx(gather.seconds / 4)


# --- the book's GPU examples (gpus.md), at the bandwidths of the data sheet ---


def test_quiz_2_question_3_an_all_gather_in_a_node_of_h100():
    # bf16[4096_X, 65536]: 1.04 ms
    seconds = microseconds("all_gather", "X", (512, 65536), NODE, H100)
    assert seconds == pytest.approx(1040, 0.005)


def test_pop_quiz_1_65_us():
    seconds = microseconds("all_gather", "X", (128, 16384), NODE, H100)
    assert seconds == pytest.approx(65, 0.01)


def test_pop_quiz_2_an_all_to_all_in_a_node():
    # B (N-1) / (W N^2), B all bytes of the array
    n_bytes = 8 * 1024 * 64 * 2
    seconds = microseconds("all_to_all", "X", (1024, 64), NODE, H100)
    assert seconds == pytest.approx(n_bytes * 7 / (450e9 * 64) * 1e6)


@pytest.mark.parametrize("inner", [1, 2, 8])
def test_pop_quiz_3_inner_sharding_within_a_node_does_not_help(inner):
    # AllGather_X(bf16[8192_X, 32768_Y]) over 256 GPUs, Y inside: 2DF (32-1)/(32 x 400e9)
    mesh = (("X", UNIT // inner), ("Y", inner))
    shape = (8192 * inner // UNIT, 32768 // inner)
    expected = 2 * 8192 * 32768 * 31 / (32 * 400e9) * 1e6
    assert microseconds("all_gather", "X", shape, mesh, H100) == pytest.approx(expected)


def test_pop_quiz_3_inner_sharding_across_nodes_does():
    # Y = 16: about 2DF / (Y x 50e9), exactly with (X-1)/X
    shape = (8192 * 16 // UNIT, 32768 // 16)
    seconds = microseconds("all_gather", "X", shape, (("X", 16), ("Y", 16)), H100)
    assert seconds == pytest.approx(2 * 8192 * 32768 / (16 * 50e9) * 15 / 16 * 1e6)


def test_an_all_to_all_across_nodes():
    # B (M-1) / (M^2 W_node), two nodes
    mesh = (("X", 16),)
    n_bytes = 16 * 1024 * 64 * 2
    seconds = microseconds("all_to_all", "X", (1024, 64), mesh, H100)
    assert seconds == pytest.approx(n_bytes / (4 * 400e9) * 1e6)


# --- how a group spans nodes ---


@pytest.mark.parametrize(
    ("mesh", "axes", "expected"),
    [
        ((("data", 4), ("model", 8)), ["model"], Spans(8, 1, 1)),
        ((("data", 4), ("model", 8)), ["data"], Spans(1, 4, 8)),
        ((("data", 8), ("model", 4)), ["data"], Spans(2, 4, 4)),
        ((("data", 4), ("model", 8)), ["data", "model"], Spans(8, 4, 1)),
        ((("model", 4),), ["model"], Spans(4, 1, 1)),
        ((("data", 4), ("model", 6)), ["model"], Spans(3, 2, 2)),  # 6 does not fit into 8 evenly
    ],
)
def test_groups_span_nodes_in_mesh_order(mesh, axes, expected):
    assert spans_of(mesh, axes, 8) == expected


def test_groups_of_a_large_job_do_not_straddle_racks_of_72():
    # 256 GPUs get 64 of each rack, so a group of 64 never leaves its own.
    assert spans_of((("stage", 4), ("expert", 64)), ["expert"], 72) == Spans(64, 1, 1)
    assert spans_of((("expert", 72),), ["expert"], 72) == Spans(72, 1, 1)
    assert spans_of((("data", 2), ("expert", 72)), ["expert"], 72) == Spans(72, 1, 1)


def test_groups_within_an_axis_span_fewer_nodes():
    assert spans_of((("x", 32),), ["x"], 8, 4) == Spans(4, 1, 2)
    assert spans_of((("x", 32),), ["x"], 8, 16) == Spans(8, 2, 1)
    assert spans_of((("x", 4), ("y", 8)), ["x"], 8, 2) == Spans(1, 2, 8)


def test_an_axis_named_in_dcn_is_outermost_on_gpus():
    mesh = (("model", 8), ("data", 4))
    slow = microseconds("psum", "data", (1 << 20,), mesh, "h100", dcn=("data",))
    assert slow > microseconds("psum", "data", (1 << 20,), mesh, "h100")


def test_an_axis_over_dcn_has_the_bandwidth_of_the_data_center():
    mesh = (("data", 4), ("model", 16))
    seconds = microseconds("psum", "data", (1 << 20,), mesh, "tpu-v5e", dcn="data")
    assert seconds == pytest.approx(2 * (2 << 20) * 3 / 4 / 3.125e9 * 1e6)


def test_chips_of_a_slice_share_the_data_over_dcn():
    single = dcn_time("psum", 1 << 20, 1, 4, 3e9).seconds
    assert dcn_time("psum", 1 << 20, 16, 4, 3e9).seconds == pytest.approx(single / 16)


# --- permutations ---


@pytest.mark.parametrize(
    ("pairs", "is_ring", "expected"),
    [
        ([(0, 1), (1, 2), (2, 3), (3, 0)], True, (1, 1)),
        ([(0, 1), (1, 2), (2, 3), (3, 0)], False, (1, 3)),  # 3 -> 0 goes back over each link
        ([(0, 2), (1, 3), (2, 0), (3, 1)], True, (2, 2)),
        ([(0, 3), (1, 2)], False, (2, 3)),
        ([], True, (0, 0)),
    ],
)
def test_a_permutation_is_timed_by_its_busiest_link(pairs, is_ring, expected):
    n_loads, n_hops = expected
    time = torus_time("ppermute", 1000, [Side(4, is_ring)], link=1e9, hop=1e-6, pairs=pairs)
    assert time.seconds == pytest.approx(n_loads * 1e-6 + n_hops * 1e-6)


def test_a_permutation_over_two_axes_turns_once():
    sides = [Side(4, True), Side(4, True)]
    time = torus_time("ppermute", 1000, sides, link=1e9, hop=1e-6, pairs=[(0, 5)])
    assert time.formula == "1 p / link + 2 hop (the busiest link, the longest route)"


def test_only_the_ends_of_a_node_send_out_in_a_ring_of_neighbors():
    mesh = (("X", 16),)
    shift = {"pairs": [[device, (device + 1) % 16] for device in range(16)]}
    result = call("ppermute", "X", (1 << 20,), mesh, details=shift)
    time = estimate_trace(Trace(program="f", mesh=mesh, collectives=(result,)), H100).calls[0]
    assert time.seconds == pytest.approx((2 << 20) / 400e9)


# --- the full estimate ---


def test_a_step_is_bounded_by_overlapped_and_exposed_communication():
    result = train_step().estimate("tpu-v5p")
    assert result.lower == max(result.compute_seconds, result.communication_seconds)
    assert result.upper == result.compute_seconds + result.communication_seconds
    assert result.verdict == "communication-bound, by 'model'"
    assert result.compute_seconds == pytest.approx(12e12 / 4.59e14)


def test_a_loop_multiplies_the_time():
    calls = train_step().estimate("tpu-v5p").calls
    assert calls[0].total_seconds == pytest.approx(24 * calls[0].seconds)


def test_many_flops_make_a_step_compute_bound():
    trace = Trace(
        program="f", mesh=NODE, collectives=(call("psum", "X", (8,), NODE),), flops=10**12
    )
    assert trace.estimate("h100").verdict == "compute-bound"


def test_unknown_flops_leave_communication_only():
    result = Trace(program="f", mesh=NODE, collectives=(call("psum", "X", (8,), NODE),)).estimate(
        "h100"
    )
    assert (result.compute_seconds, result.lower) == (None, result.communication_seconds)
    assert result.verdict == "communication only: FLOPs are unknown"


def test_only_the_slowest_branch_counts_and_a_while_counts_one_iteration():
    result = with_branches().estimate("h100")
    assert [call_time.is_counted for call_time in result.calls] == [False, True, True]
    assert result.communication_seconds == result.calls[1].seconds + result.calls[2].seconds
    assert "1 call is in a while loop: the time of one iteration is counted." in result.notes
    assert "Of each cond the branch that sends most is counted." in result.notes


def test_efficiency_divides_rates_and_not_latency():
    full, half = (train_step().estimate("tpu-v5p", efficiency=value) for value in (1, 0.5))
    assert half.compute_seconds == pytest.approx(2 * full.compute_seconds)
    assert half.calls[0].seconds == pytest.approx(2 * full.calls[0].seconds)
    assert half.calls[-1].formula.startswith("latency")
    assert half.calls[-1].seconds == full.calls[-1].seconds
    compute_only = train_step().estimate("tpu-v5p", compute_efficiency=0.5)
    assert compute_only.compute_seconds == half.compute_seconds
    assert compute_only.communication_seconds == full.communication_seconds


def test_the_rate_is_that_of_the_dtype():
    trace = Trace(program="f", mesh=(), collectives=(), flops=10**15)
    assert trace.estimate("h100", dtype="f8e4m3fn").compute_seconds == pytest.approx(0.5)
    assert trace.estimate("h100", dtype="f32").compute_seconds == pytest.approx(1 / 0.99)
    with pytest.raises(UnknownFigure, match="'fp8_flops' for Google TPU v5p"):
        trace.estimate("tpu-v5p", dtype="float8_e5m2")


def test_only_the_used_figures_are_listed():
    result = train_step().estimate("tpu-v5p", figures={"link_bandwidth": 1e11})
    figures = {figure.name: figure for figure in result.figures}
    assert set(figures) == {"link_bandwidth", "hop_latency", "bf16_flops"}
    assert (figures["link_bandwidth"].value, figures["link_bandwidth"].source) == (
        1e11,
        "set by the user",
    )
    assert "scaling book" in figures["bf16_flops"].source


def test_a_missing_figure_names_the_call_that_needs_it():
    with pytest.raises(UnknownFigure, match="'link_bandwidth' for AWS Trainium2") as caught:
        train_step().estimate("trainium2")
    assert caught.value.where == "hardware trainium2, needed for all_gather over 'data'"
    assert (
        Trace(program="f", mesh=NODE, collectives=(), flops=667)
        .estimate("trainium2")
        .compute_seconds
        > 0
    )


def test_a_mesh_larger_than_a_pod_is_noted():
    (note,) = train_step().estimate("tpu-v5e").notes
    assert note.startswith("512 devices do not fit in one pod of tpu-v5e, which has 256")
    assert train_step().estimate("tpu-v5e", dcn=("data",)).notes == ()


def test_a_mesh_of_more_axes_than_the_torus_is_noted():
    mesh = (("a", 2), ("b", 2), ("c", 4))
    result = Trace(program="f", mesh=mesh, collectives=(call("psum", "a", (8,), mesh),)).estimate(
        "tpu-v5e"
    )
    assert "The mesh has 3 axes, the torus 2" in result.notes[0]


def test_a_program_that_does_not_fit_is_noted():
    trace = Trace(
        program="f",
        mesh=(),
        collectives=(),
        flops=1,
        memory=Memory(
            argument_bytes=10**10, output_bytes=0, temp_bytes=10**10, alias_bytes=0, compiler="cpu"
        ),
    )
    assert trace.estimate("tpu-v5e").notes == (
        "It does not fit: one device needs 20.0 GB (reported by XLA for cpu) and has 16.0 GB.",
    )
    assert trace.estimate("tpu-v6e").notes == ()


def test_groups_within_an_axis_have_no_ring():
    mesh = (("X", 16), ("Y", 16))
    full_axis = call("psum", "X", (1 << 20,), mesh)
    part = call("psum", "X", (1 << 20,), mesh, group_size=4)
    full_time, part_time = estimate_trace(
        Trace(program="f", mesh=mesh, collectives=(full_axis, part)), "tpu-v5e"
    ).calls
    assert full_time.formula.startswith("ring")
    assert part_time.formula.startswith("line")


def test_invalid_options_are_rejected():
    with pytest.raises(UnknownMeshAxis, match="Did you mean 'data'\\?"):
        train_step().estimate("tpu-v5e", dcn=("dta",))
    for invalid in (0, -1, 1.5, "half"):
        with pytest.raises(InvalidEfficiency, match="a fraction of the peak above 0 and at most 1"):
            train_step().estimate("tpu-v5e", efficiency=invalid)


@pytest.mark.parametrize("trace", [train_step(), with_branches()], ids=["step", "branches"])
def test_an_estimate_survives_json(trace):
    result = trace.estimate("h100")
    assert Estimate.from_json(json.loads(json.dumps(result.to_json()))) == result


OPS = st.sampled_from(["psum", "all_gather", "psum_scatter", "all_to_all", "ppermute", "pmax"])


@given(op=OPS, kib=st.integers(1, 1 << 14), size=st.integers(2, 64), ring=st.booleans())
def test_no_collective_beats_its_links(op, kib, size, ring):
    """Time is at least the bytes a device sends over the links it has: two along one axis."""
    result = call(op, "X", (kib * 512,), (("X", size),))
    time = torus_time(op, result.payload_bytes, [Side(size, ring)], link=1e9, hop=0)
    assert time.seconds >= result.wire_bytes / 2e9 * 0.999


@given(op=OPS, kib=st.integers(1, 1 << 14), power=st.integers(1, 9))
def test_no_collective_beats_nvlink(op, kib, power):
    mesh = (("X", 2**power),)
    result = call(op, "X", (kib * 512,), mesh)
    chip = parse_hardware("h100")
    seconds = (
        estimate_trace(Trace(program="f", mesh=mesh, collectives=(result,)), chip).calls[0].seconds
    )
    in_node = min(8, 2**power)
    least = result.wire_bytes / 450e9 if power <= 3 else result.payload_bytes / 450e9 / in_node
    assert seconds >= least * 0.999


def test_more_nodes_never_make_an_all_gather_faster():
    times = [
        switched_time("psum", 1 << 20, Spans(8, m, 1), inside=4.5e11, egress=4e11).seconds
        for m in (1, 2, 4, 64)
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("op", ["all_gather", "psum_scatter", "psum"])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 2, 2), (4, 4), (2, 4, 8), (8, 3)])
def test_a_gather_over_lines_is_not_faster_than_the_links_into_a_corner_chip(op, sizes):
    link, payload = 9e10, 1 << 30
    lines = [Side(size, is_ring=False) for size in sizes]
    n_devices = prod(sizes)
    seconds = torus_time(op, payload, lines, link=link, hop=1e-6).seconds
    received = payload * (n_devices - 1)  # everything but its own shard
    if op != "all_gather":
        received = received / n_devices * (2 if op == "psum" else 1)
    assert seconds == pytest.approx(received / (link * len(sizes)), rel=1e-9)


def test_a_gather_over_a_ring_and_a_line_receives_over_three_links():
    sides = [Side(4, is_ring=True), Side(2, is_ring=False)]
    gather = torus_time("all_gather", 1 << 30, sides, link=9e10, hop=1e-6)
    assert gather.seconds == pytest.approx(7 * (1 << 30) / (3 * 9e10))
    assert gather.formula == (
        "ring and line: (X-1)/X V / (link x sum of 2 for a ring, 1 for a line)"
    )
