"""Runs a jit of simulated mode: the whole mesh's program as one program on the one real device."""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np

from shardlab.engine import _jax, labels, placement, simulate
from shardlab.engine._jax import seams
from shardlab.engine.spread import Axes, Spread

# Compiled programs by jaxpr, so that they go when JAX forgets the jaxpr.
_programs: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def call_jit(*args: Any, **params: Any) -> tuple[list[Any], None, None, list[Any]]:
    """Do what JAX's own call of a compiled jit does, for virtual devices.

    The three further results tell JAX that there is no executable to put on its fast path.
    """
    jaxpr = params["jaxpr"]
    in_shardings = seams.check_arguments(args, params)
    committed = any(labels.is_committed(a) for a in args if isinstance(a, seams.ArrayImpl))
    forecast = placement.outputs(jaxpr, in_shardings, params)
    with seams.real():
        outs = _program(jaxpr, params["donated_invars"])(*map(_as_array, args, jaxpr.in_avals))
    for out, sharding in zip(outs, forecast, strict=True):
        labels.attach(out, sharding, committed=committed or sharding is not None)
    return list(outs), None, None, []


def _as_array(arg: Any, aval: Any) -> Any:
    """Give plain numbers the dtype that the program was traced with."""
    if isinstance(arg, jax.Array) or not hasattr(aval, "dtype") or _jax.is_extended(aval.dtype):
        return arg
    return np.asarray(arg, aval.dtype)


def _program(jaxpr: Any, donated: tuple[bool, ...]) -> Any:
    cache = _programs.setdefault(jaxpr, {})
    if donated not in cache:
        # A strong reference from here would keep the jaxpr, the key of this very entry, for ever.
        weak = weakref.ref(jaxpr)

        def program(*args: Any) -> list[Any]:
            held = weak()
            if not needs_rewriting(held):
                return _jax.eval_jaxpr(held, args)
            outs = simulate.run(Axes(), held, [Spread(arg) for arg in args])
            return [out.array for out in outs]

        program.__name__ = "simulated"
        numbers = tuple(i for i, is_donated in enumerate(donated) if is_donated)
        cache[donated] = jax.jit(program, donate_argnums=numbers)
    return cache[donated]


_PLACED = frozenset(
    {"shard_map", "sharding_constraint", "reshard", "mesh_cast", "layout_constraint", "device_put"}
)


def needs_rewriting(jaxpr: Any) -> bool:
    """Say whether a program mentions a mesh or a device anywhere."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    if any(_jax.is_placed(var.aval) for var in (*inner.invars, *inner.outvars)):
        return True
    return any(_mentions_mesh(eqn) for eqn in inner.eqns)


def _mentions_mesh(eqn: Any) -> bool:
    if eqn.primitive.name in _PLACED:
        return True
    if any(eqn.params.get(key) is not None for key in ("sharding", "out_sharding")):
        return True
    if any(_jax.is_placed(var.aval) for var in eqn.outvars):
        return True
    return any(needs_rewriting(body) for body in _jax.inner_jaxprs(eqn.params))
