"""A person's function, run on several virtual meshes: what each computes, value by value.

Nothing is decided here. Every program is traced by JAX on the mesh (`retarget_programs`) and evaluated as
one program on the one real device, like any simulated program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardlab import _jax
from shardlab._jax.pending_deadlock import raise_pending_deadlock
from shardlab.analysis.lineage import lineages
from shardlab.analysis.run_arguments import (
    concrete,
    failure,
    first_line,
    in_gradient,
    is_array,
    paths,
)
from shardlab.errors import Deadlock
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.sharding.mesh import Mesh, MeshSizes
from shardlab.simulator.interpreter import evaluate as simulate
from shardlab.simulator.interpreter import replica_recorder as copies
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.retarget import retarget_programs
from shardlab.simulator.run_records import MeshRun, MeshRuns, OutputLeaf, OutputLineage
from shardlab.tracing.stage import drop_non_arrays, staging_mesh

_HAS_OWN_GRADIENTS = (
    "The program takes gradients itself; these were compared, and gradients of them were not."
)
Progress = Callable[[str], None]
# Each program runs once, so what it costs is compiling it.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Bench:
    """A program that runs on one mesh after the other, traced once for each of them.

    Meshes that it cannot run on are told by the `failure` of their run. Where that is so of one
    device, with which all others are compared, the smallest mesh that it does run on takes its
    place.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        args: Sequence[Any],
        on_progress: Progress = lambda text: None,
    ) -> None:
        with _jax.no_mesh():  # the person's: these arrays are of one device
            self._args = concrete(args)
        self._f, self._tell = f, on_progress
        self._trials: dict[MeshSizes, Trial] = {}
        self._reference: Trial | None = None

    def run(self, meshes: Sequence[Mesh]) -> MeshRuns:
        """Run on one device and on each of `meshes`, and return these beside those run before."""
        one = Mesh([(name, 1) for name in meshes[0].axis_names])
        if tuple(one.shape.items()) not in self._trials:
            self._tell("running on one device")
            if _kind(self._run(one)) == "deadlock":
                return self._runs()
        if self._reference is None:
            meshes = sorted(meshes, key=lambda mesh: mesh.n_devices)
        for mesh in meshes:
            if tuple(mesh.shape.items()) not in self._trials:
                self._tell(f"running on {_text(mesh)}")
                if _kind(self._run(mesh)) == "deadlock":
                    break
        return self._runs()

    def differentiate(self) -> MeshRuns:
        """Return the same runs, with the gradients of each."""
        if self._reference is not None:
            for trial in self._trials.values():
                if trial.run.failure is None:
                    self._tell(f"taking gradients on {trial.run.mesh_text}")
                    if _kind(trial.differentiated()) == "deadlock":
                        break
        return self._runs()

    def _run(self, mesh: Mesh) -> MeshRun:
        trial = Trial(self._f, self._args, mesh, is_reference=self._reference is None)
        self._trials[trial.run.mesh] = trial
        if self._reference is None and trial.run.failure is None:
            self._reference = trial
        return trial.run

    def _runs(self) -> MeshRuns:
        first, *others = self._trials.values()
        reference = self._reference or first
        many = tuple(each.run for each in others if each is not reference)
        named = dict(
            zip(argument_paths(self._f, self._args), jax.tree.leaves(self._args), strict=True)
        )
        arrays = {path: _plain(x) for path, x in named.items() if is_array(x) and not _is_key(x)}
        return MeshRuns(
            one=reference.run,
            many=many,
            arguments=arrays,
            source=source_of(self._f),
            not_one=None if reference is first else first.run.failure,
        )


class Trial:
    """A program on one mesh: its run, to which the gradients may be added later."""

    def __init__(
        self, f: Callable[..., Any], args: Sequence[Any], mesh: Mesh, is_reference: bool
    ) -> None:
        self._is_reference, self._is_differentiated = is_reference, False
        sizes = tuple(mesh.shape.items())
        with self._watched() as (book, start):
            try:
                self._program = _Program(f, args, mesh)
                values = self._program.values()
                written = tuple(book.entries)
                outputs = self._program.outputs(values, is_reference)
            except Exception as error:
                self.run = MeshRun(mesh=sizes, failure=failure(error), seconds=_since(start))
                return
        self.run = MeshRun(mesh=sizes, outputs=outputs, copies=written, seconds=_since(start))

    def differentiated(self) -> MeshRun:
        """Return the run with its gradients."""
        if self.run.failure or self._is_differentiated:
            return self.run
        self._is_differentiated = True
        with self._watched() as (_, start):
            try:
                gradients, notes = self._program.gradients(self._is_reference)
                self.run = dataclasses.replace(
                    self.run,
                    gradients=gradients,
                    notes=notes,
                    seconds=self.run.seconds + _since(start),
                )
            except Exception as error:
                self.run = MeshRun(
                    mesh=self.run.mesh, failure=failure(error), seconds=_since(start)
                )
        return self.run

    @contextlib.contextmanager
    def _watched(self) -> Iterator[tuple[copies.ReplicaRecorder, float]]:
        with _quietly(), copies.record_replicas() as book:
            yield book, time.perf_counter()


def _since(start: float) -> float:
    return time.perf_counter() - start


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
            filled, keywords = staging_mesh(f, jax.tree.unflatten(tree, new), target)
            return drop_non_arrays(f(*filled, **keywords))

        with retarget_programs(mesh) as target:
            self._closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*self._arrays)
        self._paths = paths(shapes)
        self._shapes = jax.tree.leaves(shapes)
        self._lineages = lineages(self._closed)
        self._run = _compiled(self._closed)

    def values(self) -> list[Any]:
        return self._run(self._arrays)

    def outputs(self, values: list[Any], is_reference: bool) -> dict[str, OutputLeaf]:
        """Return every output by its path."""
        moved = [self._run(each) for each in self._nudged()] if is_reference else []
        return _leaves(self._paths, values, moved, self._lineages)

    def gradients(self, is_reference: bool) -> tuple[dict[str, OutputLeaf], tuple[str, ...]]:
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
            with retarget_programs(self._mesh):
                closed = jax.make_jaxpr(jax.grad(loss, numbers))(*self._arrays)
            run = _compiled(closed)
            values = run(self._arrays)
        except Deadlock as error:
            raise in_gradient(error) from None
        except Exception as error:
            return {}, (f"gradients were not compared: {first_line(error)}",)
        moved = [run(each) for each in self._nudged()] if is_reference else []
        names = [self._names[i] for i in numbers]
        # What went into the outputs went into their gradients.
        eps = max((lineage.eps for lineage in self._lineages), default=0.0)
        return _leaves(names, values, moved, [OutputLineage(eps=eps)] * len(names)), ()

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
        return [
            out.array
            for out in simulate.evaluate_jaxpr(
                MeshAxes(), closed, [StackedArray(arg) for arg in args]
            )
        ]

    jitted = jax.jit(program, compiler_options=_QUICK)

    def run(args: list[Any]) -> list[Any]:
        with _jax.no_mesh(), raise_pending_deadlock():
            outs = jax.block_until_ready(jitted(*args))
            jax.effects_barrier()
        return list(outs)

    return run


def _leaves(
    names: Sequence[str],
    values: Sequence[Any],
    moved: Sequence[Sequence[Any]],
    lineage: Sequence[OutputLineage],
) -> dict[str, OutputLeaf]:
    found = {}
    for i, (name, value, line) in enumerate(zip(names, values, lineage, strict=True)):
        array = _plain(value)
        with np.errstate(invalid="ignore", over="ignore"):
            noise = [np.abs(_wide(_plain(each[i])) - _wide(array)) for each in moved]
        found[name] = OutputLeaf(
            value=array, dtype=str(value.dtype), noise=np.nan_to_num(sum(noise, 0.0)), lineage=line
        )
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


# ---------------------------------------------------------------------------------------- where


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


def source_of(f: Any) -> SourceLocation:
    """Return where a function is written."""
    f = inspect.unwrap(f)
    code = getattr(getattr(f, "func", f), "__code__", None)
    return (
        SourceLocation(code.co_filename, code.co_firstlineno, code.co_name)
        if code
        else UNKNOWN_LOCATION
    )


def _kind(run: MeshRun) -> str:
    return run.failure.kind if run.failure else ""


def _text(mesh: Mesh) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Swallow what the program prints: said once for each mesh it would bury the report."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
