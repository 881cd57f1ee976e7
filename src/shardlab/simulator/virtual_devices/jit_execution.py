"""Runs the jits of simulated mode: the whole mesh's program as one program on the one real device.

JAX traces, checks and lowers a jit for its virtual devices; only compiling and running are ours.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, Sharding

from shardlab import _jax
from shardlab._jax import device_hooks as seams
from shardlab._jax import partitioner
from shardlab._jax.pending_deadlock import raise_pending_deadlock
from shardlab.errors import NotMeasured, Unsupported
from shardlab.simulator.interpreter import evaluate as simulate
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.run_statistics import RUN_STATISTICS
from shardlab.simulator.virtual_devices import array_labels as labels

# Compiled programs by jaxpr, so that they go when JAX forgets the jaxpr.
_programs: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
_PROGRAM = "_shardlab_program"

# Each is shown every jit that the mode lowers: its arguments and its parameters (`script.py`).
watchers: list[Callable[[Any, dict[str, Any]], None]] = []


def lower(args: Any, **params: Any) -> Any:
    """Lower a jit as JAX does, and remember which program it was."""
    for watch in watchers:
        watch(args, params)
    # JAX keeps the lowered program by its jaxpr, weakly. A copy may hold the jaxpr in return.
    original = partitioner.lower(args, **params)
    if original.compile_args["mut"] is not None:
        raise Unsupported(
            "A program that changes a Ref (jax.new_ref) in place is not simulated.",
            where=f"jit({params['name']})",
            fix="pass the array and return the new one, with donate_argnums to save memory.",
        )
    computation = copy.copy(original)
    computation.__dict__[_PROGRAM] = original, params["jaxpr"], params["donated_invars"]
    return computation


def compile(computation: Any, *args: Any, **kwargs: Any) -> Any:
    """Return an executable that computes on the one real device."""
    original, jaxpr, donated = computation.__dict__[_PROGRAM]
    placement = partitioner.placement_of(original)
    n_consts = len(computation.const_args)

    def run(*args: Any) -> list[Any]:
        return _run(computation._name, jaxpr, donated, args[n_consts:], placement)

    return partitioner.executable(original, run, Unmeasured())


# What JAX calls the questions behind `Compiled.memory_analysis()` and its relatives.
_QUESTIONS = {
    "cost_analysis": "cost_analysis()",
    "get_compiled_memory_stats": "memory_analysis()",
    "get_hlo_text": "as_text()",
    "hlo_modules": "as_text()",
}


class Unmeasured:
    """What stands for XLA's executable: nothing was compiled for these devices."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotMeasured(
            "A simulated program was not compiled for its devices, so nothing is known of its "
            "cost, its memory or its compiled text.",
            where=f"{_QUESTIONS.get(name, name)} of a program compiled in simulated mode",
            fix="compile it outside of simulated mode, on real or forced host devices.",
        )


def _run(name: str, jaxpr: Any, donated: tuple[bool, ...], args: Any, placement: Any) -> list[Any]:
    with seams.real(), raise_pending_deadlock():
        outs = _program(jaxpr, donated)(*map(_as_array, args, jaxpr.in_avals))
        jax.block_until_ready(outs)
    seams.check_special(name, outs)
    for out, sharding in zip(outs, placement.outs, strict=True):
        labels.attach(out, sharding, committed=placement.committed)
    return list(outs)


_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


def _as_array(arg: Any, aval: Any) -> Any:
    """Give plain numbers the dtype that the program was traced with."""
    if not isinstance(arg, _NUMBERS) or not hasattr(aval, "dtype") or aval.weak_type:
        return arg
    return np.asarray(arg, aval.dtype)


def _program(jaxpr: Any, donated: tuple[bool, ...]) -> Any:
    cache = _programs.setdefault(jaxpr, {})
    if donated not in cache:
        RUN_STATISTICS.add_program(jaxpr)
        _refuse_inspection(jaxpr)
        # A strong reference from here would keep the jaxpr, the key of this very entry, for ever.
        weak = weakref.ref(jaxpr)

        def program(*args: Any) -> list[Any]:
            held = weak()
            if not needs_rewriting(held):
                return _jax.eval_jaxpr(held, args)
            outs = simulate.evaluate_jaxpr(MeshAxes(), held, [StackedArray(arg) for arg in args])
            return [out.array for out in outs]

        program.__name__ = "simulated"
        numbers = tuple(i for i, is_donated in enumerate(donated) if is_donated)
        cache[donated] = jax.jit(program, donate_argnums=numbers)
    return cache[donated]


def _refuse_inspection(jaxpr: Any) -> None:
    """Refuse a question to the compiler in the middle of a program: it sees one device only."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        if eqn.primitive.name == "inspect_sharding":
            raise Unsupported(
                "jax.debug.inspect_array_sharding is not simulated inside a jit.",
                where=_jax.source_line(eqn),
                fix="return the array and look at its .sharding, or call it outside of jit.",
            )
        for body in _jax.inner_jaxprs(eqn.params):
            _refuse_inspection(body)


def needs_rewriting(jaxpr: Any) -> bool:
    """Say whether a program mentions a mesh or a device anywhere."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    if any(_is_explicit(var.aval) for var in (*inner.invars, *inner.outvars)):
        return True
    return any(_mentions_devices(eqn) for eqn in inner.eqns)


def _mentions_devices(eqn: Any) -> bool:
    if eqn.primitive.name == "device_put" or any(map(_is_place, eqn.params.values())):
        return True
    if any(_is_explicit(var.aval) for var in eqn.outvars):
        return True
    return any(needs_rewriting(body) for body in _jax.inner_jaxprs(eqn.params))


def _is_place(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_place, value))
    if isinstance(value, (Mesh, AbstractMesh)):
        return not value.empty
    return isinstance(value, Sharding)


def _is_explicit(aval: Any) -> bool:
    """Say whether a type carries a sharding that operations on it would look at."""
    return _jax.has_sharding(aval) and aval.sharding.mesh._any_axis_explicit
