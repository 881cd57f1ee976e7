"""The judge is timed with answers that pass on four meshes, and with nothing else."""

from __future__ import annotations

import pytest
from benchmarks.judged import MESHES, OneProcess, four_meshes, submit

from benchmarks import judging
from shardlab.judge.cases import make_cases
from shardlab.judge.worker_pool import open_worker_pool


def test_a_submission_has_one_case_on_each_of_four_meshes():
    cases = make_cases(four_meshes().parts[1], seed=1, scale=2)
    assert tuple(case.name for case in cases) == MESHES


def test_a_right_answer_passes_in_the_warm_judge():
    with open_worker_pool("C") as house:
        seconds, rate = judging._batch(lambda number: submit(house, number), 0, 2, 2)
        assert judging._memory_mb() is None or judging._memory_mb() > 20
    assert len(seconds) == 2
    assert rate > 0


def test_a_run_that_does_not_pass_is_no_figure():
    # Here there is one device, and the answer is asked to use two.
    with pytest.raises(AssertionError, match="the right answer did not pass"):
        submit(OneProcess(), 1)
