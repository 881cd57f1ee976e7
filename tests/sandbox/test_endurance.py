"""Many submissions in a row, a third of them hostile: the short version of tools/endurance.py.

And submissions while somebody kills the judge's processes at random moments.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import are_gone, descendants

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

from endurance import FORGERIES, PROBLEM, small  # noqa: E402

from shardlab.catalogue.problem import load_problem  # noqa: E402
from shardlab.judge.judge import judge  # noqa: E402
from shardlab.sandbox.pool import open_sandbox_pool  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.fixture(scope="module")
def house():
    with open_sandbox_pool() as opened:
        yield opened


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_answer_does_not_pass(house, name):
    problem = small(load_problem(PROBLEM))
    assert not judge(house, problem, FORGERIES[name], kind="submit", seed=3).passed


def test_submissions_in_a_row_leave_nothing_and_are_judged_right():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "endurance.py", "42", "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["submissions"], report["hostile"]) == (42, 14)


class Killer:
    """Kills one of a house's processes at some moment of each judgement."""

    def __init__(self, house, seed):
        self._house, self._random = house, random.Random(seed)
        self.n_killed = 0

    def __enter__(self):
        self._timer = threading.Timer(self._random.uniform(0, 0.4), self._kill)
        self._timer.start()

    def __exit__(self, *_):
        self._timer.cancel()
        self._timer.join()

    def _kill(self):
        first = self._house.zygote_pid
        if first is None:
            return  # it is being started again
        below = descendants(first)
        servers, others = [first, *below[:1]], below[1:]
        # A new server takes a second or more to start: it is not always its turn.
        pids = servers if self._random.random() < 0.2 or not others else others
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(pids), signal.SIGKILL)
            self.n_killed += 1


def test_whoever_is_killed_at_any_moment_no_verdict_is_false():
    problem = small(load_problem(PROBLEM))
    right = problem.read_text("solution.py")
    answers = {right: {"AC", "IE"}, right.replace("lax.psum(", "lax.pmax("): {"AC", "WA", "IE"}}
    with open_sandbox_pool() as house:
        killer = Killer(house, seed=7)
        for number in range(6):
            for source, allowed in answers.items():
                with killer:
                    judgement = judge(house, problem, source, kind="submit", seed=number)
                verdicts = [v for case in judgement.cases for v in case.verdicts]
                assert {v.code for v in verdicts} <= allowed, list(map(str, verdicts))
                assert judgement.passed <= (source == right)
        assert killer.n_killed >= 4
        # When nobody kills any more, all is as before.
        judgement = judge(house, problem, right, kind="submit", seed=1)
        assert judgement.passed
        pids = [house.zygote_pid, *descendants(house.zygote_pid)]
    assert are_gone(pids)
