"""The order of candidates, and the reasons of those that lost."""

from __future__ import annotations

from shardlab.hardware.step_time import StepCollectiveTime, StepTime
from shardlab.planner.advice.advice import Candidate
from shardlab.planner.advice.candidate_ranking import bottleneck_text, rank_candidates


def step(compute, reading=0.0, **sent):
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
        compute_seconds=compute,
        peak_flops=1.0,
        collectives=exchanges,
        reading_seconds=reading,
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


def test_the_expected_time_ranks_then_the_upper_bound_then_bytes():
    ranked, _ = rank_candidates(
        [
            candidate({"a": 2}, step(8, fsdp=9)),
            candidate({"b": 2}, step(8, fsdp=6)),
            candidate({"c": 2}, step(8, fsdp=2)),
            candidate({"d": 2}, step(8, fsdp=2), n_bytes=5),
            candidate({"e": 2}, step(7, tensor=3)),
            candidate({"f": 2}, step(12)),
        ]
    )
    assert verdicts(ranked) == [
        ("d=2", "", "bound by compute"),
        ("c=2", "slower", "as fast as the best"),
        (
            "b=2",
            "slower",
            "as fast if communication over fsdp overlaps with compute, else 1.4x slower",
        ),
        ("a=2", "slower", "1.1x slower: communication over fsdp exceeds compute"),
        ("e=2", "slower", "1.2x slower: exposed communication over tensor"),
        ("f=2", "slower", "1.5x slower: more compute"),
    ]


def test_exposed_communication_outweighs_a_lower_bound():
    # llama3-8b on 16 v5e: fsdp before tensor, as the scaling book advises
    ranked, _ = rank_candidates(
        [
            candidate({"tensor": 4}, step(2.36, tensor=1.15, fsdp=1.07)),
            candidate({"fsdp": 16}, step(3.03, fsdp=0.80)),
        ]
    )
    assert [each.mesh_text for each in ranked] == ["fsdp=16", "tensor=4"]
    assert ranked[0].step.lower > ranked[1].step.lower


def test_of_equally_fast_ones_the_overlapped_communication_is_named():
    ranked, _ = rank_candidates(
        [
            candidate({"a": 2}, step(8, fsdp=1, tensor=4)),
            candidate({"b": 2}, step(8, fsdp=3, tensor=4)),
        ]
    )
    assert ranked[1].reason == (
        "as fast if communication over fsdp overlaps with compute, else 1.2x slower"
    )


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


def test_the_range_of_a_step_is_from_full_to_no_overlap():
    decoding = step(2.0, reading=3.0, tensor=4.0, fsdp=1.0)
    assert (decoding.lower, decoding.upper, decoding.busy_seconds) == (5.0, 8.0, 3.0)
    assert decoding.expected == 3.0 + 4.0  # fsdp overlaps, tensor does not
    assert step(2.0, tensor=4.0, fsdp=3.0).expected == 3.0 + 4.0
    assert decoding.by_axis() == {"tensor": 4.0, "fsdp": 1.0}
    assert decoding.utilization(4.0) == 0.25
