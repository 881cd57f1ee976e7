"""A hook of the interpreter: an observer sees every equation of a program that runs step by step.

While an observer is active the interpreter evaluates eagerly, on concrete arrays: products are not
deferred to their psum, loops run iteration by iteration, and of a branch only the devices that take
it count. The values are the same ones; only the order in which they are computed, and how much of
them exists at one time, differ.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from shardlab.errors import Deadlock
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray


@dataclasses.dataclass(frozen=True, slots=True)
class ObservedArray(StackedArray):
    """A value that the observer has numbered. Operations on it give plain stacked arrays again."""

    value_id: int = -1


class StepObserver(Protocol):
    """What the interpreter reports while it runs a program step by step."""

    def finish_equation(
        self, axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray], outs: Sequence[StackedArray]
    ) -> list[StackedArray]:
        """Return the outputs of an equation that was evaluated, numbered."""

    def finish_placement(
        self, axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray]
    ) -> list[StackedArray]:
        """Return the output of an equation that only says how a global value is sharded."""

    def inside(self, eqn: Any) -> AbstractContextManager[None]:
        """Return the context of the equations that this one contains (a call, a loop, a body)."""

    def is_opaque(self, eqn: Any) -> bool:
        """Return whether a call is one step: a function of JAX itself, such as `jnp.where`."""

    def enter_shard_map(
        self, inner: MeshAxes, eqn: Any, ins: Sequence[Any], shards: Sequence[StackedArray]
    ) -> list[StackedArray]:
        """Return the shards that the body gets, numbered."""

    def leave_shard_map(
        self, inner: MeshAxes, eqn: Any, outs: Sequence[StackedArray]
    ) -> list[int | None]:
        """Return the number of each output as the program around the body sees it."""

    def iteration(self, eqn: Any, number: int, length: int | None) -> AbstractContextManager[None]:
        """Return the context of one iteration of a loop."""

    def finish_loop(self, eqn: Any, length: int) -> None:
        """Note the length of a loop that was not known before it ended."""

    def skip_iterations(self, count: int) -> None:
        """Note iterations that run without being reported."""

    def is_recorded(self, number: int, length: int | None) -> bool:
        """Return whether the steps of this iteration are wanted."""

    def branch(self, axes: MeshAxes, eqn: Any) -> AbstractContextManager[None]:
        """Return the context of a branch that only the devices `axes.active` take."""

    def paused(self) -> AbstractContextManager[None]:
        """Return a context in which values are computed and no step is reported."""

    def block(
        self, axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray], deadlock: Deadlock
    ) -> None:
        """Note the collective at which some devices wait forever; the program ends there."""


_observer: contextvars.ContextVar[StepObserver | None] = contextvars.ContextVar(
    "observer", default=None
)


def current_observer() -> StepObserver | None:
    """Return the observer of the program that is running, if there is one."""
    return _observer.get()


@contextlib.contextmanager
def observe_steps(observer: StepObserver | None) -> Iterator[None]:
    """Report every equation that is evaluated within this block; with None report nothing."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)
