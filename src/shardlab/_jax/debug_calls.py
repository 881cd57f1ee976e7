"""`jax.debug.print`, `callback` and `inspect_array_sharding` in a jaxpr: found, and removed.

An exported program cannot call back into Python. What these do is not part of the result, so a
program without them is the same program. What is computed for them alone is removed with them:
`jax.debug.print("{}", lax.psum(x, "data"))` must not count as a collective of the program.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Literal, jaxpr_as_fun

_PRIMITIVES = ("debug_callback", "debug_print", "inspect_sharding")
_EFFECTS = ("DebugEffect", "OrderedDebugEffect")
# What a collective has: it says which mesh axis must exist, and does nothing by itself.
_AXIS_EFFECT = "NamedAxisEffect"


def has_debug_calls(jaxpr: Any) -> bool:
    """Return whether a jaxpr prints or calls back for debugging, at any depth."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return any(
        eqn.primitive.name in _PRIMITIVES
        or any(has_debug_calls(item) for value in eqn.params.values() for item in _jaxprs(value))
        for eqn in inner.eqns
    )


def without_debug_calls(traced: Any) -> Any:
    """Return a jitted function that computes what a traced one does, and prints nothing."""
    evaluate = jaxpr_as_fun(_strip(traced.jaxpr))
    structure = jax.tree.structure(traced.out_info)

    def program(*arrays: Any) -> Any:
        return jax.tree.unflatten(structure, evaluate(*arrays))

    program.__name__ = program.__qualname__ = traced.fun_name
    return jax.jit(program)


def _jaxprs(value: Any) -> list[Any]:
    items = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in items if _is_jaxpr(item)]


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _strip(value: Any) -> Any:
    """Return a parameter of an equation, or a program, without debug calls."""
    if isinstance(value, tuple):
        items = [_strip(item) for item in value]
        # Named tuples, such as the jaxprs of a linear solve, take their fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if not _is_jaxpr(value):
        return value
    # The branches of a cond have the effects of all of them, so one may have them without a call.
    if not has_debug_calls(value) and not _is_debug_effect(value.effects):
        return value
    inner = getattr(value, "jaxpr", value)
    if inner is not value:  # a closed jaxpr of JAX 0.10
        return value.replace(jaxpr=_strip(inner))
    stripped = [_strip_equation(eqn) for eqn in value.eqns]
    eqns = _drop_equations(list(zip(value.eqns, stripped, strict=True)), value.outvars)
    return value.replace(eqns=eqns, effects=_other_effects(value.effects))


def _strip_equation(eqn: Any) -> Any:
    if eqn.primitive.name in _PRIMITIVES:
        return eqn
    return eqn.replace(
        params={key: _strip(item) for key, item in eqn.params.items()},
        effects=_other_effects(eqn.effects),
    )


def _drop_equations(pairs: list[tuple[Any, Any]], outvars: Any) -> list[Any]:
    """Return the stripped equations without debug calls and without what only they use.

    Not a general elimination of dead code: an equation whose results nothing uses, not even a
    debug call, stays. Otherwise adding a print would remove code that counts without it.
    """
    live = _variables(outvars)
    used = live.union(*(_variables(eqn.invars) for eqn, _ in pairs))
    remaining = []
    for original, stripped in reversed(pairs):
        results = _variables(original.outvars)
        if original.primitive.name in _PRIMITIVES:
            continue
        # Computed for a debug call alone; or a jit or a branch that does nothing but print.
        is_for_calls = bool(results & used) or (not results and _is_debug_effect(original.effects))
        if is_for_calls and not results & live and not _acts(stripped):
            continue
        remaining.append(stripped)
        live |= _variables(stripped.invars)
    return remaining[::-1]


def _acts(eqn: Any) -> bool:
    """Return whether an equation does more than to compute its results."""
    return any(type(effect).__name__ != _AXIS_EFFECT for effect in eqn.effects)


def _variables(atoms: Any) -> set[Any]:
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def _is_debug_effect(effects: Any) -> bool:
    return any(type(effect).__name__ in _EFFECTS for effect in effects)


def _other_effects(effects: Any) -> Any:
    return type(effects)(effect for effect in effects if not _is_debug_effect([effect]))
