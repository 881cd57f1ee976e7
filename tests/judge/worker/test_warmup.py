"""The warm-up of the fork server leaves one thread and no backend; devices start after the fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_WARM_UP = """
import json, os, sys
from shardlab.judge.worker.warmup import warm_up
from shardlab._jax.fork_warmup import has_backend
warm_up()
loaded = [name for name in ("flax.nnx", "scipy.linalg") if name in sys.modules]
n_threads = len(os.listdir("/proc/self/task"))
before = has_backend()
pid = os.fork()
if pid == 0:
    import jax
    os._exit(len(jax.devices()))
n_devices = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps([loaded, n_threads, before, n_devices, has_backend()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_the_warm_up_leaves_one_thread_and_no_backend():
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _WARM_UP], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    loaded, n_threads, before, n_devices, after = json.loads(done.stdout)
    assert loaded == ["flax.nnx", "scipy.linalg"]
    assert (n_threads, before) == (1, False)
    assert (n_devices, after) == (8, False)
