"""Idle and busy processes are told apart without a clock: by what Linux counts for each thread."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardlab.cluster.activity import ActivitySample, is_active, process_state, sample_activity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def sample(seconds, on_processor, waiting=0.0, waits=0):
    return ActivitySample(seconds, on_processor, {7: waiting}, waits)


def test_a_process_on_a_processor_is_active():
    assert is_active(sample(0, 0), sample(1, 0.5), with_waits=False)
    assert not is_active(sample(0, 0), sample(1, 0.001), with_waits=False)


def test_a_process_that_waits_for_a_processor_is_active():
    # As on a machine with many more processes than processors.
    assert is_active(sample(0, 0), sample(1, 0.0, waiting=0.9), with_waits=False)


def test_answers_to_heartbeats_on_a_loaded_machine_are_no_activity():
    assert not is_active(sample(0, 0), sample(1, 0.002, waiting=0.1), with_waits=False)


def test_a_main_thread_that_waits_again_and_again_is_active_in_host_code():
    assert is_active(sample(0, 0, waits=3), sample(1, 0, waits=4), with_waits=True)
    assert not is_active(sample(0, 0, waits=3), sample(1, 0, waits=4), with_waits=False)


def test_a_blocked_process_is_idle_and_a_computing_one_is_not():
    code = "import sys; print(flush=True); {}"
    with (
        subprocess.Popen(
            [sys.executable, "-c", code.format("sys.stdin.read()")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as blocked,
        subprocess.Popen(
            [sys.executable, "-c", code.format("\nwhile True: pass")], stdout=subprocess.PIPE
        ) as busy,
    ):  # fmt: skip
        blocked.stdout.readline()
        busy.stdout.readline()
        while process_state(blocked.pid) != "S":
            pass
        before = [sample_activity(process.pid) for process in (blocked, busy)]
        # Until the busy one had a processor at all.
        while not is_active(before[1], sample_activity(busy.pid), with_waits=False):
            pass
        after = sample_activity(blocked.pid)
        assert after.on_processor == before[0].on_processor
        assert not is_active(before[0], after, with_waits=True)
        busy.kill()
        blocked.kill()
