"""A person's function, run on several virtual meshes: what each computes, value by value.

Nothing is decided here. Every program is traced by JAX on the mesh (`retargeted`) and evaluated as
one program on the one real device, like any simulated program.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardlab.engine import _jax, copies, simulate, stuck
from shardlab.engine.arguments import concrete, is_array, paths
from shardlab.engine.lineage import lineages
from shardlab.engine.results import arrays_only
from shardlab.engine.retarget import retargeted
from shardlab.engine.spread import Axes, Spread
from shardlab.engine.stage import with_mesh
from shardlab.errors import (
    Deadlock,
    DuplicatePermutation,
    LabError,
    ManualAxisConstraint,
    PermutationOrder,
    UnboundAxis,
)
from shardlab.layouts.mesh import Mesh
from shardlab.records.run import Failure, Leaf, Lineage, Run, Runs
from shardlab.records.source import NOWHERE, Source

_HAS_OWN_GRADIENTS = (
    "The program takes gradients itself; these were compared, and gradients of them were not."
)
Progress = Callable[[str], None]
# Each program runs once, so what it costs is compiling it.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def run_on_meshes(
    f: Callable[..., Any],
    args: Sequence[Any],
    meshes: Sequence[Mesh],
    *,
    grads: bool = True,
    on_progress: Progress = lambda text: None,
    after: Runs | None = None,
) -> Runs:
    """Run `f(*args)` on a mesh of one device and on each of `meshes`, beside those run before.

    Meshes that the program cannot run on are told by the `failure` of their run, and so is one
    device; whether JAX refuses the program elsewhere is then still of interest.
    """
    with _jax.no_mesh():  # the person's: these arrays are of one device
        filled = concrete(args)
    first = Mesh([(name, 1) for name in meshes[0].axis_names])
    if after is None:
        on_progress("running on one device")
        one = run_on(f, filled, first, grads=grads, is_reference=True)
    else:
        one = after.one
    many = list(after.many if after else ())
    done = {tuple(first.shape.items()), *(run.mesh for run in many)}
    for mesh in meshes:
        if tuple(mesh.shape.items()) in done:
            continue
        done.add(tuple(mesh.shape.items()))
        on_progress(f"running on {_text(mesh)}")
        many.append(run_on(f, filled, mesh, grads=grads and one.failure is None))
        if many[-1].failure and many[-1].failure.kind == "deadlock":
            break
    leaves = jax.tree.leaves(filled)
    named = dict(zip(argument_paths(f, filled), leaves, strict=True))
    arrays = {path: _plain(x) for path, x in named.items() if is_array(x) and not _is_key(x)}
    return Runs(one, tuple(many), arrays, source_of(f))


def run_on(
    f: Callable[..., Any],
    args: Sequence[Any],
    mesh: Mesh,
    *,
    grads: bool = True,
    is_reference: bool = False,
) -> Run:
    """Run a program on one mesh; the reference also learns how far rounding moves its results."""
    sizes = tuple(mesh.shape.items())
    start = time.perf_counter()
    with _quietly(), copies.recording() as book:
        try:
            program = _Program(f, args, mesh)
            values = program.values()
            entries = tuple(book.entries)
            outputs = program.outputs(values, is_reference)
            gradients, notes = program.gradients(is_reference) if grads else ({}, ())
        except Exception as error:
            return Run(sizes, failure=_failure(error), seconds=time.perf_counter() - start)
    seconds = time.perf_counter() - start
    return Run(sizes, outputs, gradients, entries, None, notes, seconds)


class _Program:
    """One program on one mesh: traced once, then evaluated for values and for gradients."""

    def __init__(self, f: Callable[..., Any], args: Sequence[Any], mesh: Mesh) -> None:
        leaves, tree = jax.tree.flatten(tuple(args))
        self._mesh = mesh
        self._places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
        self._arrays = [leaves[i] for i in self._places]
        names = argument_paths(f, args)
        self._names = [names[i] for i in self._places]

        def flat(*arrays: Any) -> Any:
            new = list(leaves)
            for i, array in zip(self._places, arrays, strict=True):
                new[i] = array
            filled, keywords = with_mesh(f, jax.tree.unflatten(tree, new), target)
            return arrays_only(f(*filled, **keywords))

        with retargeted(mesh) as target:
            self._closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*self._arrays)
        self._paths = paths(shapes)
        self._shapes = jax.tree.leaves(shapes)
        self._lineages = lineages(self._closed)
        self._run = _compiled(self._closed)

    def values(self) -> list[Any]:
        return self._run(self._arrays)

    def outputs(self, values: list[Any], is_reference: bool) -> dict[str, Leaf]:
        """Return every output by its path."""
        moved = [self._run(each) for each in self._nudged()] if is_reference else []
        return _leaves(self._paths, values, moved, self._lineages)

    def gradients(self, is_reference: bool) -> tuple[dict[str, Leaf], tuple[str, ...]]:
        """Return the gradient of a weighted sum of all outputs by every float argument."""
        numbers = [i for i, x in enumerate(self._arrays) if _is_float(x)]
        if not numbers or not any(map(_is_float, self._shapes)):
            return {}, ()
        if any(lineage.is_gradient for lineage in self._lineages):
            # A train step. Its second derivatives interest nobody, and take long to compile.
            return {}, (_HAS_OWN_GRADIENTS,)

        def loss(*arrays: Any) -> Any:
            outs = [x for x in _jax.eval_jaxpr(self._closed, arrays) if _is_float(x)]
            return sum(_weighted(out, seed) for seed, out in enumerate(outs))

        try:
            with retargeted(self._mesh):
                closed = jax.make_jaxpr(jax.grad(loss, numbers))(*self._arrays)
            run = _compiled(closed)
            values = run(self._arrays)
        except Deadlock as error:
            raise _in_gradient(error) from None
        except Exception as error:
            return {}, (f"gradients were not compared: {_first_line(error)}",)
        moved = [run(each) for each in self._nudged()] if is_reference else []
        names = [self._names[i] for i in numbers]
        # What went into the outputs went into their gradients.
        eps = max((lineage.eps for lineage in self._lineages), default=0.0)
        return _leaves(names, values, moved, [Lineage(eps=eps)] * len(names)), ()

    def _nudged(self) -> list[list[Any]]:
        """Return the arguments changed by about one rounding, to see what rounding can do."""
        eps = max((lineage.eps for lineage in self._lineages), default=0.0)
        with _jax.no_mesh():
            return [[_nudge(x, eps, seed) for x in self._arrays] for seed in (7, 8)]


def _nudge(x: Any, eps: float, seed: int) -> Any:
    if not _is_float(x):
        return x
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], x.shape)
    return (x * (1 + eps * signs)).astype(x.dtype)


def _compiled(closed: Any) -> Callable[[list[Any]], list[Any]]:
    def program(*args: Any) -> list[Any]:
        return [out.array for out in simulate.run(Axes(), closed, [Spread(arg) for arg in args])]

    jitted = jax.jit(program, compiler_options=_QUICK)

    def run(args: list[Any]) -> list[Any]:
        with _jax.no_mesh(), stuck.unwrapped():
            outs = jax.block_until_ready(jitted(*args))
            jax.effects_barrier()
        return list(outs)

    return run


def _leaves(
    names: Sequence[str],
    values: Sequence[Any],
    moved: Sequence[Sequence[Any]],
    lineage: Sequence[Lineage],
) -> dict[str, Leaf]:
    found = {}
    for i, (name, value, line) in enumerate(zip(names, values, lineage, strict=True)):
        array = _plain(value)
        with np.errstate(invalid="ignore", over="ignore"):
            noise = [np.abs(_wide(_plain(each[i])) - _wide(array)) for each in moved]
        found[name] = Leaf(array, str(value.dtype), np.nan_to_num(sum(noise, 0.0)), line)
    return found


def _plain(value: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = copies.plain_array(
        np.asarray(jax.random.key_data(value) if _is_key(value) else value)
    )
    return array


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _weighted(leaf: Any, seed: int) -> Any:
    """Return a sum in which every element counts differently, so that no swap goes unseen."""
    weights = np.random.default_rng([99, seed]).uniform(0.5, 1.5, leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return (leaf.real * weights).sum() + (leaf.imag * weights[..., ::-1]).sum()
    wide = leaf if leaf.dtype == jnp.float64 else leaf.astype(jnp.float32)
    return (wide * weights.astype(wide.dtype)).sum()


def _is_float(value: Any) -> bool:
    return not _is_key(value) and bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _is_key(value: Any) -> bool:
    return _jax.is_extended(value.dtype)


# ------------------------------------------------------------------ where, and what went wrong


def argument_paths(f: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """Return the path of each leaf of the arguments, by parameter name: `params['w']`."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [each.name for each in parameters if each.kind in _BY_POSITION]
    if "mesh" in names and not _has_mesh(args, names.index("mesh")):
        names.remove("mesh")
    names += [f"argument {i}" for i in range(len(names), len(args))]
    return [path for name, arg in zip(names, args, strict=False) for path in paths(arg, name)]


def _has_mesh(args: Sequence[Any], at: int) -> bool:
    return len(args) > at and isinstance(args[at], (jax.sharding.Mesh, jax.sharding.AbstractMesh))


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def source_of(f: Any) -> Source:
    """Return where a function is written."""
    f = inspect.unwrap(f)
    code = getattr(getattr(f, "func", f), "__code__", None)
    return Source(code.co_filename, code.co_firstlineno, code.co_name) if code else NOWHERE


# What JAX refuses only when it lowers a program, so that the simulation says it in its place.
_REFUSED_BY_JAX = (DuplicatePermutation, ManualAxisConstraint, PermutationOrder, UnboundAxis)


def _failure(error: Exception) -> Failure:
    if isinstance(error, Deadlock):
        return Failure("deadlock", error.what, error.where or "", error.fix or "")
    words = str(error)
    if "divisible" in words or "evenly" in words:
        return Failure("indivisible", _first_line(error))
    if isinstance(error, LabError):
        kind = "refused" if isinstance(error, _REFUSED_BY_JAX) else "not_simulated"
        return Failure(kind, error.what, error.where or "", error.fix or "", error.code)
    return Failure("refused", _first_line(error))


def _in_gradient(error: Deadlock) -> Deadlock:
    """Return a deadlock in the gradient of a program whose values come out."""
    return Deadlock(
        f"The values come out, but not their gradient. {error.what}",
        where=error.where,
        fix=f"{error.fix} Where no line calls it, it adds up the gradient of a value that all "
        "devices share and one branch uses: jax.lax.pcast(value, axis, to='varying') before the "
        "branch takes that sum out of it.",
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _text(mesh: Mesh) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Swallow what the program prints: said once for each mesh it would bury the report."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
