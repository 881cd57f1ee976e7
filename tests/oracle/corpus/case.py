"""Pairs of a wrong program, which must give its finding, and its right twin, which must give none.

Programs are plain JAX and take their mesh from the context (`jax.set_mesh`), so the same function
runs on real devices and under `shardlab.check`. The line of the mistake ends in `# <- here`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

N_DEVICES = 8
MARK = "# <- here"


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument with its own random values: never constant and never symmetric."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 100  # integers are drawn from 0 up to this

    @property
    def text(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def make(self, seed: int) -> Any:
        rng = np.random.default_rng([seed, *self.shape])
        if self.dtype == "float32":
            return rng.normal(size=self.shape).astype(self.dtype)
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.6
        return rng.integers(0, self.below, self.shape).astype(self.dtype)


def f32(*shape: int) -> Input:
    return Input(shape)


def i32(*shape: int, below: int = 100) -> Input:
    return Input(shape, "int32", below)


def mask(*shape: int) -> Input:
    return Input(shape, "bool")


@dataclasses.dataclass(frozen=True)
class Case:
    """One program, its mesh and inputs, and the finding that `check` must report."""

    name: str
    run: Callable[..., Any]
    mesh: str
    inputs: tuple[Input, ...]
    code: str = ""  # empty for a right program
    cause: str | None = None  # None if any will do
    # What happens on real devices: "hangs", "differs" (replicas of one output), or "" if it
    # finishes with values that only another mesh can show to be wrong.
    really: str = ""
    besides: str = ""  # the finding that a comment failed to suppress
    grads: bool = True  # compare gradients too; off if the case is not about values
    read_only: bool = False  # its arrays are too large to run it in a test

    @functools.cached_property
    def args(self) -> tuple[Any, ...]:
        if self.read_only:
            return tuple(item.text for item in self.inputs)
        return tuple(item.make(seed) for seed, item in enumerate(self.inputs))

    @property
    def sizes(self) -> dict[str, int]:
        return parse_mesh(self.mesh)

    @property
    def lines(self) -> tuple[int, ...]:
        """Return the lines marked in the source; any of them will do."""
        source, first = inspect.getsourcelines(self.run)
        return tuple(first + i for i, line in enumerate(source) if MARK in line)

    def meshes(self) -> list[str]:
        """Return the meshes to run it on: its own, and smaller ones if a cause is expected.

        A bias that is counted n times, for example, needs two sizes to be recognized.
        """
        smaller = []
        if self.cause and self.code == "hazard.mesh_dependent":
            names = list(self.sizes)
            smaller = [{n: 2 if n == name else 1 for n in names} for name in names]
        meshes = [*(mesh for mesh in smaller if mesh != self.sizes), self.sizes]
        return [",".join(f"{name}={size}" for name, size in mesh.items()) for mesh in meshes]


def parse_mesh(text: str) -> dict[str, int]:
    pairs = (part.split("=") for part in text.split(","))
    return {name: int(size) for name, size in pairs}


class Table:
    """Pairs of programs by name, in source order."""

    def __init__(self, *, grads: bool = True) -> None:
        self._grads = grads
        self.wrong_cases: dict[str, Case] = {}
        self.right_cases: dict[str, Case] = {}
        self._last: Case | None = None

    def wrong(self, code: str, mesh: str, *inputs: Input, **options: Any) -> Callable[[Any], Any]:
        """Decorate a wrong program with the finding that it must give."""
        assert math.prod(parse_mesh(mesh).values()) <= N_DEVICES

        def decorate(run: Any) -> Any:
            self._last = Case(
                run.__name__,
                run,
                mesh,
                inputs,
                code,
                grads=self._grads,
                **options,
            )
            self._add(self.wrong_cases, self._last)
            return run

        return decorate

    def right(self, run: Any) -> Any:
        """Decorate the twin of the wrong program above: the same mesh and inputs, no finding."""
        assert self._last is not None
        last = self._last
        case = dataclasses.replace(last, name=run.__name__, run=run, code="", cause=None)
        self._add(self.right_cases, dataclasses.replace(case, really="", besides=""))
        return run

    def also_right(self, mesh: str, *inputs: Input) -> Callable[[Any], Any]:
        """Decorate a right program that resembles a wrong one."""

        def decorate(run: Any) -> Any:
            self._add(
                self.right_cases,
                Case(run.__name__, run, mesh, inputs, grads=self._grads),
            )
            return run

        return decorate

    def _add(self, cases: dict[str, Case], case: Case) -> None:
        assert case.name not in {**self.wrong_cases, **self.right_cases}, case.name
        cases[case.name] = case
