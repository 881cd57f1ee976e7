"""`shardlab.peek("name", x)` inside a body: records the local value on every device."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from shardlab.simulator.interpreter.device_context import current_coordinate

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peek:
    """The value on one device at one call of `peek`.

    `step` counts the calls on that device: 0, 1, ... through a scan or over several runs.
    """

    name: str
    step: int
    coordinate: Mapping[str, int]
    value: Any


_recorded: collections.defaultdict[str, list[Peek]] = collections.defaultdict(list)
# Callbacks run in threads of the runtime.
_lock = threading.Lock()


def peek(name: str, x: T) -> T:
    """Record `x` under `name` on every device each time the program runs, and return it.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import PartitionSpec as P
    >>> from shardlab import shard_map
    >>> def body(x):
    ...     part = peek("part", x.sum())
    ...     return jax.lax.psum(part, "data")
    >>> f = shard_map(body, mesh="data=2", in_specs=P("data"), out_specs=P())
    >>> _ = jax.jit(f)(jnp.arange(4.0))
    >>> [(p.coordinate, float(p.value)) for p in peeks("part")]
    [({'data': 0}, 1.0), ({'data': 1}, 5.0)]
    >>> forget_peeks("part")
    """

    def record_value(value: Any) -> None:
        coordinate = current_coordinate()
        host_value = jax.tree.map(np.asarray, value)
        with _lock:
            step = sum(p.coordinate == coordinate for p in _recorded[name])
            _recorded[name].append(
                Peek(name=name, step=step, coordinate=dict(coordinate), value=host_value)
            )

    jax.debug.callback(record_value, x)
    return x


def peeks(name: str) -> list[Peek]:
    """Return the values recorded under `name`, ordered by step and device."""
    jax.effects_barrier()
    with _lock:
        records = list(_recorded.get(name, ()))
    return sorted(records, key=lambda p: (p.step, tuple(p.coordinate.values())))


def forget_peeks(name: str | None = None) -> None:
    """Drop the values recorded under `name`, or all of them."""
    jax.effects_barrier()
    with _lock:
        if name is None:
            _recorded.clear()
        else:
            _recorded.pop(name, None)
