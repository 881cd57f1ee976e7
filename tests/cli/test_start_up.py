"""Start-up: `shardlab layout` takes at most a quarter of the processor time of `import jax`."""

from __future__ import annotations

import resource
import subprocess
import sys


def processor_seconds(*args):
    """Return the processor time of a command, which does not depend on other processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_layout_from_the_shell_takes_a_quarter_of_importing_jax():
    command = ("-m", "shardlab", "layout", "4096x16384:bf16", "--spec", "None,model")
    layout_seconds, jax_seconds = [], []
    for _ in range(5):  # the best of each: caches may be cold
        layout_seconds.append(processor_seconds(*command, "--mesh", "data=2,model=4"))
        jax_seconds.append(processor_seconds("-c", "import jax"))
    assert min(layout_seconds) <= min(jax_seconds) / 4
