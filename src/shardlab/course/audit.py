"""Everything that a problem promises, tried: examples, starter, solution, every wrong answer.

Audits of many problems, several at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardlab.catalogue.problem import Part, Problem, load_problem
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE, Catalogue
from shardlab.course.audit_draws import draw_faults
from shardlab.course.problem_lint import Fault, lint
from shardlab.course.wrong_submissions import Claim, read_claim, unproven
from shardlab.errors import LabError
from shardlab.judge.judgement import Judgement

if TYPE_CHECKING:
    from shardlab.sandbox.process import ProcessLimits, SandboxedProcess, SandboxPool


# Any will do: a problem must hold for every seed. The same each time, so that an audit that fails
# fails again.
SEED = 1
# By the clock. Computing is limited as ever: a busy machine must not make an answer look slow.
_PATIENCE = 120.0
_FEW = {1: ("{0}=1", "{0}=4", "rows=2"), 2: ("{0}=1,{1}=1", "{0}=2,{1}=4")}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What came of one problem."""

    slug: str
    faults: tuple[Fault, ...]
    n_cases: int = 0
    n_wrong: int = 0

    @property
    def ok(self) -> bool:
        return not self.faults


def audit(
    house: SandboxPool,
    problem: Problem,
    *,
    fast: bool = False,
    seed: int = SEED,
    simulate_wrong: bool = True,
) -> Audit:
    """Return what is wrong with a problem; `fast` reads it and tries the solution on few meshes.

    Wrong answers show what they are on the meshes that are run for real. Without `simulate_wrong`
    they are left at that, which is quicker.
    """
    counted: list[int] = []
    faults = lint(problem)
    try:
        # What cannot be read or drawn would be tried for the wrong things.
        if not any(fault.rule == "text.encoding" for fault in faults):
            faults += draw_faults(problem)
            patient = replace(problem, limits={"wall_seconds": _PATIENCE, **problem.limits})
            bench = _Bench(house=house, problem=patient, seed=seed, simulate_wrong=simulate_wrong)
            tried = bench.fast() if fast else bench.whole()
            for fault, n_cases in () if _is_broken(faults) else tried:
                counted.append(n_cases)
                faults += [fault] if fault else []
    except LabError as error:
        faults.append(Fault(rule="problem", what=error.what, file=error.where))
    n_wrong = 0 if fast else len(problem.wrong)
    return Audit(slug=problem.slug, faults=tuple(faults), n_cases=sum(counted), n_wrong=n_wrong)


def _is_broken(faults: list[Fault]) -> bool:
    return any(fault.rule in ("problem", "reference.inputs") for fault in faults)


Tried = tuple[Fault | None, int]  # and in how many cases


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """Where the programs of one problem are tried."""

    house: SandboxPool
    problem: Problem
    seed: int
    simulate_wrong: bool

    def fast(self) -> Iterator[Tried]:
        yield self._solution(few(self.problem))

    def whole(self) -> Iterator[Tried]:
        from shardlab.course.audit_examples import example_faults

        yield from ((fault, 0) for fault in example_faults(self.house, self.problem))
        yield self._starter(few(self.problem))
        yield self._solution(self.problem)
        for path in self.problem.wrong:
            claim = read_claim(path.read_text("utf-8"))
            if isinstance(claim, Claim):
                yield self._wrong(f"wrong/{path.name}", claim)

    def _starter(self, problem: Problem) -> Tried:
        judged = self._judged(problem, "starter.py")
        fault = None
        if judged.passed:
            fault = Fault(rule="starter.passes", what="The starter passes.", file="starter.py")
        elif not judged.counts:
            shows = tuple(_told(judged))
            fault = Fault(
                rule="judge",
                what="The judge itself failed.",
                file="starter.py",
                line=0,
                shows=shows,
            )
        return fault, len(judged.cases)

    def _solution(self, problem: Problem) -> Tried:
        judged = self._judged(problem, "solution.py")
        if judged.passed:
            return None, len(judged.cases)
        shows = tuple(_told(judged, only_failed=True))
        what = "The solution fails."
        return Fault(
            rule="solution.fails", what=what, file="solution.py", line=0, shows=shows
        ), len(judged.cases)

    def _wrong(self, name: str, claim: Claim) -> Tried:
        problem = self.problem if self.simulate_wrong else unsimulated(self.problem)
        judged = self._judged(problem, name)
        why = unproven(claim, judged)
        fault = (
            Fault(rule="wrong.unproven", what=why, file=name, line=1, shows=tuple(_told(judged)))
            if why
            else None
        )
        return fault, len(judged.cases)

    def _judged(self, problem: Problem, name: str) -> Judgement:
        from shardlab.judge.judge import judge

        return judge(self.house, problem, problem.text(name), kind="submit", seed=self.seed)


def unsimulated(problem: Problem) -> Problem:
    """Return the problem without the meshes that are too large to run."""
    return replace(problem, parts=tuple(replace(part, large=()) for part in problem.parts))


def few(problem: Problem) -> Problem:
    """Return the problem with two or three meshes in the place of its ladders."""

    def shorter(part: Part) -> Part:
        if "mesh" not in part.arguments:
            return part
        if part.ladder:
            return replace(part, ladder=part.ladder[-2:], large=())
        names = part.axes
        return replace(part, ladder=tuple(m.format(*names) for m in _FEW[len(names)]), large=())

    return replace(problem, parts=tuple(map(shorter, problem.parts)))


def _told(judged: Judgement, *, only_failed: bool = False) -> Iterator[str]:
    """Yield each case with what was said of it."""
    for case in judged.cases:
        if case.passed and only_failed:
            continue
        said = ", ".join(f"{each.code} {each.cause}".strip() for each in case.verdicts)
        yield f"part {case.part}, {case.name}: {said}"
        if not case.passed:
            lines = "\n".join(map(str, case.verdicts)).splitlines()
            yield from (f"  {line}" for line in lines)


def audit_problems(
    catalogue: Catalogue,
    slugs: Sequence[str],
    *,
    fast: bool = False,
    seed: int = SEED,
    n_workers: int = 1,
) -> Iterator[Audit]:
    """Yield the audit of each problem as it is done; of all where no slug is given.

    A folder that `tracks.toml` does not list is audited too: one that is still being written.
    """
    from shardlab.judge.worker_pool import open_worker_pool

    unlisted = unlisted_folders(catalogue)
    places = {
        slug: catalogue.folder / catalogue.track(slug).folder / slug for slug in catalogue.slugs
    }
    places |= unlisted
    wanted = slugs or tuple(places)
    for slug in wanted:
        if slug not in places:
            catalogue.track(slug)  # raises, with the nearest name
    # Solutions lie in these folders, and an answer must not read them.
    with open_worker_pool(hidden_paths=[str(catalogue.folder), str(BUILT_IN_CATALOGUE)]) as opened:
        house = _Closing(opened)

        def one(slug: str) -> Audit:
            done = audit_folder(house, places[slug], fast=fast, seed=seed)
            return _with_unlisted(done) if slug in unlisted else done

        with ThreadPoolExecutor(n_workers) as pool:
            futures = [pool.submit(one, slug) for slug in wanted]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                house.is_closing = True
                pool.shutdown(wait=False, cancel_futures=True)


class _Closing:
    """A house that gives no guests once it is closing: Ctrl-C must not wait for a whole audit."""

    def __init__(self, house: SandboxPool) -> None:
        self._house, self.level, self.is_closing = house, house.level, False

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess:
        from shardlab.sandbox.process import ExitReason, ProcessEnded

        if self.is_closing:
            raise ProcessEnded(ExitReason(kind="internal", detail="the audit was stopped"))
        return self._house.start_process(role, limits)

    def close(self) -> None:
        self._house.close()


def unlisted_folders(catalogue: Catalogue) -> dict[str, Path]:
    """Return the problem folders that `tracks.toml` does not list, by slug.

    A slug that is listed in another track has the track before it.
    """
    listed = {f"{track.folder}/{slug}" for track in catalogue.tracks for slug in track.slugs}
    found = {
        f"{path.parent.parent.name}/{path.parent.name}": path.parent
        for path in sorted(catalogue.folder.glob("*/*/problem.toml"))
    }
    return {
        name if path.name in catalogue.slugs else path.name: path
        for name, path in found.items()
        if name not in listed
    }


def audit_folder(
    house: SandboxPool, folder: Path, *, fast: bool = False, seed: int = SEED
) -> Audit:
    """Return the audit of one folder; a problem that cannot be loaded is a fault as well."""
    try:
        return audit(house, load_problem(folder), fast=fast, seed=seed)
    except LabError as error:
        fault = Fault(
            rule="problem", what=error.what, file=error.where, line=0, shows=(f"try: {error.fix}",)
        )
        return Audit(slug=folder.name, faults=(fault,))


def _with_unlisted(done: Audit) -> Audit:
    what = "tracks.toml does not list the problem."
    return Audit(
        slug=done.slug,
        faults=(*done.faults, Fault(rule="tracks.unlisted", what=what)),
        n_cases=done.n_cases,
        n_wrong=done.n_wrong,
    )
