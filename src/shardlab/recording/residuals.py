"""Which outputs of a forward shard_map only its backward shard_map takes.

JAX passes them from one to the other as global arrays. They are no values of the person's program,
and inside the bodies they are shown where they are computed and read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr


def find_residuals(jaxpr: Any) -> set[Any]:
    """Return the variables of a program that shard_maps pass only to each other."""
    residuals: set[Any] = set()
    _add_residuals(jaxpr, [False] * len(jaxpr.outvars), residuals)
    return residuals


def _add_residuals(jaxpr: Any, is_hidden_result: Sequence[bool], residuals: set[Any]) -> None:
    visible = _visible_variables(jaxpr, is_hidden_result)
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "shard_map" and not _jax.argument_names(eqn.params["jaxpr"]):
            # A body that the person wrote has named parameters; one that JAX derived has none.
            residuals.update(var for var in eqn.outvars if var not in visible)
            continue
        body = called_jaxpr(name, eqn.params)
        if body is not None:
            inner, _ = _jax.open_jaxpr(body)
            _add_residuals(inner, [var not in visible for var in eqn.outvars], residuals)


def _visible_variables(jaxpr: Any, is_hidden_result: Sequence[bool]) -> set[Any]:
    """Return the variables that anything but a shard_map reads, or that are visible results."""
    visible = {
        var
        for var, is_hidden in zip(jaxpr.outvars, is_hidden_result, strict=True)
        if not is_hidden and not isinstance(var, _jax.Literal)
    }
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            continue
        atoms = eqn.invars
        body = called_jaxpr(eqn.primitive.name, eqn.params)
        if body is not None:
            inner, _ = _jax.open_jaxpr(body)
            # A result that is unknown here counts as visible: it may be the program's own.
            visible_inside = _visible_variables(inner, [False] * len(inner.outvars))
            atoms = [a for a, var in zip(atoms, inner.invars, strict=True) if var in visible_inside]
        visible.update(atom for atom in atoms if not isinstance(atom, _jax.Literal))
    return visible
