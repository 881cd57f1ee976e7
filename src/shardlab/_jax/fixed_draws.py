"""A program with a constant in place of every random number.

Devices with keys of their own draw other numbers than one device does, so results differ by design.
With constants what is left must agree: the sums, the means and the gradients around a dropout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax._src import core  # ShapedArray, the type of the constant

from shardlab import _jax
from shardlab.errors import Unsupported

_SHARE = 0.3  # of the range: no special value of any distribution, and dropout keeps everything


def fix_draws(jaxpr: Any) -> Any:
    """Return an open or closed jaxpr in which all random bits are the same constant.

    Raises `Unsupported` for random numbers in a while loop: it may wait for another number.
    """
    inner, _ = _jax.open_jaxpr(jaxpr)
    new = inner.replace(eqns=[_fix_equation(eqn) for eqn in inner.eqns])
    return new if inner is jaxpr else jaxpr.replace(jaxpr=new)


def _fix_equation(eqn: Any) -> Any:
    if eqn.primitive.name == "random_bits":
        aval = eqn.outvars[0].aval
        bits = np.asarray(_SHARE * (np.iinfo(aval.dtype).max + 1.0), aval.dtype)
        return eqn.replace(
            primitive=lax.broadcast_in_dim_p,
            invars=[_jax.Literal(bits, core.ShapedArray((), aval.dtype))],
            params={"shape": aval.shape, "broadcast_dimensions": (), "sharding": None},
        )
    if eqn.primitive.name == "while" and any(map(_draws, _jax.inner_jaxprs(eqn.params))):
        raise Unsupported(
            "The program draws random numbers in a while loop.",
            where="the loop",
            fix="draw them before the loop, or use a scan.",
        )
    return eqn.replace(params={key: _fix_parameter(value) for key, value in eqn.params.items()})


def _fix_parameter(value: Any) -> Any:
    if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
        return fix_draws(value)
    if type(value) in (tuple, list):
        return type(value)(_fix_parameter(item) for item in value)
    return value


def _draws(jaxpr: Any) -> bool:
    inner, _ = _jax.open_jaxpr(jaxpr)
    return any(
        eqn.primitive.name == "random_bits" or any(map(_draws, _jax.inner_jaxprs(eqn.params)))
        for eqn in inner.eqns
    )
