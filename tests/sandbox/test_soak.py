"""Many submissions in a row, a third of them hostile: the short version of tools/soak.py.

And submissions while the processes of the judge are killed at random moments.
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
from process_tree import have_ended, list_descendants

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

from soak import FORGERIES, PROBLEM, reduce_problem  # noqa: E402

from shardlab.catalogue.problem import load_problem  # noqa: E402
from shardlab.judge.judge import judge  # noqa: E402
from shardlab.judge.worker_pool import open_worker_pool  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


@pytest.fixture(scope="module")
def problem():
    return reduce_problem(load_problem(PROBLEM))


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_submission_does_not_pass(pool, problem, name):
    assert not judge(pool, problem, FORGERIES[name], kind="submit", seed=3).passed


@pytest.mark.long
def test_submissions_in_a_row_leave_nothing_and_are_judged_right():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    completed = subprocess.run(
        [sys.executable, ROOT / "tools" / "soak.py", "42", "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    report = json.loads(completed.stdout)
    assert (report["submissions"], report["hostile"]) == (42, 14)


class Killer:
    """Kills one of a pool's processes at some moment of each judgement."""

    def __init__(self, pool, seed):
        self._pool, self._random = pool, random.Random(seed)
        self.n_killed = 0

    def __enter__(self):
        self._timer = threading.Timer(self._random.uniform(0, 0.4), self._kill_one)
        self._timer.start()

    def __exit__(self, *_):
        self._timer.cancel()
        self._timer.join()

    def _kill_one(self):
        zygotes = self._pool.zygote_pids
        if not zygotes:
            return  # they are being restarted
        zygote = self._random.choice(zygotes)
        descendants = list_descendants(zygote)
        servers, others = [zygote, *descendants[:1]], descendants[1:]
        # A new server takes a second or more to start, so it is killed less often.
        pids = servers if self._random.random() < 0.2 or not others else others
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(pids), signal.SIGKILL)
            self.n_killed += 1


@pytest.mark.long
def test_whichever_process_is_killed_at_any_moment_no_verdict_is_wrong(problem):
    solution = problem.read_text("solution.py")
    allowed_codes = {
        solution: {"AC", "IE"},
        solution.replace("lax.psum(", "lax.pmax("): {"AC", "WA", "IE"},
    }
    with open_worker_pool() as pool:
        killer = Killer(pool, seed=7)
        for number in range(6):
            for source, allowed in allowed_codes.items():
                with killer:
                    judgement = judge(pool, problem, source, kind="submit", seed=number)
                verdicts = [v for case in judgement.cases for v in case.verdicts]
                assert {v.code for v in verdicts} <= allowed, list(map(str, verdicts))
                assert judgement.passed <= (source == solution)
        assert killer.n_killed >= 4
        # Once nothing is killed any more, everything works as before.
        judgement = judge(pool, problem, solution, kind="submit", seed=1)
        assert judgement.passed
        pids = [pid for zygote in pool.zygote_pids for pid in (zygote, *list_descendants(zygote))]
    assert have_ended(pids)
