"""The sharded programs that a script runs, collected in simulated mode."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
def total(x):
    return jax.lax.psum(x.sum(), "data")
mapped = jax.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=P())
mapped(jnp.arange(8.0))
mapped(jnp.arange(8.0) + 1)
"""
RUN = """
import sys
from shardlab.simulator.script_programs import run_script
from shardlab.simulator.simulated_mode import simulated
with simulated(devices=4):
    script_run = run_script(sys.argv[1], [])
print([program.name for program in script_run.programs], script_run.ended)
"""


def test_an_eager_shard_map_is_listed_once_under_the_name_of_its_body(tmp_path):
    """In a process of its own: running a script replaces `__main__`."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.run(
        [sys.executable, "-c", RUN, str(script)], capture_output=True, text=True, timeout=600
    )
    assert process.stdout == "['total'] None\n", process.stderr
