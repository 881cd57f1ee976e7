"""Optimizers: which arrays each keeps beside a parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardlab.errors import UnknownChoice
from shardlab.layouts.cuts import nearest_name
from shardlab.layouts.dtype import Dtype, parse_dtype

_F32 = parse_dtype("f32")


@dataclass(frozen=True)
class State:
    """An array that an optimizer keeps for a parameter; `kept` are the parameter's array axes."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Policy:
    """The dtypes of training: None leaves a parameter its own, gradients the parameter's."""

    parameters: Dtype | None = None
    gradients: Dtype | None = None
    moments: Dtype = _F32
    master: Dtype = _F32


States = Callable[[tuple[int, ...], Dtype, Policy], tuple[State, ...]]


def optimizer_states(name: str) -> States:
    """Return what tells the states of a parameter by its shape and dtype."""
    if name not in _OPTIMIZERS:
        near = nearest_name(name, _OPTIMIZERS)
        raise UnknownChoice(
            f"There is no optimizer {name!r:.80}; there is {', '.join(_OPTIMIZERS)}.",
            fix=f"{near!r}, the nearest name." if near else "one of these.",
        )
    return _OPTIMIZERS[name]


def _like(name: str, shape: tuple[int, ...], dtype: Dtype) -> State:
    return State(name, shape, dtype, tuple(range(len(shape))))


def _adam(shape: tuple[int, ...], dtype: Dtype, policy: Policy) -> tuple[State, ...]:
    return _like("mu", shape, policy.moments), _like("nu", shape, policy.moments)


def _adamw(shape: tuple[int, ...], dtype: Dtype, policy: Policy) -> tuple[State, ...]:
    """With a master copy where the parameter itself has fewer bits."""
    moments = _adam(shape, dtype, policy)
    if dtype.bits >= policy.master.bits:
        return moments
    return (_like("master", shape, policy.master), *moments)


def _sgd(shape: tuple[int, ...], dtype: Dtype, policy: Policy) -> tuple[State, ...]:
    return ()


_OPTIMIZERS: dict[str, States] = {"none": _sgd, "sgd": _sgd, "adam": _adam, "adamw": _adamw}
