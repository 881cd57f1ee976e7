"""A user's workbook: a catalogue, the progress store, the solution files, and hints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import Catalogue, load_catalogue
from shardlab.course.progress import ProblemProgress, list_progress, next_problem
from shardlab.course.solution_file import default_path, write_starter
from shardlab.course.store import PracticeSnapshot, PracticeStore, Progress, open_store
from shardlab.errors import StoreError
from shardlab.sandbox.process import Level, SandboxPool

_SOLUTION_REQUESTS = 2  # that show the solution of a problem that is not solved


@dataclass(frozen=True)
class Hint:
    """One hint, counted from 1."""

    number: int
    total: int
    text: str

    @property
    def is_last(self) -> bool:
        return self.number == self.total


@dataclass(frozen=True)
class Workbook:
    """One user's work on one catalogue."""

    catalogue: Catalogue
    store: PracticeStore

    # --------------------------------------------------------------------------------- problems

    def find_problem(self, name: str | None = None) -> Problem:
        """Return the problem of a slug, a number in the list, or a file `a/slug.py`.

        Part of a slug, a title or the name of a function will do. Without a name: the current
        problem. Raises `UnknownProblem`.
        """
        return self.catalogue.load_problem(self._parse_slug(name) if name else self.current_slug())

    def current_slug(self) -> str:
        """Return the problem that was started last; before the first, the next one."""
        return current_slug(self.catalogue, self.store.load_snapshot())

    def next_slug(self, after: str | None = None) -> str | None:
        """Return the next problem that is open and not solved; None if all are solved."""
        return next_problem(self.catalogue, self.store.load_progress(), after)

    def list_progress(self) -> tuple[ProblemProgress, ...]:
        """Return every problem with its status, in order."""
        return list_progress(self.catalogue, self.store.load_progress())

    def _parse_slug(self, name: str) -> str:
        slugs = self.catalogue.slugs
        if name.isdecimal() and 0 < int(name) <= len(slugs):
            return slugs[int(name) - 1]
        return self.catalogue.find_slug(Path(name).stem if name.endswith(".py") else name)

    # ---------------------------------------------------------------------------- solution files

    def solution_path(self, slug: str, folder: Path | None = None) -> Path:
        """Return the path of a solution file, or where it will be created."""
        try:
            stored_path = self.store.progress_of(slug).path
        except StoreError:  # a file in the usual place can be judged without the store
            stored_path = ""
        # The user may have moved the file since.
        if folder is None and stored_path and Path(stored_path).exists():
            return Path(stored_path)
        return default_path(slug, folder).absolute()

    def start_problem(
        self, problem: Problem, folder: Path | None = None, *, force: bool = False
    ) -> tuple[Path, Path | None]:
        """Write the starter; return the solution file, and the backup of one that it replaced."""
        path = self.solution_path(problem.slug, folder)
        backup = write_starter(problem, path, force=force)
        self.store.record_start(problem.slug, path)
        return path, backup

    def resume_problem(self, problem: Problem, folder: Path | None = None) -> tuple[Path, bool]:
        """Return the solution file of a problem, and whether it was created just now."""
        path = self.solution_path(problem.slug)
        if not path.exists():
            path = self.solution_path(problem.slug, folder)
        is_new = not path.exists()
        if is_new:
            write_starter(problem, path)
        self.store.record_start(problem.slug, path)
        return path, is_new

    def latest_folder(self) -> Path | None:
        """Return the folder of the solution file that was started last, if it still exists."""
        latest = self.store.latest_problem()
        stored_path = self.store.progress_of(latest).path if latest else ""
        folder = Path(stored_path).parent
        return folder if stored_path and folder.is_dir() else None

    # ---------------------------------------------------------------------------- hints, solution

    def next_hint(self, problem: Problem) -> Hint | None:
        """Return the next hint and record it; the last one again when all were shown."""
        hints = problem.hints
        if not hints:
            return None
        number = min(self.store.progress_of(problem.slug).hints + 1, len(hints))
        self.store.record_hint(problem.slug, number)
        return Hint(number, len(hints), hints[number - 1])

    def used_hints(self, problem: Problem) -> tuple[Hint, ...]:
        """Return the hints that were shown before, in order."""
        return used_hints(problem, self.store.progress_of(problem.slug))

    def has_solution_access(self, problem: Problem) -> bool:
        """Return whether the solution is shown: after a pass, or after the second request."""
        return has_solution_access(self.store.progress_of(problem.slug))

    def request_solution(self, problem: Problem) -> str | None:
        """Return the reference solution after a pass, or at the second request; else None."""
        if self.has_solution_access(problem):
            return problem.read_text("solution.py")
        n_requests = self.store.record_solution_request(problem.slug)
        return problem.read_text("solution.py") if n_requests >= _SOLUTION_REQUESTS else None

    # ----------------------------------------------------------------------------------- judging

    def open_sandboxes(self, level: Level | None = None) -> SandboxPool:
        """Open a sandbox pool whose processes can read neither the catalogue nor the store.

        `level` is the required isolation; without one, the highest that this machine supports.
        """
        from shardlab.judge.worker_pool import open_worker_pool

        # The catalogue has the reference solutions, the store the seeds of the hidden cases.
        hidden = [self.catalogue.folder, self.store.folder]
        return open_worker_pool(level, hidden, at_least=level or "C")


def current_slug(catalogue: Catalogue, snapshot: PracticeSnapshot) -> str:
    """Return the problem that was started last; before the first, the next one."""
    if snapshot.latest_problem in catalogue.slugs:
        return str(snapshot.latest_problem)
    return next_problem(catalogue, snapshot.progress) or catalogue.slugs[0]


def used_hints(problem: Problem, progress: Progress) -> tuple[Hint, ...]:
    """Return the hints that were shown before, in order."""
    texts = problem.hints[: progress.hints]
    return tuple(Hint(n, len(problem.hints), text) for n, text in enumerate(texts, 1))


def has_solution_access(progress: Progress) -> bool:
    """Return whether the solution is shown: after a pass, or after the second request."""
    return progress.is_solved or progress.solution_requests >= _SOLUTION_REQUESTS


def open_workbook(folder: str | Path | None = None) -> Workbook:
    """Return the workbook for shardlab's own catalogue, or for another folder's."""
    catalogue = load_catalogue(folder)
    # The absolute path: the same catalogue is found from any current folder.
    key = "" if folder is None else str(Path(folder).resolve())
    return Workbook(catalogue, open_store(catalogue=key))
