"""A program with float32 in place of every narrower float type.

Rounding to bfloat16 changes a result by about as much as many bugs do. The same program in float32
has the same bugs and next to no rounding, so its results can be compared closely.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core  # ShapedArray and Var, of which a jaxpr is made

from shardlab import _jax
from shardlab.errors import Unsupported

_WIDE = np.dtype(np.float32)


def is_narrow(dtype: Any) -> bool:
    """Return whether a dtype is a float type with fewer digits than float32.

    >>> is_narrow(jnp.bfloat16), is_narrow(jnp.float32), is_narrow(jnp.int8)
    (True, False, False)
    """
    if _jax.is_extended(dtype) or not jnp.issubdtype(dtype, jnp.floating):
        return False
    return bool(jnp.finfo(dtype).nmant < jnp.finfo(_WIDE).nmant)


def widen_array(array: Any) -> Any:
    """Return an array of a narrow float type as float32, any other as it is."""
    if not is_narrow(array.dtype):
        return array
    with _jax.no_mesh():
        return jnp.asarray(array, _WIDE)


def widen_jaxpr(jaxpr: Any) -> Any:
    """Return an open or closed jaxpr in which every narrow float type is float32.

    Raises `Unsupported` if the program depends on how its floats are stored (a bitcast, a Ref).
    """
    return _Widening().jaxpr(jaxpr)


class _Widening:
    """Rewrites jaxprs; one that occurs twice is rewritten once, so that it is compiled once."""

    def __init__(self) -> None:
        # The original is stored too: it must live as long as its id is used as a key.
        self._jaxprs: dict[int, tuple[Any, Any]] = {}
        self._vars: dict[Any, Any] = {}

    def jaxpr(self, jaxpr: Any) -> Any:
        if id(jaxpr) not in self._jaxprs:
            self._jaxprs[id(jaxpr)] = jaxpr, self._rewrite(jaxpr)
        return self._jaxprs[id(jaxpr)][1]

    def _rewrite(self, jaxpr: Any) -> Any:
        inner, consts = _jax.open_jaxpr(jaxpr)
        fields = {
            "constvars": [self._atom(var) for var in inner.constvars],
            "invars": [self._atom(var) for var in inner.invars],
            "outvars": [self._atom(atom) for atom in inner.outvars],
            "eqns": [self._equation(eqn) for eqn in inner.eqns],
            "debug_info": inner.debug_info,
        }
        wide_consts = [widen_array(x) if hasattr(x, "dtype") else x for x in consts]
        # JAX 0.12 has one class for open and closed jaxprs; 0.10 wraps the open one.
        if inner is jaxpr:
            has_consts = hasattr(inner, "consts")
            return inner.replace(**fields, **({"consts": wide_consts} if has_consts else {}))
        return jaxpr.replace(jaxpr=inner.replace(**fields), consts=wide_consts)

    def _equation(self, eqn: Any) -> Any:
        name, params = eqn.primitive.name, eqn.params
        types = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
        if any(is_narrow(getattr(aval, "dtype", np.dtype(bool))) for aval in types):
            if name == "bitcast_convert_type":
                raise _depends_on_storage("a bitcast of a narrow float")
            if name == "reduce_precision":
                # remat rounds what it saves to the type that it has.
                params = params | {"exponent_bits": 8, "mantissa_bits": 23}
        return eqn.replace(
            invars=[self._atom(atom) for atom in eqn.invars],
            outvars=[self._atom(var) for var in eqn.outvars],
            params={key: self._parameter(value) for key, value in params.items()},
        )

    def _parameter(self, value: Any) -> Any:
        if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
            return self.jaxpr(value)
        if isinstance(value, np.dtype):
            return _WIDE if is_narrow(value) else value
        if isinstance(value, core.ShapedArray):
            return _widen_type(value)
        if type(value) in (tuple, list):
            return type(value)(self._parameter(item) for item in value)
        return value

    def _atom(self, atom: Any) -> Any:
        aval = _widen_type(atom.aval)
        if aval is atom.aval:
            return atom
        if isinstance(atom, _jax.Literal):
            return _jax.Literal(np.asarray(atom.val, _WIDE), aval)
        if atom not in self._vars:
            # A DropVar is a Var of its own class, which says that nobody reads the result.
            self._vars[atom] = type(atom)(aval)
        return self._vars[atom]


def _widen_type(aval: Any) -> Any:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not is_narrow(dtype):
        return aval
    if not isinstance(aval, core.ShapedArray):
        raise _depends_on_storage(f"a {type(aval).__name__} of a narrow float type")
    return aval.update(dtype=_WIDE)


def _depends_on_storage(construct: str) -> Unsupported:
    return Unsupported(
        f"The program has {construct}, so it cannot be computed in float32.",
        where=f"JAX {jax.__version__}",
        fix="compare it in float32 yourself, or leave that part out.",
    )
