"""A person's workbook: the catalogue they work on, their record, and where their files are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import Catalogue, load_catalogue
from shardlab.course.progress import ProblemProgress, course, next_problem
from shardlab.course.solution_file import answer_path, begin
from shardlab.course.store import Record, open_record
from shardlab.sandbox.process import Level, SandboxPool


@dataclass(frozen=True)
class Workbook:
    """Everything about one person and one catalogue."""

    catalogue: Catalogue
    record: Record

    def problem(self, name: str | None = None) -> Problem:
        """Return the problem of a slug, a number in the list, or a file name such as `a/slug.py`.

        Without a name: the one started last, or the next one. Raises `UnknownProblem`.
        """
        return self.catalogue.problem(self._slug(name) if name else self.current())

    def current(self) -> str:
        """Return the problem that was started last; before the first, the next one."""
        latest = self.record.latest()
        if latest in self.catalogue.slugs:
            return str(latest)
        return next_problem(self.catalogue, self.record.progress()) or self.catalogue.slugs[0]

    def course(self) -> tuple[ProblemProgress, ...]:
        return course(self.catalogue, self.record.progress())

    def path(self, slug: str, folder: Path | None = None) -> Path:
        """Return where a person's answer lies, or where it goes once it is started."""
        begun = self.record.of(slug).path
        if folder is None and begun and Path(begun).exists():  # it may have been moved since
            return Path(begun)
        return answer_path(slug, folder).absolute()

    def start(
        self, problem: Problem, folder: Path | None = None, *, force: bool = False
    ) -> tuple[Path, Path | None]:
        """Begin an answer and remember where; return its file, and where an older one is kept."""
        path = self.path(problem.slug, folder)
        kept = begin(problem, path, force=force)
        self.record.started(problem.slug, path)
        return path, kept

    def resume(self, problem: Problem, folder: Path | None = None) -> tuple[Path, bool]:
        """Go on with an answer, or begin it; return its file, and whether it is just begun."""
        path = self.path(problem.slug)
        if not path.exists():
            path = self.path(problem.slug, folder)
        is_new = not path.exists()
        if is_new:
            begin(problem, path)
        self.record.started(problem.slug, path)
        return path, is_new

    def folder(self) -> Path | None:
        """Return the folder of the answer started last, where it is still there."""
        latest = self.record.latest()
        begun = self.record.of(latest).path if latest else ""
        return Path(begun).parent if begun and Path(begun).parent.is_dir() else None

    def house(self, level: Level | None = None) -> SandboxPool:
        """Open a house for guests, who can read neither the catalogue nor the record.

        A level that is asked for is the least that will do; without one, the highest that holds.
        """
        from shardlab.judge.worker_pool import open_worker_pool

        hidden = [self.catalogue.folder, self.record.path.parent]
        return open_worker_pool(level, hidden, at_least=level or "C")

    def _slug(self, name: str) -> str:
        slugs = self.catalogue.slugs
        if name.isdecimal() and 0 < int(name) <= len(slugs):
            return slugs[int(name) - 1]
        return Path(name).stem.replace("_", "-") if name not in slugs else name


def open_workbook(folder: str | Path | None = None) -> Workbook:
    """Return the workbook for shardlab's own catalogue, or for another folder's."""
    catalogue = load_catalogue(folder)
    key = "" if folder is None else str(Path(folder).resolve())
    return Workbook(catalogue, open_record(catalogue=key))
