"""Calls that are one step of a recording: functions of JAX itself, such as `jnp.where`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES

_WORTH_A_STEP = frozenset({*COLLECTIVES, "dot_general", "shard_map", "conv_general_dilated"})


def is_opaque_call(eqn: Any) -> bool:
    """Return whether a call is one step: a small function of JAX, such as `jnp.where`."""
    body = called_jaxpr(eqn.primitive.name, eqn.params)
    if body is None or not _jax.is_jax_file(_jax.function_location(body)[1]):
        return False
    # A product inside (einsum) can be a partial sum, which is worth a step of its own.
    return not any(name in _WORTH_A_STEP for name in primitive_names(body))


def primitive_names(jaxpr: Any) -> Iterator[str]:
    """Yield the primitive of every equation of a jaxpr, at any depth."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        yield str(eqn.primitive.name)
        for body in _jax.inner_jaxprs(eqn.params):
            yield from primitive_names(body)
