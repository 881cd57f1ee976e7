"""What an answer makes outside of any jit, where each operation runs by itself."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Literal

_JITS = ("jit", "pjit")
_PLACING = ("sharding_constraint", "shard_map")


def eager_bytes(jaxpr: Any) -> int:
    """Return the bytes of the largest array that one operation leaves whole on one device.

    An answer is traced to be judged, and its person calls it without a jit. What stands on the top
    level of the trace is then run operation by operation: from values that are nowhere yet, an
    array is made whole on the first device, however soon it is placed afterwards. A jit of the
    answer's own is one operation, and what it places is never whole.
    """
    placed = set(jaxpr.jaxpr.invars)
    largest = 0
    for eqn in jaxpr.jaxpr.eqns:
        if any(not isinstance(each, Literal) and each in placed for each in eqn.invars):
            placed.update(eqn.outvars)
            continue
        for var, is_placed in zip(eqn.outvars, _are_placed(eqn), strict=True):
            if is_placed:
                placed.add(var)
            else:
                largest = max(largest, _n_bytes(var.aval))
    return largest


def _are_placed(eqn: Any) -> list[bool]:
    """Say of each result of an operation whether it comes with a layout."""
    if eqn.primitive.name not in _JITS:
        return [eqn.primitive.name in _PLACING] * len(eqn.outvars)
    if _places(eqn.params["jaxpr"].jaxpr):
        return [True] * len(eqn.outvars)
    return [isinstance(each, jax.sharding.Sharding) for each in eqn.params["out_shardings"]]


def _places(jaxpr: Any) -> bool:
    """Say whether anything within a jit asks for a layout."""
    return any(
        eqn.primitive.name in _PLACING or (eqn.primitive.name in _JITS and any(_are_placed(eqn)))
        for eqn in jaxpr.eqns
    )


def _n_bytes(aval: Any) -> int:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return 0  # keys
    return int(aval.size) * int(aval.dtype.itemsize)
