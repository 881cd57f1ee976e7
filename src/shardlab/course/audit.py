"""Audits problems: runs the examples, and judges starter, solution and wrong submissions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardlab.catalogue.problem import Part, Problem, load_problem
from shardlab.catalogue.reference import Reference
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE, Catalogue
from shardlab.course.audit_exceptions import load_exceptions
from shardlab.course.mutation_score import NO_SCORE, MutationScore
from shardlab.course.problem_lint import Fault, lint_problem
from shardlab.course.wrong_submissions import ExpectedVerdict, compare_verdict, parse_header
from shardlab.errors import LabError, ReferenceFailed, short_repr
from shardlab.judge.judgement import Judgement

if TYPE_CHECKING:
    from shardlab.sandbox.process import ProcessLimits, SandboxedProcess, SandboxPool


# A problem must pass with every seed. A fixed one makes a failed audit repeatable.
SEED = 1
# Elapsed time. Processor time keeps its usual limit: a busy machine must not fail a program.
_WALL_SECONDS = 120.0
_FAST_MESHES = {1: ("{0}=1", "{0}=4", "rows=2"), 2: ("{0}=1,{1}=1", "{0}=2,{1}=4")}
_REFERENCE = "reference.py"
_WRONG_PROBLEM = ("problem", "reference.draw", "solution.fails", "judge")
# Mutants of the solution are judged, which takes minutes for a problem.
MutantScope = Literal["none", "reference", "all"]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result for one problem."""

    slug: str
    faults: tuple[Fault, ...]
    n_cases: int = 0
    n_wrong: int = 0  # known-wrong submissions that were judged
    score: MutationScore = NO_SCORE

    @property
    def ok(self) -> bool:
        return not self.faults


def audit_problems(
    catalogue: Catalogue,
    slugs: Sequence[str],
    *,
    fast: bool = False,
    seed: int = SEED,
    n_workers: int = 1,
    mutants: MutantScope = "all",
) -> Iterator[Audit]:
    """Yield the audit of each problem as it is done; of all problems if no slug is given.

    A folder that `tracks.toml` does not list, a problem still being written, is audited too.
    """
    from shardlab.judge.worker_pool import open_worker_pool

    unlisted = unlisted_folders(catalogue)
    folders = _select_folders(catalogue, slugs)
    # Submissions must not read the solutions in these folders.
    with open_worker_pool(
        hidden_paths=[str(catalogue.folder), str(BUILT_IN_CATALOGUE)]
    ) as sandboxes:
        pool = _ClosablePool(sandboxes)

        def audit_slug(slug: str) -> Audit:
            audit = audit_folder(pool, folders[slug], fast=fast, seed=seed, mutants=mutants)
            if slug not in unlisted:
                return audit
            fault = Fault(rule="tracks.unlisted", message="tracks.toml does not list the problem.")
            return replace(audit, faults=(*audit.faults, fault))

        with ThreadPoolExecutor(n_workers) as executor:
            futures = [executor.submit(audit_slug, slug) for slug in folders]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.is_closing = True
                # Without waiting: running audits fail at their next process, as the pool closes.
                executor.shutdown(wait=False, cancel_futures=True)


def _select_folders(catalogue: Catalogue, slugs: Sequence[str]) -> dict[str, Path]:
    """Return the folders of the named problems by slug, of all if none is named."""
    folders = {
        slug: catalogue.folder / catalogue.track_of(slug).folder / slug for slug in catalogue.slugs
    }
    folders |= unlisted_folders(catalogue)
    for slug in slugs:
        if slug not in folders:
            catalogue.track_of(slug)  # raises, with the nearest name
    return {slug: folders[slug] for slug in slugs or folders}


def audit_mutants(
    catalogue: Catalogue, slugs: Sequence[str], *, seed: int = SEED, with_solution: bool = False
) -> Iterator[Audit]:
    """Yield the mutation score of each problem, and the faults of its inputs. Judges nothing else.

    Mutants of the solution are judged, which takes minutes; those of the reference are not.
    """
    from shardlab.judge.worker_pool import open_worker_pool

    folders = _select_folders(catalogue, slugs)
    with contextlib.ExitStack() as stack:
        pool = None
        if with_solution:
            hidden = [str(catalogue.folder), str(BUILT_IN_CATALOGUE)]
            pool = stack.enter_context(open_worker_pool(hidden_paths=hidden))
        for slug, folder in folders.items():
            faults, score = check_mutants(load_problem(folder), seed=seed, pool=pool)
            yield Audit(slug=slug, faults=tuple(faults), score=score)


def check_mutants(
    problem: Problem, *, seed: int, fast: bool = False, pool: SandboxPool | None = None
) -> tuple[list[Fault], MutationScore]:
    """Return the faults of inputs and mutants, and the score; with a pool also of the solution."""
    from shardlab.course.input_variety import check_inputs
    from shardlab.course.mutation_audit import N_SEEDS, score_reference

    exceptions = load_exceptions(problem)
    n_seeds = 1 if fast else N_SEEDS
    faults = list(check_inputs(problem, exceptions, seed=seed))
    score = score_reference(problem, seed=seed, exceptions=exceptions, n_seeds=n_seeds)
    if pool is not None:
        from shardlab.course.solution_mutants import score_solution

        score += score_solution(pool, problem, seed=seed, exceptions=exceptions)
    if seed != SEED:
        # With another seed a listed mutant may be killed: audit.toml is for the fixed one.
        score = replace(score, unused_exceptions=())
    return [*faults, *score.faults], score


class _ClosablePool:
    """A sandbox pool that starts no process once it is closing, so that Ctrl-C ends it soon."""

    def __init__(self, pool: SandboxPool) -> None:
        self._pool, self.is_closing = pool, False
        self.level, self.confinement = pool.level, pool.confinement

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess:
        from shardlab.sandbox.process import ExitReason, ProcessEnded

        if self.is_closing:
            raise ProcessEnded(ExitReason(kind="internal", detail="the audit was stopped"))
        return self._pool.start_process(role, limits)

    def close(self) -> None:
        self._pool.close()


def unlisted_folders(catalogue: Catalogue) -> dict[str, Path]:
    """Return the problem folders that `tracks.toml` does not list, by slug.

    A slug that is listed in another track is prefixed with its own track.
    """
    listed = {f"{track.folder}/{slug}" for track in catalogue.tracks for slug in track.slugs}
    folders = {
        f"{file.parent.parent.name}/{file.parent.name}": file.parent
        for file in sorted(catalogue.folder.glob("*/*/problem.toml"))
    }
    return {
        name if folder.name in catalogue.slugs else folder.name: folder
        for name, folder in folders.items()
        if name not in listed
    }


def audit_folder(
    pool: SandboxPool,
    folder: Path,
    *,
    fast: bool = False,
    seed: int = SEED,
    mutants: MutantScope = "all",
) -> Audit:
    """Return the audit of one folder; a problem that cannot be loaded is a fault as well."""
    try:
        return audit_problem(pool, load_problem(folder), fast=fast, seed=seed, mutants=mutants)
    except LabError as error:
        details = (f"try: {error.fix}",)
        fault = Fault(rule="problem", message=error.what, file=error.where, details=details)
        return Audit(slug=folder.name, faults=(fault,))


def audit_problem(
    pool: SandboxPool,
    problem: Problem,
    *,
    fast: bool = False,
    seed: int = SEED,
    simulate_wrong: bool = True,
    mutants: MutantScope = "all",
) -> Audit:
    """Return the faults of a problem; `fast` lints it and judges only the solution, on few meshes.

    Known-wrong submissions already fail on the meshes of host devices; without `simulate_wrong`
    they are not judged on the simulated meshes too, which saves time. `fast` tries mutants of the
    reference only, with one seed.
    """
    n_cases, score = 0, NO_SCORE
    faults = lint_problem(problem)
    try:
        # A file that is not text would make every later step fail for the wrong reason.
        if not any(fault.rule == "text.encoding" for fault in faults):
            faults += check_reference(pool, problem)
            # Judging against a broken reference would blame the solution.
            if not any(fault.rule in ("problem", "reference.inputs") for fault in faults):
                limits = {"wall_seconds": _WALL_SECONDS, **problem.limits}
                runs = _ProblemRuns(
                    pool=pool,
                    problem=replace(problem, limits=limits),
                    seed=seed,
                    simulate_wrong=simulate_wrong,
                )
                for fault, n_run_cases in runs.run_fast() if fast else runs.run_all():
                    n_cases += n_run_cases
                    faults += [fault] if fault else []
                # Of a problem that is wrong itself, mutants say nothing.
                is_right = not any(fault.rule in _WRONG_PROBLEM for fault in faults)
                if is_right and mutants != "none":
                    has_solution = mutants == "all" and not fast
                    mutant_faults, score = check_mutants(
                        runs.problem, seed=seed, fast=fast, pool=pool if has_solution else None
                    )
                    faults += mutant_faults
    except LabError as error:
        faults.append(Fault(rule="problem", message=error.what, file=error.where))
    n_wrong = 0 if fast else len(problem.wrong_submissions)
    return Audit(
        slug=problem.slug, faults=tuple(faults), n_cases=n_cases, n_wrong=n_wrong, score=score
    )


RunResult = tuple[Fault | None, int]  # and the number of cases


@dataclass(frozen=True, kw_only=True)
class _ProblemRuns:
    """Judges the programs of one problem."""

    pool: SandboxPool
    problem: Problem
    seed: int
    simulate_wrong: bool

    def run_fast(self) -> Iterator[RunResult]:
        yield self._judge_solution(with_few_meshes(self.problem))

    def run_all(self) -> Iterator[RunResult]:
        from shardlab.course.audit_examples import check_examples

        yield from ((fault, 0) for fault in check_examples(self.pool, self.problem))
        # A starter fails on any mesh; few are enough.
        yield self._judge_starter(with_few_meshes(self.problem))
        yield self._judge_solution(self.problem)
        for path in self.problem.wrong_submissions:
            expected = parse_header(path.read_text("utf-8"))
            if isinstance(expected, ExpectedVerdict):  # otherwise the linter has reported it
                yield self._judge_wrong_submission(f"wrong/{path.name}", expected)

    def _judge_starter(self, problem: Problem) -> RunResult:
        file = "starter.py"
        judgement = self._judge_file(problem, file)
        fault = None
        if judgement.passed:
            fault = Fault(rule="starter.passes", message="The starter passes.", file=file)
        elif not judgement.counts:
            details = tuple(_case_lines(judgement))
            fault = Fault(
                rule="judge", message="The judge itself failed.", file=file, details=details
            )
        return fault, len(judgement.cases)

    def _judge_solution(self, problem: Problem) -> RunResult:
        file = "solution.py"
        judgement = self._judge_file(problem, file)
        if judgement.passed:
            return None, len(judgement.cases)
        details = tuple(_case_lines(judgement, only_failures=True))
        fault = Fault(
            rule="solution.fails", message="The solution fails.", file=file, details=details
        )
        return fault, len(judgement.cases)

    def _judge_wrong_submission(self, file: str, expected: ExpectedVerdict) -> RunResult:
        problem = self.problem if self.simulate_wrong else without_simulation(self.problem)
        judgement = self._judge_file(problem, file)
        message = compare_verdict(expected, judgement)
        if not message:
            return None, len(judgement.cases)
        details = tuple(_case_lines(judgement))
        fault = Fault(rule="wrong.unproven", message=message, file=file, line=1, details=details)
        return fault, len(judgement.cases)

    def _judge_file(self, problem: Problem, name: str) -> Judgement:
        from shardlab.judge.judge import judge

        return judge(self.pool, problem, problem.read_text(name), kind="submit", seed=self.seed)


def _case_lines(judgement: Judgement, *, only_failures: bool = False) -> Iterator[str]:
    """Yield each case with its verdicts."""
    for case in judgement.cases:
        if case.passed and only_failures:
            continue
        codes = ", ".join(f"{verdict.code} {verdict.cause}".strip() for verdict in case.verdicts)
        yield f"part {case.part}, {case.name}: {codes}"
        if not case.passed:
            lines = "\n".join(map(str, case.verdicts)).splitlines()
            yield from (f"  {line}" for line in lines)


def without_simulation(problem: Problem) -> Problem:
    """Return the problem without its simulated meshes."""
    return replace(
        problem, parts=tuple(replace(part, simulated_meshes=()) for part in problem.parts)
    )


def with_few_meshes(problem: Problem) -> Problem:
    """Return the problem with two or three test meshes."""

    def with_fewer(part: Part) -> Part:
        if "mesh" not in part.arguments:
            return part
        if part.meshes:
            return replace(part, meshes=part.meshes[-2:], simulated_meshes=())
        meshes = tuple(mesh.format(*part.axes) for mesh in _FAST_MESHES[len(part.axes)])
        return replace(part, meshes=meshes, simulated_meshes=())

    return replace(problem, parts=tuple(map(with_fewer, problem.parts)))


# ---------------------------------------------------------------------------------- the reference


def check_reference(pool: SandboxPool, problem: Problem) -> Iterator[Fault]:
    """Yield the faults of each part's inputs, in its first cases, before anything is judged."""
    from shardlab.judge.confined_reference import open_references

    with open_references(pool, problem) as references:
        for part in problem.parts:
            try:
                yield from _check_inputs(part, references[part.number])
            except ReferenceFailed:
                raise
            except Exception as error:
                message = f"For part {part.number} it raises {type(error).__name__}: {error}."
                yield Fault(rule="problem", message=message, file=_REFERENCE)


# Small inputs may be equal by chance in two draws without a seed, so several cases are drawn twice.
_N_REPEATED_DRAWS = 12
_N_EXPECTED_RESULTS = 2


def _check_inputs(part: Part, reference: Reference) -> Iterator[Fault]:
    from shardlab.judge.cases import make_cases

    names = [name for name in part.arguments if name != "mesh"]
    cases = (case for seed in itertools.count(1) for case in make_cases(part, seed, 2))
    for position, case in enumerate(itertools.islice(cases, _N_REPEATED_DRAWS)):
        inputs = reference.inputs(case.draw)
        if not isinstance(inputs, dict) or {*inputs} != {*names}:
            content = short_repr(inputs)
            if isinstance(inputs, dict):
                content = ", ".join(map(str, inputs)) or "empty"
            message = f"The inputs of part {part.number} are {content}, not a dict of "
            message += f"{', '.join(names) or 'nothing'}; it calls {part.call}."
            yield Fault(rule="reference.inputs", message=message, file=_REFERENCE)
            return
        original = _packed_bytes(inputs)
        if position < _N_EXPECTED_RESULTS:
            with contextlib.suppress(ValueError):  # the error that a submission must raise too
                reference.expected(case.draw.mesh, **inputs)
        if original != _packed_bytes(inputs):
            message = f"expected modifies the inputs of part {part.number}."
            yield Fault(rule="reference.draw", message=message, file=_REFERENCE)
            return
        if original != _packed_bytes(reference.inputs(case.draw)):
            message = f"Part {part.number} gives different inputs for the same seed."
            yield Fault(rule="reference.draw", message=message, file=_REFERENCE)
            return


def _packed_bytes(inputs: dict[str, Any]) -> Any:
    """Return inputs as bytes: comparing arrays by value would treat NaN as a change."""
    from shardlab.judge.protocol.values import array_bytes, pack_value

    data, arrays = pack_value(inputs)
    return data, [array_bytes(array) for array in arrays]
