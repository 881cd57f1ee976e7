"""What every worker would do first, done once in the fork server: imports, and one program.

No backend is started here, and no thread: a fork copies neither.
"""

from __future__ import annotations

import contextlib
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardlab._jax.exported_program import read_contents
from shardlab._jax.fork_warmup import export_once, find_plugins, share_context, warmup_mesh
from shardlab.judge.worker.tracing import check_traced

# JAX, or a submission, imports these only when they are used.
_LAZY_MODULES = (
    "flax.nnx",
    "jax.experimental.mesh_utils",
    "ml_dtypes",
    "optax",
    "scipy.linalg.cython_blas",
    "scipy.linalg.cython_lapack",
)


def warm_up() -> None:
    """Import what submissions use, and take a typical program through every step."""
    for name in _LAZY_MODULES:
        with contextlib.suppress(ImportError):  # most come with flax, not always all
            import_module(name)
    warm_up_program()


def warm_up_program() -> None:
    """Take a typical program through every step but running it."""
    # JAX looks for plugins at the first use of a backend: a walk over all installed packages.
    find_plugins()
    share_context()
    mesh = warmup_mesh(2, "data")
    spec = PartitionSpec("data")

    def normalize_rows(x: jax.Array) -> jax.Array:
        total = jax.lax.psum(jnp.sum(x * 2.0 + 1.0, axis=0), "data")
        return jnp.exp(x - jnp.max(x)) @ jnp.ones((3, 3), x.dtype) / total

    def program(x: jax.Array) -> jax.Array:
        mapped = jax.shard_map(normalize_rows, mesh=mesh, in_specs=spec, out_specs=spec)
        y = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))
        return mapped(y)

    shape = jax.ShapeDtypeStruct((4, 3), np.float32, sharding=NamedSharding(mesh, spec))
    check_traced("program", jax.jit(program).trace(shape), [shape])
    read_contents(export_once(program, [shape]))
