"""Programs in which the number of devices is part of the meaning: one stage or expert per device.

Such a program takes the first element of its shard (`params[0]`), because on the mesh it is written
for the shard has one. On a smaller mesh it computes something else: the other elements are not
used. That is no bug, and results on such a mesh are no reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter import shard_boundary
from shardlab.simulator.interpreter.rules.calls import called_jaxpr

# What an optimizer does with a parameter, besides the use in the model.
_UPDATE_PRIMITIVES = frozenset(
    {"add", "add_any", "sub", "mul", "div", "neg", "convert_element_type", "pvary", "pcast"}
)


def describe_partial_use(closed: Any, names: Sequence[str]) -> str:
    """Return which argument is used in part only, and on how many devices it would be in full.

    `names` are those of the program's arguments. An empty string if there is none.
    """
    inner, _ = _jax.open_jaxpr(closed)
    arguments = dict(zip(inner.invars, names, strict=False))
    for eqn, origins in _shard_maps(closed, arguments):
        mesh = eqn.params["mesh"].shape
        body, _ = _jax.open_jaxpr(eqn.params["jaxpr"])
        for number, (var, spec) in enumerate(zip(body.invars, eqn.params["in_specs"], strict=True)):
            for dim, axes in enumerate(shard_boundary.spec_entries(spec)):
                n_local = var.aval.shape[dim] if axes else 1
                if n_local > 1 and _uses_first_only(body, var, dim):
                    n_devices = math.prod(mesh[axis] for axis in axes)
                    name = origins.get(eqn.invars[number]) or f"input {number}"
                    sharded = " and ".join(map(repr, axes))
                    return (
                        f"each device has {n_local} elements of dimension {dim} of {name!r} and "
                        f"uses the first; with {n_local * n_devices} devices along {sharded} all "
                        "of them are used."
                    )
    return ""


def has_shard_map(closed: Any) -> bool:
    """Return whether a program has a shard_map at any depth."""
    return next(_shard_maps(closed, {}), None) is not None


def _shard_maps(jaxpr: Any, names: dict[Any, str]) -> Iterator[tuple[Any, dict[Any, str]]]:
    """Yield each outermost shard_map, with the names of the arguments that reach it unchanged."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        if eqn.primitive.name == "shard_map":
            yield (
                eqn,
                {
                    atom: names[atom]
                    for atom in eqn.invars
                    if not isinstance(atom, _jax.Literal) and atom in names
                },
            )
            continue
        body = called_jaxpr(eqn.primitive.name, eqn.params)
        if body is not None:
            opened, _ = _jax.open_jaxpr(body)
            operands = zip(opened.invars, eqn.invars, strict=False)
            passed = {
                var: names[atom]
                for var, atom in operands
                if not isinstance(atom, _jax.Literal) and atom in names
            }
            yield from _shard_maps(body, passed)
            continue
        for other in _jax.inner_jaxprs(eqn.params):
            yield from _shard_maps(other, {})


def _uses_first_only(jaxpr: Any, var: Any, dim: int) -> bool:
    """Return whether a model uses only the first element of a dimension.

    An optimizer in the same body adds the update to the full shard, element by element.
    """
    uses = list(_uses(jaxpr, var))
    others = [eqn for eqn in uses if not _takes_first(eqn, dim)]
    if len(others) == len(uses) or (others and not _has_gradients(jaxpr)):
        return False
    # The update leaves the body as an output; a value of the model goes on to be used.
    return all(_is_update(jaxpr, eqn) for eqn in others)


def _uses(jaxpr: Any, var: Any) -> Iterator[Any]:
    """Yield the equations that use a value, also those inside a call."""
    for eqn in jaxpr.eqns:
        for index, atom in enumerate(eqn.invars):
            if atom is not var:
                continue
            body = called_jaxpr(eqn.primitive.name, eqn.params)
            if body is None:
                yield eqn
                continue
            opened, _ = _jax.open_jaxpr(body)
            if index < len(opened.invars):
                yield from _uses(opened, opened.invars[index])


def _takes_first(eqn: Any, dim: int) -> bool:
    """Return whether an equation takes the first element of a dimension, and all of the others.

    `x[0, 0]` is one number of an array, not the parameters of a stage.
    """
    if eqn.primitive.name != "slice":
        return False
    sizes = list(eqn.invars[0].aval.shape)
    sizes[dim] = 1
    return not any(eqn.params["start_indices"]) and list(eqn.params["limit_indices"]) == sizes


def _has_gradients(jaxpr: Any) -> bool:
    return any("transpose(" in _jax.name_stack(eqn) for eqn in jaxpr.eqns)


def _is_update(jaxpr: Any, eqn: Any) -> bool:
    """Return whether everything that follows from an equation is computed element by element."""
    pending, visited = [eqn], set()
    while pending:
        eqn = pending.pop()
        if eqn.primitive.name not in _UPDATE_PRIMITIVES:
            return False
        if id(eqn) not in visited:
            visited.add(id(eqn))
            pending.extend(user for out in eqn.outvars for user in _uses(jaxpr, out))
    return True
