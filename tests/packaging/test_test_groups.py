"""`make test` runs tests that share a fixture of their module in one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parent.parent / "conftest.py"
SAMPLE = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def pids():
    return pathlib.Path(__file__).with_name("pids.txt")

@pytest.mark.parametrize("number", range(12))
def test_process(pids, number):
    with pids.open("a") as file:
        print(os.getpid(), file=file)
"""


def test_tests_that_share_a_fixture_of_their_module_run_in_one_process(tmp_path):
    """pytest 9.2 changed how it stores the name of a test, which pytest-xdist 3.8 does not know:
    each worker then starts its own servers and devices, and nothing says so."""
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    options = ["-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(CONFTEST.parent)}  # helpers of the conftest
    command = [sys.executable, "-m", "pytest", *options]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    pids = (tmp_path / "pids.txt").read_text().split()
    assert len(pids) == 12
    assert len(set(pids)) == 1
