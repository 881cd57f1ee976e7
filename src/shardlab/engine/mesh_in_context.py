"""`with mesh_in_context("data=8") as mesh:` simulated mode, with this mesh in context.

Unlike `retargeted` it leaves the meshes alone that a program makes itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from shardlab.engine.simulated import simulated
from shardlab.engine.virtual import virtual_mesh


@contextlib.contextmanager
def mesh_in_context(mesh: Any) -> Iterator[Mesh]:
    """Yield a `jax.sharding.Mesh` of virtual devices; the machine has as many."""
    target = virtual_mesh(mesh)
    with simulated(target.size), jax.set_mesh(target):
        yield target
