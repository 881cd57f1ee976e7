"""Every attack of attacks.py, at each level, as root and as a user without rights.

One test for each level and user: the attacks share a pool, as they would on a server.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import DENIED, ENDED, HELD_AT_C, NOT_AT_C, SUCCEEDS_AT_C

HERE = Path(__file__).parent
USERS = ["root", "plain user"] if os.geteuid() == 0 else ["plain user"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="levels A and B need Linux")


def run_attacks(level, user, *, is_wrapped=False):
    """Return the report of attack_suite.py as a user at a level.

    Without bubblewrap, unless it is the subject: it would hide a fault of our own confinement.
    """
    needs_change = os.geteuid() == 0 and user == "plain user"
    wrapper = [HERE / "unprivileged_user.py"] if needs_change else []
    command = [sys.executable, *wrapper, HERE / "attack_suite.py", level]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    environment["SHARDLAB_NO_BUBBLEWRAP"] = "" if is_wrapped else "1"
    completed = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=1800, env=environment
    )
    if (
        completed.returncode
        and "PermissionError" in completed.stderr
        and "unshare" in completed.stderr
    ):
        pytest.skip("this kernel does not let root make a mount namespace for another user")
    assert completed.returncode == 0, completed.stderr[-3000:]
    report = json.loads(completed.stdout)
    if report["level"] != level:
        pytest.skip(f"this machine holds level {report['level']} for the {user}, not {level}")
    return report


def wrong_exits(report):
    return {name: kind for name, kind in report["exits"].items() if kind not in ENDED[name][1]}


def attacks_that_stop_the_judging(report):
    return [name for name, is_judging in report["is_judging"].items() if not is_judging]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("level", ["A", pytest.param("B", marks=pytest.mark.long)])
def test_no_attack_succeeds_and_the_next_submission_is_judged(level, user):
    check_report(run_attacks(level, user))


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize("user", USERS)
def test_no_attack_succeeds_inside_bubblewrap_either(user):
    check_report(run_attacks("A", user, is_wrapped=True))


def check_report(report):
    assert report["succeeded"] == [], report["output"]
    assert wrong_exits(report) == {}
    assert set(report["exits"]) == set(ENDED)
    assert attacks_that_stop_the_judging(report) == []
    assert report["remaining_files"] == ["link", "practice.db", "socket"]


@pytest.mark.long
def test_without_confinement_the_attacks_succeed():
    """The proof that the test above can fail; limits and time-outs hold even so."""
    report = run_attacks("C", USERS[0])
    succeeded = set(report["succeeded"])
    assert succeeded >= SUCCEEDS_AT_C
    assert not succeeded & HELD_AT_C
    assert wrong_exits(report) == {}
    assert attacks_that_stop_the_judging(report) == []


def test_the_lists_name_attacks_that_exist():
    assert set(DENIED) >= SUCCEEDS_AT_C | HELD_AT_C
    assert {*DENIED, *ENDED} >= NOT_AT_C
