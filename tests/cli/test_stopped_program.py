"""SIGTERM ends a program by an exception, also if it arrives where Python ignores exceptions."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import functools, gc, os, signal, sys, time
from shardlab.execution import worker

signal.signal(signal.SIGTERM, worker._stop)
sys.unraisablehook = functools.partial(worker._deliver_again, sys.unraisablehook)

def stop_in_collection(phase, info):
    gc.callbacks.remove(stop_in_collection)
    os.kill(os.getpid(), signal.SIGTERM)

gc.callbacks.append(stop_in_collection)
try:
    gc.collect()
    time.sleep(600)
finally:
    print("cleaned up", flush=True)
"""


def test_a_stop_during_a_garbage_collection_is_quiet_and_runs_finally_blocks():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.endswith("cleaned up\n")
    assert done.stderr.strip() == "stopped"
