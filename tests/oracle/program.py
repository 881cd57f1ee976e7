"""A program that runs unchanged on two runtimes: on real host devices, and simulated.

It is written against a `Runtime`, which binds a mesh to a `shard_map`: JAX's own on a real `Mesh`,
or shardlab's on a virtual one. `evaluate` returns what it computes, values and gradients, as plain
NumPy arrays that can cross a process boundary in an npz file (no pickle).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

N_DEVICES = 8


class Runtime:
    """One mesh, and the shard_map that runs on it."""

    def __init__(self, shard_map: Callable[..., Any], mesh: Any) -> None:
        self.mesh = mesh
        self.shard_map = functools.partial(shard_map, mesh=mesh)
        # Lines that host callbacks append; compared without regard to order.
        self.log: list[str] = []


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument: its own random numbers, so never constant and never symmetric."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def make(self, seed: int) -> Any:
        rng = np.random.default_rng([seed, *self.shape])
        dtype = jnp.dtype(self.dtype)
        if dtype.kind == "b":
            return jnp.asarray(rng.random(self.shape) < 0.5)
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)
            low, high = max(int(info.min), -90), min(int(info.max), 100)
            return jnp.asarray(rng.integers(low, high + 1, self.shape), dtype)
        values = rng.normal(size=self.shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * rng.normal(size=self.shape)
        return jnp.asarray(values, dtype)


def f32(*shape: int) -> Input:
    return Input(shape)


def i32(*shape: int) -> Input:
    return Input(shape, "int32")


@dataclasses.dataclass(frozen=True)
class Program:
    """A named program, its mesh and its inputs; `build(runtime)` returns the function to call."""

    name: str
    mesh: Mapping[str, int]
    inputs: tuple[Input, ...]
    build: Callable[[Runtime], Callable[..., Any]]
    grad: bool = True
    jit: bool = True
    x64: bool = False
    explicit: bool = False
    # The error on real CPU devices, if they reject the program. If the simulation does not reject
    # it too, `reference` is the result computed with NumPy.
    rejected: str = ""
    reference: Callable[..., Any] | None = None

    def axis_types(self) -> tuple[AxisType, ...]:
        return ((AxisType.Explicit if self.explicit else AxisType.Auto),) * len(self.mesh)


def parse_mesh(text: str) -> dict[str, int]:
    pairs = (part.split("=") for part in text.split(","))
    return {name: int(size) for name, size in pairs}


class ProgramTable:
    """Programs by name, in the order written."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}

    def add(self, name: str, mesh: str, inputs: Any, build: Any, **options: Any) -> None:
        assert name not in self.programs, f"two programs have the name {name}"
        sizes = parse_mesh(mesh)
        assert math.prod(sizes.values()) <= N_DEVICES
        self.programs[name] = Program(name, sizes, tuple(inputs), build, **options)

    def __call__(self, mesh: str, *inputs: Input, **options: Any) -> Callable[[Any], Any]:
        """Decorate `build`, whose name becomes the name of the program."""

        def decorate(build: Any) -> Any:
            self.add(build.__name__, mesh, inputs, build, **options)
            return build

        return decorate


# ------------------------------------------------------------------------------------- evaluation


def evaluate(program: Program, runtime: Runtime) -> dict[str, np.ndarray]:
    """Return every output, every gradient and the log, by name."""
    with jax.enable_x64(True) if program.x64 else contextlib.nullcontext():
        args = [item.make(seed) for seed, item in enumerate(program.inputs)]
        fun = program.build(runtime)
        outs = (jax.jit(fun) if program.jit else fun)(*args)
        jax.effects_barrier()
        arrays = {**plain_arrays("value", outs), "log": np.array(sorted(runtime.log), "U")}
        if program.grad:
            arrays |= plain_arrays("grad", jax.jit(gradients(fun, args))(*args))
            jax.effects_barrier()
        return arrays


def gradients(fun: Callable[..., Any], args: list[Any]) -> Callable[..., Any]:
    """Return the gradient of a weighted sum of all outputs by every float argument."""
    numbers = tuple(i for i, arg in enumerate(args) if jnp.issubdtype(arg.dtype, jnp.inexact))

    def loss(*args: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(fun(*args)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum(_weighted(leaf, seed) for seed, leaf in enumerate(leaves))

    return jax.grad(loss, numbers)


def with_gradients(fun: Callable[..., Any], args: list[Any]) -> Callable[..., Any]:
    """Return the outputs and `gradients` in one program, which computes the outputs once."""
    numbers = tuple(i for i, arg in enumerate(args) if jnp.issubdtype(arg.dtype, jnp.inexact))

    def loss(*args: Any) -> Any:
        outs = fun(*args)
        leaves = [x for x in jax.tree.leaves(outs) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum(_weighted(leaf, seed) for seed, leaf in enumerate(leaves)), outs

    grad = jax.grad(loss, numbers, has_aux=True)
    return lambda *args: grad(*args)


def _weighted(leaf: Any, seed: int) -> Any:
    """Return a sum in which every element counts differently, so that a swap changes it."""
    weights = np.random.default_rng([99, seed]).uniform(0.5, 1.5, leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return (leaf.real * weights).sum() + (leaf.imag * weights[..., ::-1]).sum()
    wide = leaf if leaf.dtype == jnp.float64 else leaf.astype(jnp.float32)
    return (wide * weights.astype(wide.dtype)).sum()


def plain_arrays(kind: str, tree: Any) -> dict[str, np.ndarray]:
    return {
        f"{kind} {number} {leaf.dtype}": _as_numpy(leaf)
        for number, leaf in enumerate(jax.tree.leaves(tree))
    }


def _as_numpy(leaf: Any) -> np.ndarray:
    """Return numbers in a dtype NumPy can store; every narrow float fits in a float32."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if array.dtype.kind in "biufcU" and array.dtype.isnative and array.dtype.isbuiltin == 1:
        return array
    # Dtypes that NumPy does not have: narrow floats, and integers of two and four bits.
    return array.astype(np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else np.int8)


# ------------------------------------------------------------------------------------- comparison


def compare(real: Mapping[str, np.ndarray], simulated: Mapping[str, np.ndarray]) -> None:
    """Assert that both runtimes computed the same.

    Integers, bools, keys and logs must be equal. Floats may differ by the order in which a sum was
    taken: a few roundings of the largest term, so the bound is 16 units in the last place of the
    largest element of the array (f32: 2e-6 relative to it), whatever the element's own size.
    """
    assert set(simulated) == set(real)
    for name, expected in real.items():
        actual = simulated[name]
        assert actual.shape == expected.shape, name
        if actual.dtype.kind not in "fc":
            np.testing.assert_array_equal(actual, expected, err_msg=name)
            continue
        eps = float(jnp.finfo(name.split()[-1]).eps)
        finite = np.abs(expected[np.isfinite(expected)])
        bound = 16 * eps * float(finite.max(initial=0.0))
        np.testing.assert_allclose(actual, expected, rtol=16 * eps, atol=bound, err_msg=name)
