"""Runs the jits of simulated mode: the program of the whole mesh as one on the one real device.

JAX traces, checks and lowers a jit for its virtual devices. Only compiling and running are
replaced: the jaxpr is compiled for the real device, its shard_maps interpreted (`evaluate.py`).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, Sharding

from shardlab import _jax
from shardlab._jax import device_hooks, partitioner
from shardlab._jax.pending_deadlock import raise_pending_deadlock
from shardlab._jax.refs import DischargedProgram, discharge_refs
from shardlab.simulator.hosts.global_arrays import (
    delete_donated,
    meet_for_program,
    owners_of_devices,
)
from shardlab.simulator.hosts.world import this_host
from shardlab.simulator.interpreter.device_context import DeviceOwners, use_owners
from shardlab.simulator.interpreter.program import evaluate_program, split_global_array
from shardlab.simulator.interpreter.replicas import name_outputs
from shardlab.simulator.interpreter.rules.callbacks import CALLBACKS
from shardlab.simulator.interpreter.unreduced import unreduced_axes
from shardlab.simulator.run_statistics import RUN_STATISTICS
from shardlab.simulator.virtual_devices.array_labels import (
    attach_partial_sums,
    attach_sharding,
    attached_partial_sums,
    attached_sharding,
    is_unreduced,
    sharding_of,
)
from shardlab.simulator.virtual_devices.compiled_program import CompiledOnRequest

# Compiled programs by jaxpr, weakly: they go when JAX drops the jaxpr from its caches.
_programs: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
_PROGRAM = "_shardlab_program"

# Called with the arguments and parameters of every jit that the mode lowers (`script_programs.py`).
program_observers: list[Callable[[Any, dict[str, Any]], None]] = []
# Called with the jaxpr and the arrays of every call of a jit.
call_observers: list[Callable[[Any, Any], None]] = []
# Called with the jaxpr and the results of every call of a jit.
result_observers: list[Callable[[Any, Any], None]] = []
# Called with the jaxpr of every jit that the mode compiles, and what stands for its executable.
executable_observers: list[Callable[[Any, CompiledOnRequest], None]] = []


def lower_simulated(args: Any, **params: Any) -> Any:
    """Lower a jit as JAX does, and attach its jaxpr to the result."""
    for observe in program_observers:
        observe(args, params)
    name_outputs(params["jaxpr"])
    original = partitioner.lower_for_devices(args, **params)
    # JAX caches `original` weakly by the jaxpr. A reference from it to the jaxpr would keep both
    # alive forever, so the jaxpr is attached to a copy.
    computation = copy.copy(original)
    program = discharge_refs(
        params["jaxpr"],
        params["donated_invars"],
        keep_unused=params["keep_unused"],
        has_refs=original.compile_args["mut"] is not None,
    )
    computation.__dict__[_PROGRAM] = original, program
    return computation


def compile_simulated(computation: Any, *args: Any, **kwargs: Any) -> Any:
    """Return an executable that computes on the one real device."""
    original, program = computation.__dict__[_PROGRAM]
    devices = partitioner.compile_devices(original, kwargs.get("device_assignment"))
    placement = partitioner.find_placement(original, devices)
    n_consts = len(computation.const_args)

    def run_executable(*args: Any) -> list[Any]:
        # The consts that lowering hoisted into arguments are part of the jaxpr here.
        return _run_program(computation._name, program, args[n_consts:], placement)

    executable = CompiledOnRequest(original, len(devices))
    for observe in executable_observers:
        observe(program.jaxpr, executable)
    return partitioner.make_executable(original, placement, run_executable, executable)


def _run_program(name: str, program: DischargedProgram, args: Any, placement: Any) -> list[Any]:
    jaxpr, arrays = program.jaxpr, program.array_arguments(args)
    for observe in call_observers:
        observe(jaxpr, arrays)
    for array in arrays:
        device_hooks.check_argument(array)
    in_shardings = tuple(attached_sharding(array) for array in arrays)
    originals, owners = arrays, None
    if len(placement.hosts) > 1 and this_host() in placement.hosts:
        arrays = meet_for_program(name, jaxpr, arrays, placement)
        owners = owners_of_devices(name, placement)
    with device_hooks.use_real_jax(), raise_pending_deadlock():
        compiled = _compiled_program(jaxpr, program.donated, owners)
        outs, partial_sums = compiled(*map(_to_traced_dtype, arrays, jaxpr.in_avals))
        # Now, not when the user reads the result: a callback may raise a deadlock.
        jax.block_until_ready(outs)
    for array, is_donated in zip(originals, program.donated, strict=False):
        if is_donated:
            delete_donated(array)
    device_hooks.check_nans(name, outs)
    is_repeated = placement.is_repeated_call(in_shardings)
    for out, sharding in zip(outs, placement.outs, strict=True):
        is_key_label = is_repeated and isinstance(sharding, NamedSharding)
        target = getattr(out, "_base_array", out) if is_key_label else out
        attach_sharding(target, sharding, committed=placement.committed)
    for out, terms, aval in zip(outs, partial_sums, jaxpr.out_avals, strict=True):
        if terms is None and is_unreduced(sharding_of(out)):  # by out_shardings
            with device_hooks.use_real_jax():
                terms = split_global_array(out, aval, attached_sharding(out))
        attach_partial_sums(out, terms)
    for buffer, index in program.update_refs(args, outs):
        attach_sharding(buffer, placement.outs[index])
    for observe in result_observers:
        observe(jaxpr, outs)
    return program.original_results(outs)


_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


def _to_traced_dtype(arg: Any, aval: Any) -> Any:
    """Give Python and NumPy numbers the dtype that the program was traced with.

    An unreduced array goes in as its partial sums.
    """
    terms = attached_partial_sums(arg)
    if terms is not None and unreduced_axes(aval):
        return terms
    if not isinstance(arg, _NUMBERS) or not hasattr(aval, "dtype") or aval.weak_type:
        return arg
    return np.asarray(arg, aval.dtype)


def _compiled_program(jaxpr: Any, donated: tuple[bool, ...], owners: DeviceOwners | None) -> Any:
    cache = _programs.setdefault(jaxpr, {})
    # With the hosts of its devices: which of them calls back is part of the compiled program.
    key = donated, owners and owners.hosts
    if key not in cache:
        # Once per program, not per call: a training loop counts its shard_maps once.
        RUN_STATISTICS.add_program(jaxpr)
        # A strong reference would keep the jaxpr, the weak key of this entry, alive forever.
        jaxpr_reference = weakref.ref(jaxpr)

        def program(*args: Any) -> tuple[list[Any], list[Any]]:
            jaxpr: Any = jaxpr_reference()
            if not needs_rewriting(jaxpr) and not (owners and _has_callbacks(jaxpr)):
                outs = _jax.eval_jaxpr(jaxpr, args)
                return outs, [None] * len(outs)
            with use_owners(owners):
                return evaluate_program(jaxpr, args)

        program.__name__ = "simulated"
        donate_argnums = tuple(i for i, is_donated in enumerate(donated) if is_donated)
        cache[key] = jax.jit(program, donate_argnums=donate_argnums)
    return cache[key]


def _has_callbacks(jaxpr: Any) -> bool:
    inner, _ = _jax.open_jaxpr(jaxpr)
    return any(
        eqn.primitive.name in CALLBACKS or any(map(_has_callbacks, _jax.inner_jaxprs(eqn.params)))
        for eqn in inner.eqns
    )


def needs_rewriting(jaxpr: Any) -> bool:
    """Return whether a program mentions a mesh or a device anywhere.

    Most eager operations do not, and are evaluated as they are.
    """
    inner, _ = _jax.open_jaxpr(jaxpr)
    if any(_is_explicit(var.aval) for var in (*inner.invars, *inner.outvars)):
        return True
    return any(_mentions_devices(eqn) for eqn in inner.eqns)


def _mentions_devices(eqn: Any) -> bool:
    if eqn.primitive.name in ("device_put", "inspect_sharding") or any(
        map(_is_placement, eqn.params.values())
    ):
        return True
    if any(_is_explicit(var.aval) for var in eqn.outvars):
        return True
    return any(needs_rewriting(body) for body in _jax.inner_jaxprs(eqn.params))


def _is_placement(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_placement, value))
    if isinstance(value, (Mesh, AbstractMesh)):
        return not value.empty
    return isinstance(value, Sharding)


def _is_explicit(aval: Any) -> bool:
    """Return whether a type carries a sharding that operations on it check (Explicit axes)."""
    return _jax.has_sharding(aval) and aval.sharding.mesh._any_axis_explicit
