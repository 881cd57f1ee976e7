"""Every attack of attacks.py, at each level, as root and as a user without rights.

One test for each level and user: the attacks share a house, as they would on a server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import ENDED, HELD_AT_C, NOT_AT_C, REFUSED, SUCCEEDS_AT_C

HERE = Path(__file__).parent
USERS = ["root", "plain user"] if os.geteuid() == 0 else ["plain user"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="levels A and B need Linux")


def attacked(level, user):
    """Return what suite.py found as a user at a level."""
    becomes = [HERE / "plain_user.py"] if os.geteuid() == 0 and user == "plain user" else []
    command = [sys.executable, *becomes, HERE / "suite.py", level]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=240, env=environment
    )
    if done.returncode and "PermissionError" in done.stderr and "unshare" in done.stderr:
        pytest.skip("this kernel does not let root make a view for another user")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    if result["level"] != level:
        pytest.skip(f"this machine holds level {result['level']} for the {user}, not {level}")
    return result


def wrong_endings(result):
    return {name: why for name, why in result["endings"].items() if why not in ENDED[name][1]}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("level", ["A", "B"])
def test_no_attack_succeeds_and_the_next_answer_is_judged(level, user):
    result = attacked(level, user)
    assert result["succeeded"] == [], result["output"]
    assert wrong_endings(result) == {}
    assert set(result["endings"]) == set(ENDED)
    assert [name for name, is_well in result["normal"].items() if not is_well] == []
    assert result["left"] == ["link", "practice.db", "socket"]


def test_without_confinement_the_attacks_succeed():
    """The proof that the test above can fail; limits and time-outs hold even so."""
    result = attacked("C", USERS[0])
    succeeded = set(result["succeeded"])
    assert succeeded >= SUCCEEDS_AT_C
    assert not succeeded & HELD_AT_C
    assert wrong_endings(result) == {}
    assert [name for name, is_well in result["normal"].items() if not is_well] == []


def test_the_lists_name_attacks_that_there_are():
    assert set(REFUSED) >= SUCCEEDS_AT_C | HELD_AT_C
    assert {*REFUSED, *ENDED} >= NOT_AT_C
