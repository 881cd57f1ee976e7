"""The user's solution file: created from the starter, read, and reset without losing work."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shardlab.catalogue.problem import Problem
from shardlab.errors import FolderUnwritable, SolutionFileExists, SolutionFileMissing

DEFAULT_FOLDER = "shardlab-practice"
# Above the judge's own limit, so that the judge reports a file that is too large.
_MAX_BYTES = 16 << 20
_MAX_BACKUPS = 10_000


def default_path(slug: str, folder: Path | None = None) -> Path:
    """Return the path of a solution file that does not exist yet.

    >>> default_path("shard-map-psum", Path("mine")).as_posix()
    'mine/shard-map-psum.py'
    """
    return (folder or Path(DEFAULT_FOLDER)) / f"{slug}.py"


def write_starter(problem: Problem, path: Path, *, force: bool = False) -> Path | None:
    """Write the starter to `path`; return the backup of the file that it replaced, if any.

    Raises `SolutionFileExists` if the file has been edited, unless forced.
    """
    starter = problem.read_text("starter.py").encode()
    if path.exists() or path.is_symlink():
        if path.is_file() and read_solution_file(path, problem.slug) == starter:
            return None
        if not force:
            raise SolutionFileExists(
                "The file exists already, and is not the starter.",
                where=str(path),
                fix="continue with it; --force replaces it by the starter, and saves a backup "
                "beside it.",
            )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        backup = _save_backup(path) if path.exists() else None
        _replace_file(path, starter)
    except OSError as error:
        raise FolderUnwritable(
            f"The solution file cannot be written: {error.strerror or error}.",
            where=str(path),
            fix="choose another folder: --folder DIR.",
        ) from None
    return backup


def read_solution_file(path: Path, slug: str) -> bytes:
    """Return a solution file, byte for byte. Raises `SolutionFileMissing`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SolutionFileMissing(
                "The solution is not a regular file.", where=str(path), fix="name a .py file."
            )
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except FileNotFoundError:
        raise solution_file_missing(path, slug) from None
    except OSError as error:
        raise SolutionFileMissing(
            f"The solution file cannot be read: {error.strerror}.",
            where=str(path),
            fix="make it readable, or name another file.",
        ) from None


def solution_file_missing(path: Path, slug: str) -> SolutionFileMissing:
    """Return the error for a problem that was not started."""
    return SolutionFileMissing(
        f"There is no solution file for '{slug}' yet.",
        where=str(path),
        fix=f"`shardlab practice start {slug}` writes the starter, or name your file.",
    )


def _save_backup(path: Path) -> Path:
    """Copy a file to the next free name beside it."""
    body = path.read_bytes()
    for number in range(1, _MAX_BACKUPS):
        backup = path.with_name(f"{path.name}.{number}.bak")
        try:
            # "x" fails if the file exists, so that two processes never write the same backup.
            with backup.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            continue
        return backup
    raise FileExistsError(17, f"There are {_MAX_BACKUPS - 1} backups beside it")


def _replace_file(path: Path, body: bytes) -> None:
    """Replace a file atomically, so that an editor never reads a partial one."""
    # Bytes, and not `write_atomically`, which writes text: a starter keeps its line ends.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(body)
        # resolve: a symbolic link stays a link.
        temporary.replace(path.resolve())
    finally:
        temporary.unlink(missing_ok=True)
