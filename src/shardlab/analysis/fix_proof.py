"""Whether an edited program is right: it must compute what the original computes on one device.

One device is the intention of the author, because there the mistakes of sharding do not show. An
edit that agrees on all meshes by destroying the program, such as a term that is gone, changes the
result on one device and is rejected. With a reference that is what every result is compared with.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab.analysis.mesh_runs import MeshTrial, run_reference
from shardlab.analysis.run_arguments import fill_arguments, function_location, is_array
from shardlab.analysis.trace_and_check import check
from shardlab.checks.check_program import check_program
from shardlab.checks.compare_runs import check_runs, default_test_meshes
from shardlab.checks.tolerance import is_close, result_tolerance
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report
from shardlab.sharding.mesh import Mesh, mesh_text, parse_mesh
from shardlab.simulator.run_records import MeshRun, MeshRuns, OutputLeaf
from shardlab.tracing.observe import observe

# By input: where a tanh saturates, small values still tell a wrong edit from a right one.
_INPUT_SCALES = (1.0, 1.0, 0.15)
_N_INPUTS = len(_INPUT_SCALES)
_RUN_CODES = ("hazard.mesh_dependent", "hazard.replicas_differ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A function with its arguments, as the file defines them; an edited file has its own."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Screening:
    """What one run says about an edited program.

    `errors` are the findings of the trace, `wrong` the outputs that are wrong on one mesh. An edit
    after which fewer of them remain may be the first half of a fix.
    """

    reason: str = ""
    errors: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    is_broken: bool = False

    def is_better_than(self, other: Screening) -> bool:
        if self.is_broken:
            return False
        if self.errors != other.errors:
            return self.errors < other.errors
        return self.wrong < other.wrong


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """On what an edited program was shown to be right; a `reason` says that it was not."""

    reason: str = ""
    meshes: tuple[str, ...] = ()
    n_inputs: int = 0
    has_gradients: bool = False
    remaining: tuple[str, ...] = ()  # codes of what `check` still finds


class FixProver:
    """Compares edited programs with what the original computes on one device, or the reference."""

    def __init__(
        self,
        original: Program,
        report: Report,
        meshes: Sequence[str],
        reference: Callable[..., Any] | None,
    ) -> None:
        self._original, self._report, self._reference = original, report, reference
        self._requested = [parse_mesh(mesh) for mesh in meshes]
        known = self._requested or [parse_mesh(mesh) for mesh in report.meshes]
        self._axis_names: tuple[str, ...] = known[0].axis_names if known else ()
        ladder = list(known)
        if reference is None and self._axis_names:
            ladder += default_test_meshes(self._axis_names)
        unique = {mesh_text(mesh.shape.items()): mesh for mesh in ladder if mesh.n_devices > 1}
        self._ladder = sorted(unique.values(), key=lambda mesh: mesh.n_devices)
        self._original_runs: dict[str, MeshRun] = {}
        self._expected_trial: MeshTrial | None = None

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        return self._axis_names

    # ------------------------------------------------------------------------ what is right

    @functools.cached_property
    def expected(self) -> MeshRun:
        """Return what is right for the first inputs, with gradients."""
        return self._expected_run(0)

    def why_not_provable(self) -> str:
        """Return why no edit can be proven, or ''."""
        if not self._ladder:
            return "No mesh with several devices is known: pass --mesh."
        if self.is_rejected:
            return ""  # Edits that change nothing on one device have a result of their own there.
        failure = self.expected.failure
        if failure is not None:
            return (
                "There is no result to compare an edited program with: the program does not run on "
                f"one device ({failure.message}). Pass --reference."
            )
        values = [leaf.value for leaf in self.expected.outputs.values()]
        if not any(np.isfinite(value).any() for value in values if value.dtype.kind in "fciub"):
            return "There is no result to compare with: on one device no value is finite."
        return ""

    @functools.cached_property
    def is_rejected(self) -> bool:
        """Return whether JAX rejects the original on one device too, and there is no reference."""
        if self._reference is not None:
            return False
        failure = self.expected.failure
        is_static = any(item.code not in _RUN_CODES for item in self._report.findings)
        return failure is not None and failure.kind in ("rejected", "indivisible") and is_static

    def _expected_run(self, number: int) -> MeshRun:
        """Return what is right for some inputs; gradients are of the first ones only."""
        if self._expected_trial is not None:
            return self._expected_trial.run_again(_draw_inputs(self._original.args, number))
        args = _draw_inputs(self._original.args, 0)
        if self._reference is not None:
            trial = run_reference(self._reference, args, self._one_device)
        else:
            trial = MeshTrial(self._original.function, args, self._one_device, is_reference=True)
        if trial.run.failure is not None:
            return trial.run
        self._expected_trial = trial
        return _with_gradients(trial)

    @property
    def _one_device(self) -> Mesh:
        return Mesh([(name, 1) for name in self._axis_names])

    @functools.cached_property
    def _wrong_mesh(self) -> Mesh:
        """Return the smallest mesh on which the original is wrong or does not run."""
        runnable = [mesh for mesh in self._ladder if not self._is_indivisible(mesh)]
        for mesh in runnable if not self.is_rejected else ():
            run = self._run_original(mesh)
            if run.failure is not None or self._compare(self.expected, run)[1]:
                return mesh
        return (self._requested or runnable or self._ladder)[0]

    def _is_indivisible(self, mesh: Mesh) -> bool:
        failure = self._run_original(mesh).failure
        return failure is not None and failure.kind == "indivisible"

    def _run_original(self, mesh: Mesh) -> MeshRun:
        text = mesh_text(mesh.shape.items())
        if text not in self._original_runs:
            self._original_runs[text] = self._run(self._original, mesh)
        return self._original_runs[text]

    # ------------------------------------------------------------------------ edited programs

    def screen(self, program: Program) -> Screening:
        """Return what one trace and one run say; most edits fail here."""
        errors = self._static_findings(program)
        if errors:
            names = frozenset(f"{item.code} {item.what}" for item in errors)
            return Screening(reason=f"{errors[0].code} remains", errors=names)
        mesh = self._wrong_mesh
        is_original = program is self._original
        run = self._run_original(mesh) if is_original else self._run(program, mesh)
        if run.failure is not None:
            return Screening(reason=_failure_text(run), is_broken=True)
        expected = self._expected_of(program, 0)
        if expected.failure is not None:
            return Screening(reason=_failure_text(expected), is_broken=True)
        if expected.outputs.keys() != run.outputs.keys():
            return Screening(reason="it returns another structure", is_broken=True)
        reason, wrong = self._compare(expected, run)
        return Screening(reason=reason, wrong=wrong)

    def screen_original(self) -> Screening:
        return self.screen(self._original)

    def prove(self, program: Program, is_identity: bool) -> Proof:
        """Return on what a program is right, or the reason why it is not."""
        if self.is_rejected and not is_identity:
            return Proof(reason="the original has no result on one device to compare with")
        if reason := self._changed_on_one_device(program):
            return Proof(reason=reason)
        report = self._check(program)
        if reason := self._failed_check(report):
            return Proof(reason=reason)
        meshes: list[str] = []
        has_gradients = False
        for mesh in self._ladder:
            # Gradients on the smallest mesh, and by `check` on the user's own.
            runs = self._runs_on(program, mesh, has_gradients=mesh is self._wrong_mesh)
            if runs[0].failure is not None:
                if not self._may_fail_on(mesh):
                    return Proof(reason=_failure_text(runs[0]))
                continue
            for number, run in enumerate(runs):
                if reason := self._compare(self._expected_of(program, number), run)[0]:
                    return Proof(reason=reason)
            has_gradients = has_gradients or bool(runs[0].gradients)
            meshes.append(runs[0].mesh_text)
        if not meshes:
            return Proof(reason="it runs on no mesh with several devices")
        remaining = dict.fromkeys(item.code for item in _problems(report))
        return Proof(
            meshes=tuple(meshes),
            n_inputs=_N_INPUTS,
            has_gradients=has_gradients,
            remaining=tuple(remaining),
        )

    def _may_fail_on(self, mesh: Mesh) -> bool:
        """Return whether the original is of no use on a mesh either, and nobody asked for it.

        A size that does not divide a dimension may give the original another shape, not an error.
        """
        run = self._run_original(mesh)
        is_right = run.failure is None and not self._compare(self.expected, run)[1]
        return not is_right and mesh not in self._requested

    def _runs_on(self, program: Program, mesh: Mesh, *, has_gradients: bool) -> list[MeshRun]:
        """Return the runs with all inputs on one mesh, compiled once."""
        trial = MeshTrial(program.function, _draw_inputs(program.args, 0), mesh, is_reference=False)
        if trial.run.failure is not None:
            return [trial.run]
        has_gradients = has_gradients and bool(self._expected_of(program, 0).gradients)
        first = _with_gradients(trial) if has_gradients else trial.run
        others = range(1, _N_INPUTS)
        return [first, *(trial.run_again(_draw_inputs(program.args, n)) for n in others)]

    @functools.cached_property
    def _has_static_goal(self) -> bool:
        return any(item.code not in _RUN_CODES for item in _problems(self._report))

    def _static_findings(self, program: Program) -> list[Finding]:
        """Return the errors of the trace, and the warnings that the edit should remove."""
        if not self._has_static_goal:
            return []
        largest = max(self._requested or self._ladder, key=lambda mesh: mesh.n_devices)
        observation = observe(program.function, program.args, largest, compiler_use="never")
        goal = {item.code for item in _problems(self._report)}
        return [
            item
            for item in check_program(observation)
            if item.severity == "error" or item.code in goal
        ]

    def _check(self, program: Program) -> Report:
        """Return the report of `check` as the user would run it."""
        options: dict[str, Any] = {"meshes": self._requested} if self._requested else {}
        return check(program.function, *program.args, reference=self._reference, **options)

    def _failed_check(self, report: Report) -> str:
        """Return what `check` says against an edited program."""
        before = {item.code for item in self._report.findings} - {
            item.code for item in _problems(self._report)
        }
        for finding in report.findings:
            if finding.severity == "error":
                return f"{finding.code}: {finding.what}"
            if finding.severity == "warning" and finding.code not in before:
                return f"it would give {finding.code}: {finding.what}"
        return "" if report.is_compared else "its values could not be compared"

    def _changed_on_one_device(self, program: Program) -> str:
        if self._reference is not None or self.is_rejected:
            return ""
        for number, run in enumerate(self._runs_on(program, self._one_device, has_gradients=True)):
            if run.failure is not None:
                return _failure_text(run)
            expected = self._expected_of(program, number)
            if run.outputs.keys() != expected.outputs.keys():
                return "it returns another structure"
            if self._compare(expected, run)[1]:
                return "it changes the result on one device"
        return ""

    def _expected_of(self, program: Program, number: int) -> MeshRun:
        """Return what is right: of the original, or if JAX rejects it of the edited program."""
        if not self.is_rejected:
            return self._cached_expected(number)
        args = _draw_inputs(program.args, number)
        trial = MeshTrial(program.function, args, self._one_device, is_reference=True)
        return trial.run if trial.run.failure or number else _with_gradients(trial)

    @functools.cache  # noqa: B019  # lives as long as one search
    def _cached_expected(self, number: int) -> MeshRun:
        return self.expected if number == 0 else self._expected_run(number)

    def _run(self, program: Program, mesh: Mesh) -> MeshRun:
        args = _draw_inputs(program.args, 0)
        return MeshTrial(program.function, args, mesh, is_reference=False).run

    def _compare(self, expected: MeshRun, run: MeshRun) -> tuple[str, frozenset[str]]:
        """Return the first difference from what is right, and the names of all wrong outputs."""
        # A gradient that was not computed on this mesh is not compared.
        if not run.gradients:
            expected = dataclasses.replace(expected, gradients={})
        comparison = check_runs(
            MeshRuns(
                one=expected,
                many=(run,),
                source=function_location(self._original.function),
                has_reference_function=self._reference is not None,
            )
        )
        findings = [item for item in comparison.findings if item.severity == "error"]
        if not findings:
            # `check` only notes what it cannot compare, such as an output of another shape. A proof
            # needs every output.
            wrong = _different_leaves(expected.outputs, run.outputs)
            wrong |= _different_leaves(expected.gradients, run.gradients)
            return (f"{sorted(wrong)[0]} differs on {run.mesh_text}" if wrong else ""), wrong
        wrong = frozenset(
            f"{item.code} {path}"
            for item in findings
            for path in item.details.get("paths") or item.details.get("outputs") or [item.what]
        )
        return f"{findings[0].code} on {run.mesh_text}", wrong


def _different_leaves(
    expected: Mapping[str, OutputLeaf], actual: Mapping[str, OutputLeaf]
) -> frozenset[str]:
    """Return the outputs or gradients that are missing, of another shape, or not equal."""
    return frozenset(
        f"output {path}".rstrip()
        for path, leaf in expected.items()
        if path not in actual
        or not is_close(actual[path].value, leaf.value, result_tolerance(leaf, actual[path]))
    )


def _problems(report: Report) -> tuple[Finding, ...]:
    """Return what a fix must remove: the errors, or if there are none the warnings."""
    return report.with_severity("error") or report.with_severity("warning")


def _with_gradients(trial: MeshTrial) -> MeshRun:
    values = trial.run
    run = trial.add_gradients()
    # A program whose backward pass fails on one device still has values to compare.
    has_failed = run.failure is not None and run.failure.kind != "deadlock"
    return values if has_failed else run


def _failure_text(run: MeshRun) -> str:
    assert run.failure is not None
    return f"on {run.mesh_text}: {run.failure.message}"


def _draw_inputs(args: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """Return one of several inputs: shapes get other values, floats of the user's are scaled.

    Signs, zeros and integers stay, because a program may rely on them: variances, masks, indices.
    """
    with _jax.no_mesh():
        filled = fill_arguments(args, 1000 * number)
        if number == 0:
            return filled
        leaves, tree = jax.tree.flatten(filled)
        scale = _INPUT_SCALES[number]
        varied = [_scale_elements(leaf, number + seed, scale) for seed, leaf in enumerate(leaves)]
        return tuple(jax.tree.unflatten(tree, varied))


def _scale_elements(leaf: Any, seed: int, scale: float) -> Any:
    if not is_array(leaf) or _jax.is_extended(leaf.dtype):
        return leaf
    if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact):
        return leaf
    factors = np.random.default_rng([seed, *leaf.shape]).uniform(0.5, 1.5, leaf.shape)
    return (leaf * (scale * factors)).astype(leaf.dtype)
