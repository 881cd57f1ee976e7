"""The judge is timed only with submissions that pass on four meshes."""

from __future__ import annotations

import pytest
from benchmarks.judge_submission import (
    MESHES,
    InProcessPool,
    judge_correct_submission,
    problem_on_four_meshes,
)

from benchmarks import judge_throughput
from shardlab.judge.cases import make_cases
from shardlab.judge.worker_pool import open_worker_pool


def test_a_submission_has_one_case_on_each_of_four_meshes():
    cases = make_cases(problem_on_four_meshes().parts[1], seed=1, scale=2)
    assert tuple(case.name for case in cases) == MESHES


def test_a_correct_submission_passes_in_the_warm_judge():
    with open_worker_pool("C") as pool:
        seconds, rate = judge_throughput._time_batch(
            lambda number: judge_correct_submission(pool, number), 0, 2, 2
        )
        memory_mb = judge_throughput._children_memory_mb()
        assert memory_mb is None or memory_mb > 20
    assert len(seconds) == 2
    assert rate > 0


def test_a_submission_that_does_not_pass_is_not_timed():
    # The test process has one device, and the second mesh needs two.
    with pytest.raises(AssertionError, match="the correct submission did not pass"):
        judge_correct_submission(InProcessPool(), 1)
