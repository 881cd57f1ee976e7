"""The order of candidates, and the reasons of those that lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardlab.hardware.chips import parse_hardware
from shardlab.hardware.operation_time import OperationTime
from shardlab.hardware.step_time import StepCollectiveTime, StepTime
from shardlab.planner.advice.advice import Candidate
from shardlab.planner.advice.candidate_ranking import bottleneck_text, rank_candidates
from shardlab.planner.advice.mesh_conventions import MeshConventions


def operation(name, seconds, bound):
    return OperationTime(name=name, count=1.0, seconds=seconds, flops=1.0, bound=bound)


def step(compute, reading=0.0, bubble=0.0, **sent):
    exchanges = tuple(
        StepCollectiveTime(
            what="",
            axes=(axis,),
            op="psum",
            payload_bytes=1,
            count=2,
            seconds=seconds / 2,
            network="ICI",
            formula="",
            is_overlapped=axis in ("data", "fsdp"),
        )
        for axis, seconds in sent.items()
    )
    return StepTime(
        flops=1.0,
        model_flops=1.0,
        peak_flops=1.0,
        operations=(
            operation("product", compute, "compute"),
            operation("norm", reading, "memory"),
        ),
        collectives=exchanges,
        bubble_seconds=bubble,
        error=0.25,
    )


def candidate(mesh, timed, n_bytes=10, strategy="fsdp", remat="none", **fields):
    axes = tuple((name, size) for name, size in mesh.items())
    return Candidate(
        mesh=axes,
        strategy=strategy,
        remat=remat,
        n_microbatches=1,
        bytes_by_kind={"parameters": n_bytes},
        step=timed,
        **fields,
    )


def verdicts(candidates):
    return [
        (candidate.mesh_text, candidate.loss_kind, candidate.reason) for candidate in candidates
    ]


def test_the_expected_time_ranks_then_the_communication_then_bytes():
    ranked, _ = rank_candidates(
        [
            candidate({"a": 2}, step(8, fsdp=9)),
            candidate({"b": 2}, step(8, fsdp=6)),
            candidate({"c": 2}, step(8, fsdp=2)),
            candidate({"d": 2}, step(8, fsdp=2), n_bytes=5),
            candidate({"e": 2}, step(7, tensor=3)),
            candidate({"f": 2}, step(12)),
            candidate({"g": 2}, step(8, bubble=5)),
            candidate({"h": 2}, step(8, reading=6)),
        ]
    )
    assert verdicts(ranked) == [
        ("d=2", "", "bound by compute"),
        ("c=2", "slower", "as fast as the best"),
        ("b=2", "slower", "as fast as the best"),
        ("a=2", "slower", "1.1x slower: communication over fsdp exceeds compute"),
        ("e=2", "slower", "1.2x slower: exposed communication over tensor"),
        ("f=2", "slower", "1.5x slower: more compute"),
        ("g=2", "slower", "1.6x slower: pipeline stages wait for each other"),
        ("h=2", "slower", "1.8x slower: more operations bound by memory bandwidth"),
    ]


def test_overlapped_communication_that_slows_compute_is_the_cause_and_no_pipeline():
    best, slowed = (replace(step(8, fsdp=seconds), overlap_loss=0.5) for seconds in (1, 4))
    ranked, _ = rank_candidates([candidate({"a": 2}, best), candidate({"b": 2}, slowed)])
    assert ranked[1].reason == "1.2x slower: overlapped communication over fsdp slows compute"


def test_exposed_communication_outweighs_shorter_compute():
    # llama3-8b on 16 v5e: fsdp before tensor, as the scaling book advises
    ranked, _ = rank_candidates(
        [
            candidate({"tensor": 4}, step(2.36, tensor=1.15, fsdp=1.07)),
            candidate({"fsdp": 16}, step(3.03, fsdp=0.80)),
        ]
    )
    assert [each.mesh_text for each in ranked] == ["fsdp=16", "tensor=4"]


def test_only_the_best_variant_of_a_mesh_is_ranked():
    ranked, others = rank_candidates(
        [
            candidate({"a": 2}, step(8), remat="full"),
            candidate({"a": 2}, step(6), n_bytes=20),
            candidate({"a": 2}, step(6), n_bytes=30, strategy="data-parallel"),
        ]
    )
    assert [each.remat for each in ranked] == ["none"]
    assert [each.reason for each in others] == [
        "remat none also fits, and this is 1.3x slower",
        "strategy fsdp is as fast and takes less memory",
    ]
    assert all(candidate.step is None for candidate in others)


def test_losers_are_ordered_by_kind_and_the_nearest_to_fitting_comes_first():
    losers = [
        candidate({"a": 4}, None, 0, loss_kind="model", reason="m"),
        candidate({"b": 4}, None, 0, loss_kind="batch", reason="b"),
        candidate({"c": 4}, None, 90, loss_kind="memory", reason="90"),
        candidate({"d": 4}, None, 80, loss_kind="memory", reason="80"),
    ]
    ranked, others = rank_candidates(losers)
    assert ranked == ()
    assert [each.reason for each in others] == ["80", "90", "b", "m"]


def test_without_times_the_least_memory_comes_first():
    ranked, _ = rank_candidates([candidate({"a": 2}, None, 7), candidate({"b": 2}, None, 3)])
    assert verdicts(ranked) == [("b=2", "", ""), ("a=2", "", "")]


def test_what_bounds_a_step():
    assert (
        bottleneck_text(step(2, tensor=3, fsdp=1)) == "bound by exposed communication over tensor"
    )
    assert bottleneck_text(step(2, tensor=1, fsdp=3)) == "bound by communication over fsdp"
    assert bottleneck_text(step(2, reading=3, tensor=1)) == "bound by memory bandwidth"
    assert bottleneck_text(step(4, reading=3, tensor=4)) == "bound by compute"


def test_candidates_that_might_fit_come_before_those_that_do_not():
    _, others = rank_candidates(
        [
            candidate({"a": 4}, None, 5, loss_kind="memory", reason="far"),
            candidate({"b": 4}, step(9), 9, loss_kind="memory", reason="slow"),
            candidate({"c": 4}, step(8), 9, loss_kind="memory", reason="fast"),
        ]
    )
    assert [each.reason for each in others] == ["fast", "slow", "far"]


def test_a_step_is_compute_with_what_overlaps_then_what_is_exposed_and_waited_for():
    timed = step(2.0, reading=3.0, bubble=1.0, tensor=4.0, fsdp=1.0)
    assert (timed.busy_seconds, timed.memory_bound_seconds) == (5.0, 3.0)
    assert timed.expected == 5.0 + 4.0 + 1.0  # fsdp overlaps, tensor does not
    assert (timed.lower, timed.upper) == (8.0, 12.5)  # 25 % up and down
    assert step(2.0, tensor=4.0, fsdp=3.0).expected == 3.0 + 4.0
    assert timed.by_axis() == {"tensor": 4.0, "fsdp": 1.0}
    assert timed.utilization(4.0) == 0.25


def test_overlapping_communication_slows_compute_by_a_part_of_the_shorter():
    lossy = replace(step(8.0, fsdp=4.0), overlap_loss=0.25)
    assert lossy.expected == 8.0 + 0.25 * 4.0
    assert replace(step(4.0, fsdp=8.0), overlap_loss=0.25).expected == 8.0 + 0.25 * 4.0


def test_a_step_is_the_same_after_json():
    timed = step(2.0, reading=3.0, bubble=1.0, tensor=4.0)
    assert StepTime.from_json(timed.to_json()) == timed


def test_advice_of_version_2_has_the_sum_of_its_operations():
    old = {
        "flops": 1.0,
        "model_flops": 1.0,
        "peak_flops": 2.0,
        "collectives": [],
        "compute_seconds": 3.0,
        "reading_seconds": 4.0,
        "expected": 4.0,
    }
    loaded = StepTime.from_json(old)
    assert (loaded.busy_seconds, loaded.memory_bound_seconds) == (4.0, 4.0)


def conventions(chip, n_devices):
    return MeshConventions(hardware=parse_hardware(chip), n_devices=n_devices)


@pytest.mark.parametrize(
    ("chip", "n_devices", "mesh", "objection"),
    [
        ("tpu-v5e", 1024, {"data": 4, "fsdp": 256}, ""),
        ("tpu-v5e", 1024, {"fsdp": 1024}, "fsdp gathers weights between slices"),
        ("tpu-v5e", 256, {"data": 2, "fsdp": 128}, "data and fsdp do not meet at the edge"),
        ("tpu-v5e", 256, {"fsdp": 16, "tensor": 16}, ""),  # a ring of the 16x16 slice
        ("tpu-v5e", 256, {"fsdp": 32, "tensor": 8}, "tensor is no ring of the torus"),
        ("tpu-7x", 128, {"fsdp": 64, "tensor": 2}, ""),  # the two devices of a chip
        ("h100", 64, {"data": 8, "fsdp": 8}, ""),
        ("h100", 64, {"fsdp": 64}, ""),
        ("h100", 64, {"data": 4, "tensor": 16}, "tensor spans nodes"),
    ],
)
def test_meshes_that_recipes_do_not_use_have_an_objection(chip, n_devices, mesh, objection):
    objections = conventions(chip, n_devices).objections(tuple(mesh.items()))
    assert len(objections) == bool(objection)
    assert all(text.startswith(objection) for text in objections)


def test_an_unusual_mesh_must_be_faster_by_more_than_the_error_of_a_comparison():
    usual, unusual = {"fsdp": 256}, {"data": 2, "fsdp": 128}
    for seconds, first in ((9.0, "fsdp=256"), (8.0, "data=2,fsdp=128")):
        ranked, _ = rank_candidates(
            [candidate(usual, step(10.0)), candidate(unusual, step(seconds))],
            conventions("tpu-v5e", 256),
        )
        assert ranked[0].mesh_text == first
        if first == "fsdp=256":
            assert [each.reason for each in ranked] == [
                "bound by compute; data=2,fsdp=128 is 11 % faster by estimate, but less usual",
                "11 % faster by estimate, but data and fsdp do not meet at the edge of slices",
            ]


def test_on_tpus_the_variant_with_fewest_microbatches_is_ranked():
    variants = [
        replace(candidate({"fsdp": 8}, step(6.0), remat="none"), n_microbatches=4),
        candidate({"fsdp": 8}, step(8.0), remat="full"),
    ]
    for chip, remat in (("tpu-v5p", "full"), ("h100", "none")):
        ranked, others = rank_candidates(variants, conventions(chip, 8))
        assert ranked[0].remat == remat
        if chip == "tpu-v5p":
            assert others[0].reason == (
                "remat full, microbatches 1 needs fewer microbatches; this is 33 % faster by "
                "estimate"
            )


def test_meshes_of_different_software_alternate():
    times = {"data": 8.0, "tensor": 8.5, "stage": 8.7, "fsdp": 11.0}
    ranked, _ = rank_candidates(
        (
            candidate(
                {axis: 8},
                step(seconds),
                framework="torchtitan" if axis == "fsdp" else "megatron",
            )
            for axis, seconds in times.items()
        ),
        conventions("h100", 8),
    )
    assert [each.mesh_text for each in ranked] == ["data=8", "fsdp=8", "tensor=8", "stage=8"]
    assert ranked[1].reason == "1.4x slower with torchtitan instead of megatron: more compute"
