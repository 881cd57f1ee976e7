"""Optimizers: which arrays each keeps beside a parameter, and beside all of them.

>>> from shardlab.sharding.dtype import parse_dtype
>>> f32 = parse_dtype("f32")
>>> [(state.name, state.shape) for state in states_of("adafactor", (256, 512), f32, DtypePolicy())]
[('v_row', (256,)), ('v_col', (512,)), ('v', (1,))]

Shapes, dtypes and counters are those of Optax's functions of the same names, to the byte; a master
copy, which Optax leaves to others, is kept by adamw as the ZeRO paper and Megatron count it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr
from shardlab.planner.memory.dtype_policy import DtypePolicy as DtypePolicy
from shardlab.sharding.dtype import Dtype

_MIN_FACTORED = 128  # adafactor: Optax's min_dim_size_to_factor
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class State:
    """An array that an optimizer keeps for a parameter.

    `kept` are the parameter's array axes that the array's own are, so that it is cut as these are;
    None for a placeholder that has none of them.
    """

    name: str
    shape: Shape
    dtype: Dtype
    kept: tuple[int | None, ...]


Moments = Callable[[Shape], Iterator[tuple[str, tuple[int | None, ...]]]]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What an optimizer keeps: arrays of a parameter by its shape, and counters of its own."""

    name: str
    moments: Moments
    counters: tuple[tuple[str, int], ...] = ()  # name and bytes, whole on every device
    has_master: bool = False  # as it is usually counted


def parse_optimizer(name: Any) -> Optimizer:
    """Return the optimizer of a name, as `adamw`."""
    word = name.strip().lower() if isinstance(name, str) else ""
    found = _OPTIMIZERS.get(_ALIASES.get(word, word))
    if found is None:
        near = nearest_name(name, _OPTIMIZERS) if isinstance(name, str) else None
        raise UnknownOption(
            f"There is no optimizer {short_repr(name)}; there is {', '.join(_OPTIMIZERS)}.",
            fix=f"{near!r}, the nearest name." if near else "one of these.",
        )
    return found


@lru_cache(maxsize=4096)
def states_of(name: str, shape: Shape, dtype: Dtype, policy: DtypePolicy) -> tuple[State, ...]:
    """Return the arrays kept beside one parameter of that shape and dtype, a master copy first."""
    return tuple(_states(name, shape, dtype, policy))


def _states(name: str, shape: Shape, dtype: Dtype, policy: DtypePolicy) -> Iterator[State]:
    optimizer = parse_optimizer(name)
    whole = tuple(range(len(shape)))
    if policy.has_master(dtype, optimizer.has_master) and optimizer.name != "none":
        yield State(name="master", shape=shape, dtype=policy.master, kept=whole)
    for array, kept in optimizer.moments(shape):
        sizes = tuple(1 if at is None else shape[at] for at in kept)
        yield State(name=array, shape=sizes, dtype=policy.moment(dtype), kept=kept)


def _like(*names: str) -> Moments:
    """Return what keeps arrays of the parameter's own shape."""

    def moments(shape: Shape) -> Iterator[tuple[str, tuple[int | None, ...]]]:
        for name in names:
            yield name, tuple(range(len(shape)))

    return moments


def _adafactor(shape: Shape) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Rows and columns over the two largest axes where both are large enough, else all of it."""
    whole = tuple(range(len(shape)))
    by_size = sorted(whole, key=shape.__getitem__)
    if len(shape) < 2 or shape[by_size[-2]] < _MIN_FACTORED:
        yield from (("v_row", (None,)), ("v_col", (None,)), ("v", whole))
        return
    second, largest = by_size[-2:]
    yield "v_row", tuple(at for at in whole if at != largest)
    yield "v_col", tuple(at for at in whole if at != second)
    yield "v", (None,)


def _muon(shape: Shape) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """One moment of a matrix; all else has Adam's two."""
    return (_like("mu") if len(shape) == 2 else _like("mu", "nu"))(shape)


_COUNT = (("count", 4),)
_ALIASES = {"sgdm": "momentum", "sgd-momentum": "momentum", "sgd+momentum": "momentum"}
_OPTIMIZERS = {
    each.name: each
    for each in (
        Optimizer(name="none", moments=_like()),
        Optimizer(name="sgd", moments=_like()),
        Optimizer(name="momentum", moments=_like("trace")),
        Optimizer(name="adam", moments=_like("mu", "nu"), counters=_COUNT),
        Optimizer(name="adamw", moments=_like("mu", "nu"), counters=_COUNT, has_master=True),
        Optimizer(name="adafactor", moments=_adafactor, counters=_COUNT),
        Optimizer(name="lion", moments=_like("mu"), counters=_COUNT),
        Optimizer(
            name="muon",
            moments=_muon,
            counters=(("count", 4), ("ns_coeffs", 12), ("adam's count", 4)),
        ),
    )
}
