"""`shardlab.peek("name", x)` inside a body: the local value on every device, for later reading."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from shardlab.simulator.interpreter import device_context as whereabouts

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peek:
    """What one device held at one call of `peek`.

    `step` counts the calls on that device: 0, 1, ... through a scan or over several runs.
    """

    name: str
    step: int
    coordinate: Mapping[str, int]
    value: Any


_seen: collections.defaultdict[str, list[Peek]] = collections.defaultdict(list)
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
    """

    def record(value: Any) -> None:
        where = whereabouts.current_coordinate()
        host = jax.tree.map(_as_host, value)
        with _lock:
            step = sum(p.coordinate == where for p in _seen[name])
            _seen[name].append(Peek(name=name, step=step, coordinate=dict(where), value=host))

    jax.debug.callback(record, x)
    return x


def _as_host(value: Any) -> Any:
    return np.asarray(value)


def peeks(name: str) -> list[Peek]:
    """Return what was recorded under `name`, in the order of steps and devices."""
    jax.effects_barrier()
    with _lock:
        found = list(_seen.get(name, ()))
    return sorted(found, key=lambda p: (p.step, tuple(p.coordinate.values())))


def forget_peeks(name: str | None = None) -> None:
    """Drop what was recorded under `name`, or everything."""
    jax.effects_barrier()
    with _lock:
        if name is None:
            _seen.clear()
        else:
            _seen.pop(name, None)
