"""Outputs of one shard_map that differ are one warning, with the names of the jit's outputs."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
params = {f"w{i}": jnp.ones(3) for i in range(17)}

def loss(params, x):
    return sum((x * w).sum() for w in params.values()) ** 2

def body(params, x):
    grads = jax.grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss(params, x)

step = jax.jit(jax.shard_map(
    body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False))
for _ in range(3):
    params, value = step(params, jnp.arange(24.0).reshape(8, 3))
"""


def run_script(tmp_path, source):
    """Return what `shardlab run` prints to standard error."""
    script = tmp_path / "train.py"
    script.write_text(source)
    command = [sys.executable, "-m", "shardlab", "run", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stderr


def test_one_forgotten_psum_is_one_warning_with_the_names_of_the_leaves(tmp_path):
    errors = run_script(tmp_path, SCRIPT)
    assert errors.count("ReplicasDiffer") == 1
    assert "output [0]['w0'], [0]['w1'], [0]['w10']" in errors
    assert "and 12 more of 'body'" in errors
    assert "replicated outputs that differ: 18" in errors
    assert len(errors.splitlines()) < 16


LATER = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

def body(scale, x):
    return {"total": x.sum(), "moment": scale * x.sum()}

step = jax.jit(jax.shard_map(
    body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False))
for scale in (0.0, jnp.float32(1.0)):  # another type, so the step is traced again
    step(scale, jnp.arange(8.0))
"""


def test_an_output_that_differs_in_a_later_step_is_no_second_warning(tmp_path):
    errors = run_script(tmp_path, LATER)
    assert errors.count("ReplicasDiffer") == 1
    assert "replicated outputs that differ: 2" in errors
