"""Runs what the user named, as one process of a launch or in the simulation of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from shardlab.analysis.run_arguments import fill_arguments
from shardlab.cluster.messages import LaunchJob
from shardlab.errors import InvalidSize
from shardlab.execution.load_target import find_function, load_arguments, load_target_module
from shardlab.execution.messages import Job
from shardlab.sharding.mesh import parse_mesh
from shardlab.simulator.program_exit import ProgramExit
from shardlab.simulator.script_runner import execute_as_main
from shardlab.tracing.stage import as_function_of_arrays, parse_shape_argument, staging_mesh


def run_target(job: LaunchJob) -> None:
    """Run a script to its end, or call a function `job.steps` times on the devices of JAX."""
    if job.target.kind != "script":
        _call_function(job)
        return
    program_exit = ProgramExit()
    with program_exit.collect_callbacks():
        try:
            execute_as_main(job.target.location, job.args)
        except SystemExit as end:
            if end.code:
                raise
        program_exit.join_threads()
        jax.effects_barrier()
        program_exit.call_callbacks()


def _call_function(job: LaunchJob) -> None:
    request = loading_job(job)
    module = load_target_module(job.target)
    function = find_function(module, request)
    specified = load_arguments(function, module, request)
    mesh = None if job.mesh is None else device_mesh(job)
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        call = _Call(function, specified, mesh)
        for _ in range(job.steps):
            call.run()
        jax.effects_barrier()


def loading_job(job: LaunchJob) -> Job:
    """Return the request that loads the function and its arguments."""
    meshes = () if job.mesh is None else (job.mesh,)
    return Job(
        command="launch",
        target=job.target,
        args=job.args if job.target.kind != "script" else (),
        args_from=job.args_from,
        meshes=meshes,
    )


def device_mesh(job: LaunchJob) -> Mesh:
    """Return the mesh of the command over the devices of all processes, in the order of JAX."""
    sizes = parse_mesh(str(job.mesh)).shape
    devices = jax.devices()
    if math.prod(sizes.values()) != len(devices):
        raise InvalidSize(
            f"The mesh {job.mesh} has {math.prod(sizes.values())} devices; this launch has "
            f"{len(devices)}.",
            where=job.command_line,
            fix="give a mesh of all devices: processes times devices of each "
            "(--on local:4 --devices-per-process 2 has 8).",
        )
    shape = tuple(sizes.values())
    types = (AxisType.Auto,) * len(sizes)
    return Mesh(np.array(devices).reshape(shape), tuple(sizes), axis_types=types)


class _Call:
    """A function with arguments that are made again if it donates them."""

    def __init__(self, function: Callable[..., Any], specified: Any, mesh: Mesh | None) -> None:
        self._specified, self._mesh = specified, mesh
        args, keywords = staging_mesh(function, specified, mesh)
        filled = self._fill(args)
        self._jit, self._arrays = as_function_of_arrays(function, filled, keywords)
        self._refill: Callable[[], list[Any]] = lambda: as_function_of_arrays(
            function, self._fill(args), keywords
        )[1]

    def run(self) -> None:
        leaves = jax.tree.leaves(self._arrays)
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves):
            self._arrays = self._refill()
        jax.block_until_ready(self._jit(*self._arrays))

    def _fill(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with values; a shape gets the same random ones in every process."""
        leaves, tree = jax.tree.flatten(args, is_leaf=lambda leaf: isinstance(leaf, str))
        filled = [self._fill_leaf(leaf, seed) for seed, leaf in enumerate(leaves)]
        return tuple(jax.tree.unflatten(tree, filled))

    def _fill_leaf(self, leaf: Any, seed: int) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf  # on the devices of all processes already
        shape = parse_shape_argument(leaf)
        array = fill_arguments((leaf,), seed)[0]
        sharding = getattr(shape, "sharding", None)
        if not isinstance(sharding, NamedSharding) or not isinstance(shape, jax.ShapeDtypeStruct):
            return array
        # `f32[8,4]@data,None` names axes of the mesh of the command.
        mesh = self._mesh if self._mesh is not None else sharding.mesh
        return jax.device_put(array, NamedSharding(mesh, sharding.spec))
