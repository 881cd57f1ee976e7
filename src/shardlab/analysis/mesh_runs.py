"""Runs a user's function on several virtual meshes and records every output and gradient.

Nothing is decided here. JAX traces the program on each mesh (`retarget_programs`), and the
simulator evaluates the jaxpr as one program on the one real device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from shardlab import _jax
from shardlab._jax.fixed_draws import fix_draws
from shardlab._jax.wide_floats import widen_array, widen_jaxpr
from shardlab.analysis.compiled_simulation import compile_simulation
from shardlab.analysis.lineage import trace_lineages
from shardlab.analysis.mesh_trace import trace_on_mesh
from shardlab.analysis.partial_use import describe_partial_use, has_shard_map
from shardlab.analysis.reference_outputs import check_same_outputs
from shardlab.analysis.repair_runs import list_repairs, run_repaired
from shardlab.analysis.run_arguments import (
    argument_paths,
    change_key,
    classify_failure,
    error_summary,
    fill_arguments,
    function_location,
    gradient_deadlock,
    is_array,
    is_float,
    is_key,
    leaf_paths,
    perturb_array,
)
from shardlab.errors import Deadlock, InvalidType
from shardlab.sharding.mesh import Mesh, MeshSizes, mesh_text
from shardlab.simulator.interpreter import replica_recorder
from shardlab.simulator.repair import Repair
from shardlab.simulator.retarget import retarget_programs
from shardlab.simulator.run_records import (
    MeshRun,
    MeshRuns,
    OutputLeaf,
    OutputLineage,
    RunFailure,
)

# Whether the outputs of a mesh, by path, are those of the reference; None if the run failed.
RepairTest = Callable[[Mapping[str, Any] | None], bool]
# What is changed in the program before it runs: float32 in place of narrower types, to tell a small
# difference from rounding; or constants in place of random numbers that differ by design.
Rewrite = Literal["", "float32", "fixed_draws"]

_COMPUTES_GRADIENTS = (
    "The program computes gradients itself. These were compared; second derivatives were not."
)


class MeshRunner:
    """Runs one program on one mesh after the other, tracing it once per mesh.

    A mesh on which the program does not run has a `failure` in its `MeshRun`. All runs are compared
    with the run on one device; if that one fails, the smallest mesh that works is the reference.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        args: Sequence[Any],
        on_progress: Callable[[str], None] = lambda text: None,
        reference: Callable[..., Any] | None = None,
        *,
        rewrite: Rewrite = "",
    ) -> None:
        # The user's mesh may be in context; these arrays belong to the one real device.
        with _jax.no_mesh():
            self._args = fill_arguments(args)
        self._f, self._on_progress = f, on_progress
        # By mesh, so that a second round with more meshes reuses the traces of the first.
        self._trials: dict[MeshSizes, MeshTrial] = {}
        self._reference: MeshTrial | None = None
        self._reference_function = reference
        self._rewrite = rewrite

    @property
    def has_reference_function(self) -> bool:
        return self._reference_function is not None

    @property
    def has_narrow_floats(self) -> bool:
        """Return whether a result was rounded to fewer digits than float32 has."""
        runs = self.collect_runs()
        leaves = [leaf for run in (runs.one, *runs.many) for leaf in run.outputs.values()]
        return any(leaf.lineage.eps > np.finfo(np.float32).eps for leaf in leaves)

    def run_on_meshes(self, meshes: Sequence[Mesh]) -> MeshRuns:
        """Run on one device and on each of `meshes`; return all runs so far."""
        one_device = Mesh([(name, 1) for name in meshes[0].axis_names])
        if self._reference_function is not None and self._reference is None:
            self._on_progress("running the reference")
            self._reference = run_reference(
                self._reference_function, self._args, one_device, rewrite=self._rewrite
            )
        is_needed = self._reference_function is None
        if is_needed and tuple(one_device.shape.items()) not in self._trials:
            self._on_progress("running on one device")
            if self._run_on_mesh(one_device).is_deadlock:
                return self.collect_runs()
        if self._reference is None:
            meshes = sorted(meshes, key=lambda mesh: mesh.n_devices)
        for mesh in meshes:
            if tuple(mesh.shape.items()) not in self._trials:
                self._on_progress(f"running on {mesh_text(mesh.shape.items())}")
                # A deadlock is an error by itself: no other mesh can make the program right.
                if self._run_on_mesh(mesh).is_deadlock:
                    break
        return self.collect_runs()

    def add_gradients(self) -> MeshRuns:
        """Return the same runs, each with its gradients."""
        if self._reference is not None:
            for trial in dict.fromkeys([self._reference, *self._trials.values()]):
                if trial.run.failure is None:
                    self._on_progress(f"computing gradients on {trial.run.mesh_text}")
                    if trial.add_gradients().is_deadlock:
                        break
        return self.collect_runs()

    def find_repairs(self, paths: Sequence[str], agrees: RepairTest) -> list[Repair]:
        """Return the repairs with which the outputs `paths` are right on every mesh.

        `agrees` decides whether the outputs of a mesh are those of the reference.
        """
        trials = [
            trial
            for trial in self._trials.values()
            if trial is not self._reference and trial.run.failure is None
        ]
        wrong = [
            trial
            for trial in trials
            if not agrees({path: trial.run.outputs[path].value for path in paths})
        ]
        if not wrong:
            return []
        # A repair that is not right on the first mesh is not tried on the others.
        first = min(wrong, key=lambda trial: trial.run.n_devices)
        ordered = [first, *(trial for trial in trials if trial is not first)]
        for repairs in first.list_repairs():
            self._on_progress(f"testing {len(repairs)} possible causes")
            for trial in ordered:
                results = trial.run_repaired(repairs, paths)
                repairs = [repair for repair in repairs if agrees(results[repair])]
            if repairs:
                return repairs
        return []

    def _run_on_mesh(self, mesh: Mesh) -> MeshRun:
        trial = MeshTrial(
            self._f,
            self._args,
            mesh,
            is_reference=self._reference is None,
            rewrite=self._rewrite,
        )
        self._trials[trial.run.mesh] = trial
        if self._reference_function is not None and self._reference and not trial.run.failure:
            check_same_outputs(trial.run, self._reference.run)
        # The first mesh that works is the reference: one device, or else the smallest mesh.
        if self._reference is None and trial.run.failure is None:
            self._reference = trial
        return trial.run

    def collect_runs(self) -> MeshRuns:
        """Return all runs so far."""
        trials = list(self._trials.values())
        reference = self._reference or trials[0]
        first = reference if self._reference_function is not None else trials[0]
        paths = argument_paths(self._f, self._args)
        arguments = zip(paths, jax.tree.leaves(self._args), strict=True)
        return MeshRuns(
            one=reference.run,
            many=tuple(trial.run for trial in trials if trial not in (first, reference)),
            arguments={
                path: _numpy_array(leaf)
                for path, leaf in arguments
                if is_array(leaf) and not is_key(leaf)
            },
            source=function_location(self._f),
            one_device_failure=None if reference is first else first.run.failure,
            has_reference_function=self._reference_function is not None,
        )


class MeshTrial:
    """A program on one mesh: its run, to which `add_gradients` adds the gradients."""

    def __init__(
        self,
        f: Callable[..., Any],
        args: Sequence[Any],
        mesh: Mesh,
        is_reference: bool,
        is_user_reference: bool = False,
        *,
        rewrite: Rewrite = "",
    ) -> None:
        self._is_reference, self._has_gradients = is_reference, False
        sizes = tuple(mesh.shape.items())
        with self._recorded_run() as (recorder, start):
            try:
                self._program = _TracedProgram(f, args, mesh, rewrite=rewrite)
                partial_use = None if is_user_reference else self._program.partial_use()
                if partial_use is not None:
                    self.run = MeshRun(mesh=sizes, failure=partial_use)
                    return
                values = self._program.evaluate_outputs()
                # Read before the perturbed runs of `measure_outputs` record their replicas too.
                replicas = tuple(recorder.entries)
                outputs = self._program.measure_outputs(values, is_reference)
            except Exception as error:
                failure = classify_failure(error)
                self.run = MeshRun(mesh=sizes, failure=failure, seconds=_seconds_since(start))
                return
        self.run = MeshRun(
            mesh=sizes, outputs=outputs, copies=replicas, seconds=_seconds_since(start)
        )

    def add_gradients(self) -> MeshRun:
        """Return the run with its gradients."""
        if self.run.failure or self._has_gradients:
            return self.run
        self._has_gradients = True
        with self._recorded_run() as (_, start):
            try:
                gradients, notes = self._program.measure_gradients(self._is_reference)
                self.run = dataclasses.replace(
                    self.run,
                    gradients=gradients,
                    notes=notes,
                    seconds=self.run.seconds + _seconds_since(start),
                )
            except Exception as error:
                self.run = MeshRun(
                    mesh=self.run.mesh,
                    failure=classify_failure(error),
                    seconds=_seconds_since(start),
                )
        return self.run

    def run_again(self, args: Sequence[Any]) -> MeshRun:
        """Return the run with other arguments of the same shapes, without compiling again."""
        with self._recorded_run() as (recorder, start):
            try:
                self._program.replace_arguments(args)
                values = self._program.evaluate_outputs()
                replicas = tuple(recorder.entries)
                outputs = self._program.measure_outputs(values, self._is_reference)
            except Exception as error:
                failure = classify_failure(error)
                return MeshRun(mesh=self.run.mesh, failure=failure, seconds=_seconds_since(start))
        return MeshRun(
            mesh=self.run.mesh, outputs=outputs, copies=replicas, seconds=_seconds_since(start)
        )

    @property
    def has_shard_map(self) -> bool:
        return self._program.has_shard_map

    def list_repairs(self) -> tuple[list[Repair], list[Repair]]:
        return self._program.list_repairs()

    def run_repaired(
        self, repairs: Sequence[Repair], paths: Sequence[str]
    ) -> dict[Repair, dict[str, np.ndarray[Any, Any]] | None]:
        """Return some outputs of the program for each repair, or None where it fails."""
        with self._recorded_run():
            results = self._program.evaluate_repaired(repairs, paths)
        return {
            repair: None
            if values is None
            else {path: _numpy_array(value) for path, value in zip(paths, values, strict=True)}
            for repair, values in results.items()
        }

    @contextlib.contextmanager
    def _recorded_run(self) -> Iterator[tuple[replica_recorder.ReplicaRecorder, float]]:
        with _hide_prints(), replica_recorder.record_replicas() as recorder:
            yield recorder, time.perf_counter()


def run_reference(
    f: Callable[..., Any], args: Sequence[Any], mesh: Mesh, *, rewrite: Rewrite = ""
) -> MeshTrial:
    """Return the run of the user's reference. Raises `InvalidType` if it is no plain function."""
    where = f"check(..., reference={getattr(f, '__name__', repr(f)):.60})"
    trial = MeshTrial(f, args, mesh, is_reference=True, is_user_reference=True, rewrite=rewrite)
    if trial.run.failure is not None:
        raise InvalidType(
            f"The reference does not run: {trial.run.failure.message}",
            where=where,
            fix="pass a function of the same arguments that computes the result without a mesh.",
        )
    if trial.has_shard_map:
        raise InvalidType(
            "The reference has a shard_map, so it depends on a mesh itself.",
            where=where,
            fix="write the reference without a mesh: full arrays, and no collectives.",
        )
    return trial


def _seconds_since(start: float) -> float:
    return time.perf_counter() - start


class _TracedProgram:
    """One program on one mesh: traced once, then evaluated for values and for gradients."""

    def __init__(
        self, f: Callable[..., Any], args: Sequence[Any], mesh: Mesh, *, rewrite: Rewrite = ""
    ) -> None:
        leaves, tree = jax.tree.flatten(tuple(args))
        self._mesh = mesh
        # Only arrays are traced; numbers, strings and meshes reach the function as they are.
        indices = [index for index, leaf in enumerate(leaves) if is_array(leaf)]
        self._arrays = [leaves[index] for index in indices]
        argument_names = argument_paths(f, args)
        self._names = [argument_names[index] for index in indices]

        # Traced once per mesh: outputs, lineage and gradients all come from this jaxpr.
        self._closed, shapes = trace_on_mesh(f, leaves, tree, mesh)
        if rewrite == "float32":
            self._closed = widen_jaxpr(self._closed)
            self._arrays = [widen_array(array) for array in self._arrays]
        elif rewrite == "fixed_draws":
            self._closed = fix_draws(self._closed)
        self._paths = leaf_paths(shapes)
        self._shapes = jax.tree.leaves(shapes)
        self._lineages = trace_lineages(self._closed)
        self._evaluate = compile_simulation(self._closed)

    def replace_arguments(self, args: Sequence[Any]) -> None:
        """Use other arrays of the same shapes from now on."""
        leaves = jax.tree.leaves(tuple(args))
        self._arrays = [leaf for leaf in leaves if is_array(leaf)]

    def evaluate_outputs(self) -> list[Any]:
        return self._evaluate(self._arrays)

    @property
    def has_shard_map(self) -> bool:
        return has_shard_map(self._closed)

    def partial_use(self) -> RunFailure | None:
        """Return why this mesh changes the meaning of the program, if it does."""
        message = describe_partial_use(self._closed, self._names)
        return RunFailure(kind="partly_used", message=message) if message else None

    def list_repairs(self) -> tuple[list[Repair], list[Repair]]:
        has_mean_of_means = any(lineage.sums_ratios for lineage in self._lineages)
        return list_repairs(
            self._closed, self._mesh.axis_names, has_mean_of_means=has_mean_of_means
        )

    def evaluate_repaired(
        self, repairs: Sequence[Repair], paths: Sequence[str]
    ) -> dict[Repair, list[Any] | None]:
        indices = [self._paths.index(path) for path in paths]
        return run_repaired(self._closed, repairs, self._mesh.axis_names, indices, self._arrays)

    def measure_outputs(self, values: list[Any], is_reference: bool) -> dict[str, OutputLeaf]:
        """Return every output by its path; those of the reference with their rounding noise."""
        perturbed = [self._evaluate(args) for args in self._perturb_args()] if is_reference else []
        leaves = _output_leaves(self._paths, values, perturbed, self._lineages)
        draws_by_device = any("by_device" in lineage.random for lineage in self._lineages)
        if is_reference or not draws_by_device or not any(map(is_key, self._arrays)):
            return leaves
        with _jax.no_mesh():
            other_keys = [change_key(array) for array in self._arrays]
        other = _output_leaves(self._paths, self._evaluate(other_keys), [], self._lineages)
        return {
            path: dataclasses.replace(leaf, draw_change=_largest_change(leaf, other[path]))
            for path, leaf in leaves.items()
        }

    def measure_gradients(
        self, is_reference: bool
    ) -> tuple[dict[str, OutputLeaf], tuple[str, ...]]:
        """Return the gradient of a weighted sum of all outputs by every float argument."""
        indices = [index for index, array in enumerate(self._arrays) if is_float(array)]
        # Without a float argument or a float output there is nothing to differentiate.
        if not indices or not any(map(is_float, self._shapes)):
            return {}, ()
        if any(lineage.is_gradient for lineage in self._lineages):
            # A train step: second derivatives are rarely of interest and slow to compile.
            return {}, (_COMPUTES_GRADIENTS,)

        def weighted_loss(*arrays: Any) -> Any:
            # Integer outputs have no gradient; jax.grad would raise for them.
            outs = [out for out in _jax.eval_jaxpr(self._closed, arrays) if is_float(out)]
            return sum(_weighted_sum(out, seed) for seed, out in enumerate(outs))

        try:
            with retarget_programs(self._mesh):
                closed = jax.make_jaxpr(jax.grad(weighted_loss, indices))(*self._arrays)
            evaluate_gradients = compile_simulation(closed)
            values = evaluate_gradients(self._arrays)
        except Deadlock as error:
            raise gradient_deadlock(error) from None
        except Exception as error:
            return {}, (f"gradients were not compared: {error_summary(error)}",)
        perturbed = (
            [evaluate_gradients(args) for args in self._perturb_args()] if is_reference else []
        )
        names = [self._names[index] for index in indices]
        # The backward pass repeats the operations of the forward pass, with the same precision.
        eps = max((lineage.eps for lineage in self._lineages), default=0.0)
        lineages = [
            OutputLineage(eps=eps, collectives=lineage.collectives)
            for lineage in trace_lineages(closed)
        ]
        return _output_leaves(names, values, perturbed, lineages), ()

    def _perturb_args(self) -> list[list[Any]]:
        """Return the arguments changed by about one rounding, twice.

        How far the results move is the program's own rounding noise: a sum taken in another order
        on another mesh may differ as much.
        """
        eps = max((lineage.eps for lineage in self._lineages), default=0.0)
        with _jax.no_mesh():
            return [[perturb_array(array, eps, seed) for array in self._arrays] for seed in (7, 8)]


def _largest_change(leaf: OutputLeaf, other: OutputLeaf) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.abs(_widen(leaf.value) - _widen(other.value))
    return float(np.max(change[np.isfinite(change)], initial=0.0))


def _output_leaves(
    names: Sequence[str],
    values: Sequence[Any],
    perturbed: Sequence[Sequence[Any]],
    lineages: Sequence[OutputLineage],
) -> dict[str, OutputLeaf]:
    leaves = {}
    for index, (name, value, lineage) in enumerate(zip(names, values, lineages, strict=True)):
        array = _numpy_array(value)
        with np.errstate(invalid="ignore", over="ignore"):
            # inf - inf is NaN; an element that is not finite has no noise.
            noise = [
                np.abs(_widen(_numpy_array(outputs[index])) - _widen(array))
                for outputs in perturbed
            ]
        leaves[name] = OutputLeaf(
            value=array,
            dtype=str(value.dtype),
            noise=np.nan_to_num(sum(noise, 0.0)),
            lineage=lineage,
        )
    return leaves


def _numpy_array(value: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = replica_recorder.plain_array(
        np.asarray(jax.random.key_data(value) if is_key(value) else value)
    )
    return array


def _widen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _weighted_sum(leaf: Any, seed: int) -> Any:
    """Return a sum with a different weight per element, so that swapped elements change it."""
    # Weights near 1 keep the scale of the gradient; distinct ones make permuted elements differ.
    weights = np.random.default_rng([99, seed]).uniform(0.5, 1.5, leaf.shape)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return (leaf.real * weights).sum() + (leaf.imag * weights[..., ::-1]).sum()
    # Summed in float32, or a bfloat16 output would lose most of its elements in the sum.
    wide = leaf if leaf.dtype == jnp.float64 else leaf.astype(jnp.float32)
    return (wide * weights.astype(wide.dtype)).sum()


@contextlib.contextmanager
def _hide_prints() -> Iterator[None]:
    """Discard what the program prints: once per mesh, it would bury the report."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
