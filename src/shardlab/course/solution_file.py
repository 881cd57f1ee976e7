"""The person's file: begun from the starter, read, and put back, and never lost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shardlab.catalogue.problem import Problem
from shardlab.errors import FolderUnwritable, SolutionFileExists, SolutionFileMissing

FOLDER = "shardlab-practice"
# More than the judge takes, so that it is the judge that says so.
_MOST = 16 << 20


def answer_path(slug: str, folder: Path | None = None) -> Path:
    """Return where an answer goes that was not started yet.

    >>> answer_path("shard-map-psum", Path("mine")).as_posix()
    'mine/shard-map-psum.py'
    """
    return (folder or Path(FOLDER)) / f"{slug}.py"


def begin(problem: Problem, path: Path, *, force: bool = False) -> Path | None:
    """Write the starter, unless it is there; return where a file that was in its place is kept.

    Raises `SolutionFileExists` where a person's work is in the place, unless forced.
    """
    starter = problem.text("starter.py").encode()
    if path.exists() or path.is_symlink():
        if path.is_file() and read_solution_file(path, problem.slug) == starter:
            return None
        if not force:
            raise SolutionFileExists(
                "The file is there already, and is not the starter.",
                where=str(path),
                fix="go on with it; --force writes the starter in its place, and keeps yours "
                "beside it.",
            )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = _keep(path) if path.exists() else None
        _write(path, starter)
    except OSError as error:
        raise _unwritable(path, error) from None
    return kept


def read_solution_file(path: Path, slug: str) -> bytes:
    """Return an answer as it lies there, byte for byte. Raises `SolutionFileMissing`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SolutionFileMissing(
                "The answer is not a file.", where=str(path), fix="name a .py file."
            )
        with path.open("rb") as file:
            return file.read(_MOST)
    except FileNotFoundError:
        raise solution_file_missing(path, slug) from None
    except OSError as error:
        raise SolutionFileMissing(
            f"The answer cannot be read: {error.strerror}.",
            where=str(path),
            fix="make it readable, or name another file.",
        ) from None


def solution_file_missing(path: Path, slug: str) -> SolutionFileMissing:
    """Return the error for a problem that was not started."""
    return SolutionFileMissing(
        f"There is no answer to '{slug}' yet.",
        where=str(path),
        fix=f"`shardlab practice start {slug}` writes one to begin with, or name your file.",
    )


def _keep(path: Path) -> Path:
    """Copy a file to the next free name beside it."""
    body = path.read_bytes()
    for number in range(1, 10_000):
        kept = path.with_name(f"{path.name}.{number}.bak")
        try:
            with kept.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            continue
        return kept
    raise FileExistsError(17, "There are 9999 copies beside it")


def _write(path: Path, body: bytes) -> None:
    """Put a file in its place as a whole, so that an editor never reads half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_bytes(body)
        half.replace(path.resolve())
    finally:
        half.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> FolderUnwritable:
    return FolderUnwritable(
        f"The answer cannot be written: {error.strerror or error}.",
        where=str(path),
        fix="another place: --folder DIR.",
    )
