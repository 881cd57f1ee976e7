"""Writes the scaled-down program for one device and for the mesh, as jax.export serialises it.

A program with narrow floats is exported in float32. Rounding to bfloat16 moves a parameter by more
than most gradients do, so in bfloat16 a train step whose gradient is wrong would still agree. The
widened program has the same operations, shardings and constraints, and next to no rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import NamedSharding

from shardlab._jax import eval_jaxpr
from shardlab._jax.wide_floats import is_narrow, widen_jaxpr
from shardlab.analysis.lineage import trace_lineages
from shardlab.autoshard.proof.device_messages import (
    ONE_DEVICE_FILE,
    SHARDED_FILE,
    DeviceRunRequest,
)
from shardlab.autoshard.proof.flat_program import FlatProgram, jit_with_state
from shardlab.autoshard.proof.scaled_program import ScaledProgram, partition_spec
from shardlab.errors import Unsupported
from shardlab.sharding.mesh import MeshSizes
from shardlab.sharding.spec import Spec
from shardlab.simulator.retarget import retarget_programs

_WIDE_EPS = float(jnp.finfo(jnp.float32).eps)


def write_programs(
    program: FlatProgram, scaled: ScaledProgram, specs: Sequence[Spec], folder: Path
) -> bool:
    """Write both programs and the request; return whether narrow floats run as float32."""
    eps = tuple(lineage.eps for lineage in trace_lineages(scaled.staged.jaxpr))
    exporter = _Exporter(program=program, scaled=scaled, specs=tuple(specs), folder=folder)
    is_widened = max(eps, default=0.0) > _WIDE_EPS
    if is_widened:
        try:
            exporter.write(is_widened=True)
        except Unsupported:  # it depends on how its floats are stored: a bitcast, a Ref
            is_widened = False
    if not is_widened:
        exporter.write(is_widened=False)
    DeviceRunRequest(
        mesh=scaled.mesh,
        enable_x64=bool(jax.config.jax_enable_x64),
        eps=tuple(min(value, _WIDE_EPS) for value in eps) if is_widened else eps,
        argument_files=tuple(exporter.write_arguments(is_widened)),
    ).write(folder)
    return is_widened


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Exporter:
    program: FlatProgram
    scaled: ScaledProgram
    specs: tuple[Spec, ...]
    folder: Path

    def write(self, *, is_widened: bool) -> None:
        one_device = tuple((name, 1) for name, _ in self.scaled.mesh)
        for file, mesh in ((ONE_DEVICE_FILE, one_device), (SHARDED_FILE, self.scaled.mesh)):
            (self.folder / file).write_bytes(self._export(mesh, is_widened))

    def _export(self, mesh: MeshSizes, is_widened: bool) -> bytes:
        with retarget_programs(dict(mesh)) as target:
            shardings = [NamedSharding(target, partition_spec(spec)) for spec in self.specs]
            # A new function for each mesh: JAX caches traces by function, not by mesh.
            function = self.program.fresh_function()
            structs = [
                jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
                for aval, sharding in zip(self.scaled.avals, shardings, strict=True)
            ]
            if is_widened:
                function = _evaluate(widen_jaxpr(jax.make_jaxpr(function)(*structs)))
                structs = [_widen_struct(struct) for struct in structs]
            jitted = jit_with_state(self.program, function, shardings)
            return bytes(export.export(jitted, platforms=["cpu"])(*structs).serialize())

    def write_arguments(self, is_widened: bool) -> list[str]:
        """Write the user's own arrays; nothing for an argument that is drawn there."""
        files = []
        for index, (leaf, aval) in enumerate(
            zip(self.program.leaves, self.program.avals, strict=True)
        ):
            is_concrete = not isinstance(leaf, jax.ShapeDtypeStruct)
            is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
            if not self.scaled.has_original_shapes or not is_concrete or is_key:
                files.append("")
                continue
            files.append(f"argument-{index}")
            content = np.asarray(leaf).astype(aval.dtype)
            if is_widened and is_narrow(aval.dtype):
                content = content.astype(np.float32)
            (self.folder / files[-1]).write_bytes(content.tobytes())
        return files


def _evaluate(closed: Any) -> Callable[..., Any]:
    def evaluate(*arrays: Any) -> list[Any]:
        return eval_jaxpr(closed, arrays)

    return evaluate


def _widen_struct(struct: Any) -> Any:
    if not is_narrow(struct.dtype):
        return struct
    return jax.ShapeDtypeStruct(struct.shape, jnp.float32, sharding=struct.sharding)
