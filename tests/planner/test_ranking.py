"""The order of candidates, and the words for those that lost."""

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
            hides=axis in ("data", "fsdp"),
        )
        for axis, seconds in sent.items()
    )
    return StepTime(
        flops=1.0,
        model_flops=1.0,
        compute_seconds=compute,
        peak_flops=1.0,
        exchanges=exchanges,
        reading_seconds=reading,
    )


def candidate(mesh, timed, n_bytes=10, strategy="fsdp", remat="none", **more):
    axes = tuple((name, size) for name, size in mesh.items())
    return Candidate(
        mesh=axes,
        strategy=strategy,
        remat=remat,
        n_microbatches=1,
        bytes_by_kind={"parameters": n_bytes},
        step=timed,
        **more,
    )


def words(candidates):
    return [(each.mesh_text, each.why, each.reason) for each in candidates]


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
    assert words(ranked) == [
        ("d=2", "", "compute bounds it"),
        ("c=2", "slower", "as quick as the best"),
        ("b=2", "slower", "as quick if traffic over fsdp hides, else 1.4x slower"),
        ("a=2", "slower", "1.1x slower: traffic over fsdp outlasts compute"),
        ("e=2", "slower", "1.2x slower: waits for traffic over tensor"),
        ("f=2", "slower", "1.5x slower: computes more"),
    ]


def test_traffic_that_is_waited_for_outweighs_a_lower_bound():
    # llama3-8b on 16 v5e, as measured by nobody but told by all: fsdp before tensor
    ranked, _ = rank_candidates(
        [
            candidate({"tensor": 4}, step(2.36, tensor=1.15, fsdp=1.07)),
            candidate({"fsdp": 16}, step(3.03, fsdp=0.80)),
        ]
    )
    assert [each.mesh_text for each in ranked] == ["fsdp=16", "tensor=4"]
    assert ranked[0].step.lower > ranked[1].step.lower


def test_of_as_quick_ones_the_traffic_that_hides_is_named():
    ranked, _ = rank_candidates(
        [
            candidate({"a": 2}, step(8, fsdp=1, tensor=4)),
            candidate({"b": 2}, step(8, fsdp=3, tensor=4)),
        ]
    )
    assert ranked[1].reason == "as quick if traffic over fsdp hides, else 1.2x slower"


def test_only_the_best_way_of_a_mesh_is_ranked():
    ranked, others = rank_candidates(
        [
            candidate({"a": 2}, step(8), remat="full"),
            candidate({"a": 2}, step(6), n_bytes=20),
            candidate({"a": 2}, step(6), n_bytes=30, strategy="data-parallel"),
        ]
    )
    assert [each.remat for each in ranked] == ["none"]
    assert [each.reason for each in others] == [
        "remat none fits too, and this is 1.3x slower",
        "strategy fsdp is as quick and takes less memory",
    ]
    assert all(each.step is None for each in others)


def test_losers_stand_by_kind_and_the_nearest_to_fitting_first():
    refused = [
        candidate({"a": 4}, None, 0, why="model", reason="m"),
        candidate({"b": 4}, None, 0, why="batch", reason="b"),
        candidate({"c": 4}, None, 90, why="memory", reason="90"),
        candidate({"d": 4}, None, 80, why="memory", reason="80"),
    ]
    ranked, others = rank_candidates(refused)
    assert ranked == ()
    assert [each.reason for each in others] == ["80", "90", "b", "m"]


def test_without_times_the_least_memory_is_first():
    ranked, _ = rank_candidates([candidate({"a": 2}, None, 7), candidate({"b": 2}, None, 3)])
    assert words(ranked) == [("b=2", "", ""), ("a=2", "", "")]


def test_what_bounds_a_step():
    assert bottleneck_text(step(2, tensor=3, fsdp=1)) == "waiting for traffic over tensor bounds it"
    assert bottleneck_text(step(2, tensor=1, fsdp=3)) == "traffic over fsdp bounds it"
    assert bottleneck_text(step(2, reading=3, tensor=1)) == "reading memory bounds it"
    assert bottleneck_text(step(4, reading=3, tensor=4)) == "compute bounds it"


def test_those_that_might_fit_stand_before_those_that_do_not():
    _, others = rank_candidates(
        [
            candidate({"a": 4}, None, 5, why="memory", reason="far"),
            candidate({"b": 4}, step(9), 9, why="memory", reason="slow"),
            candidate({"c": 4}, step(8), 9, why="memory", reason="quick"),
        ]
    )
    assert [each.reason for each in others] == ["quick", "slow", "far"]


def test_a_step_lasts_from_all_hidden_to_nothing_hidden():
    one = step(2.0, reading=3.0, tensor=4.0, fsdp=1.0)
    assert (one.lower, one.upper, one.busy_seconds) == (5.0, 8.0, 3.0)
    assert one.expected == 3.0 + 4.0  # what fsdp sends hides, what tensor sends does not
    assert step(2.0, tensor=4.0, fsdp=3.0).expected == 3.0 + 4.0
    assert one.by_axis() == {"tensor": 4.0, "fsdp": 1.0}
    assert one.utilisation(4.0) == 0.25
