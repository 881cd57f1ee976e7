"""A copy of the data folder while the server runs, and the way back.

A backup is a folder:

    shardlab-20261119T020000Z/
        server.db       accounts, submissions, classes, catalogues, jobs, recordings
        practice.db     the progress store of the terminal and of local mode, if there is one
        manifest.json   release, schema, size and SHA-256 of each file; written last

Both databases are copied with SQLite's online backup from read transactions that begin while no
writer can be active, so together they are one state. The server goes on: readers and, after that
moment, writers do not wait. The folder gets its name when all of it is on the disk; before, it has
a name that ends in `.partial`, and the next backup removes what an interrupted one has left.

What is not in it: the secret, which must not lie beside the data, and the unpacked catalogues,
which the server unpacks again from its database.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardlab import __version__
from shardlab.course.store import FILE as PRACTICE_FILE
from shardlab.errors import BackupFailed, InvalidBackup
from shardlab.server.database.database_file import DATABASE_FILE
from shardlab.server.database.engine import HEAD_REVISION

MANIFEST_FILE = "manifest.json"
FORMAT, FORMAT_VERSION = "shardlab-backup", 1
_PARTIAL = ".partial"
_NAME = re.compile(r"shardlab-\d{8}T\d{6}Z(-\d+)?")
_LOCK_SECONDS = 60.0  # for a writer of the server; a write takes milliseconds
_DATABASES = (DATABASE_FILE, PRACTICE_FILE)


@dataclass(frozen=True, kw_only=True)
class BackupFile:
    """One file of a backup."""

    name: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A complete backup."""

    folder: Path
    version: str  # of shardlab
    revision: str  # of the schema of server.db; empty without one
    created: str
    files: tuple[BackupFile, ...]

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


def create_backup(data_folder: Path, target: Path, *, now: float | None = None) -> Backup:
    """Copy the databases of a data folder into a new folder below `target`.

    Raises `BackupFailed`; then there is no new folder.
    """
    sources = [data_folder / name for name in _DATABASES if (data_folder / name).is_file()]
    if not sources:
        raise BackupFailed(
            "There is no database to copy.",
            where=str(data_folder),
            fix="name the data folder of the server: --data FOLDER",
        )
    created = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    try:
        target.mkdir(0o700, parents=True, exist_ok=True)
        _remove_partial_folders(target)
        folder = _free_name(target, f"shardlab-{created:%Y%m%dT%H%M%SZ}")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}{_PARTIAL}")
        partial.mkdir(0o700)
        try:
            _copy_databases(sources, partial)
            backup = _describe(partial, folder, created.strftime("%Y-%m-%dT%H:%M:%SZ"))
            _write_durably(partial / MANIFEST_FILE, _manifest_text(backup))
            _sync_folder(partial)
            partial.rename(folder)
            _sync_folder(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BackupFailed(
            f"The backup was not made: {reason}.",
            where=f"{data_folder} to {target}",
            fix="free some space or name another folder; nothing was changed.",
        ) from error
    return backup


def _copy_databases(sources: list[Path], folder: Path) -> None:
    """Copy databases as they are at one moment, and check each copy."""
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(_connect(path)) for path in sources]
        readers = [stack.enter_context(_connect(path)) for path in sources]
        for writer in writers:  # from here on nobody else writes ...
            writer.execute("BEGIN IMMEDIATE")
        for reader in readers:  # ... while each reader takes its snapshot
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        for writer in writers:
            writer.execute("ROLLBACK")
        for reader, source in zip(readers, sources, strict=True):
            path = folder / source.name
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with _connect(path) as copy:
                # All pages in one step: in steps, SQLite would begin again after every write.
                reader.backup(copy)
            check_database(path)
            with path.open("rb+") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def _connect(path: Path, *, is_immutable: bool = False) -> Iterator[sqlite3.Connection]:
    if is_immutable:
        # Quoted by pathlib: a name can have a question mark.
        uri = f"{path.absolute().as_uri()}?immutable=1"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    else:
        connection = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def check_database(path: Path) -> None:
    """Raise `InvalidBackup` unless SQLite finds the file intact, with all its references."""
    try:
        with _connect(path, is_immutable=True) as connection:
            faults = [
                str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)").fetchall()
            ]
            broken = connection.execute("PRAGMA foreign_key_check").fetchmany(3)
    except sqlite3.Error as error:
        faults, broken = [str(error)], []
    if faults != ["ok"] or broken:
        details = "; ".join(faults) if faults != ["ok"] else f"a row of {broken[0][0]} has no owner"
        raise InvalidBackup(
            f"The database is damaged: {details[:200]}.",
            where=str(path),
            fix="use an older backup.",
        )


def _describe(folder: Path, final_folder: Path, created: str) -> Backup:
    files = tuple(
        BackupFile(
            name=name, n_bytes=(folder / name).stat().st_size, sha256=_file_digest(folder / name)
        )
        for name in _DATABASES
        if (folder / name).is_file()
    )
    return Backup(
        folder=final_folder,
        version=__version__,
        revision=_revision(folder / DATABASE_FILE),
        created=created,
        files=files,
    )


def _revision(path: Path) -> str:
    if not path.is_file():
        return ""
    with _connect(path, is_immutable=True) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return "" if row is None else str(row[0])


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest_text(backup: Backup) -> str:
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "shardlab": backup.version,
        "schema": backup.revision,
        "created": backup.created,
        "files": [asdict(file) for file in backup.files],
    }
    return json.dumps(content, indent=2) + "\n"


def _free_name(target: Path, name: str) -> Path:
    """Return a folder that does not exist; two backups in one second get numbers."""
    candidates = (target / (name if n == 1 else f"{name}-{n}") for n in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def _remove_partial_folders(target: Path) -> None:
    """Remove what interrupted backups have left, unless their process still runs."""
    for path in target.glob(f"shardlab-*.*{_PARTIAL}"):
        pid = path.name.removesuffix(_PARTIAL).rpartition(".")[2]
        if pid.isdecimal() and not _is_running(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs as another user
        return True
    return True


def _write_durably(path: Path, content: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_old_backups(target: Path, keep: int) -> list[Path]:
    """Delete all complete backups in a folder but the newest `keep`; return what was deleted."""
    complete = sorted(
        path
        for path in target.iterdir()
        if _NAME.fullmatch(path.name) and (path / MANIFEST_FILE).is_file()
    )
    old = complete[: max(0, len(complete) - keep)]
    for path in old:
        shutil.rmtree(path)
    return old


# ------------------------------------------------------------------------------------ the way back


def read_backup(folder: Path) -> Backup:
    """Return a backup after checking every file of it. Raises `InvalidBackup`."""
    try:
        backup = _parse_manifest(folder, json.loads((folder / MANIFEST_FILE).read_text("utf-8")))
    except OSError as error:
        raise InvalidBackup(
            f"The folder is not a complete backup: {MANIFEST_FILE}: {error.strerror}.",
            where=str(folder),
            fix="name a folder that `shardlab backup` has made.",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidBackup(
            f"{MANIFEST_FILE} is not the manifest of a backup.",
            where=str(folder),
            fix="use another backup.",
        ) from None
    for file in backup.files:
        path = folder / file.name
        if not path.is_file() or _file_digest(path) != file.sha256:
            raise InvalidBackup(
                f"{file.name} is missing or has changed since the backup was made.",
                where=str(folder),
                fix="use another backup, or copy this one again.",
            )
        check_database(path)
    return backup


def _parse_manifest(folder: Path, data: dict[str, Any]) -> Backup:
    if data["format"] != FORMAT or data["format_version"] != FORMAT_VERSION:
        raise ValueError("another format")
    files = tuple(BackupFile(**entry) for entry in data["files"])
    if not files or any(file.name not in _DATABASES for file in files):
        raise ValueError("no files of a backup")
    return Backup(
        folder=folder,
        version=str(data["shardlab"]),
        revision=str(data["schema"]),
        created=str(data["created"]),
        files=files,
    )


def restore_backup(folder: Path, data_folder: Path) -> Backup:
    """Copy a backup into a data folder that has no databases. Raises `InvalidBackup`."""
    backup = read_backup(folder)
    if backup.revision > HEAD_REVISION:
        raise InvalidBackup(
            f"The backup has schema version {backup.revision}; this shardlab supports up to "
            f"{HEAD_REVISION}.",
            where=str(folder),
            fix=f"install shardlab {backup.version} or a later release.",
        )
    existing = [name for name in _DATABASES if (data_folder / name).exists()]
    if existing:
        # Never over a database: a server may have it open, and it may be the better one.
        raise InvalidBackup(
            f"The data folder has {' and '.join(existing)} already.",
            where=str(data_folder),
            fix="stop the server and move the folder away, or restore into another folder.",
        )
    partial = data_folder / f"restore.{os.getpid()}{_PARTIAL}"
    try:
        data_folder.mkdir(0o700, parents=True, exist_ok=True)
        partial.mkdir(0o700)
        try:
            for file in backup.files:
                shutil.copyfile(folder / file.name, partial / file.name)
                os.chmod(partial / file.name, 0o600)
                if _file_digest(partial / file.name) != file.sha256:
                    raise OSError(5, "the copy differs from the backup")
            for file in backup.files:
                (partial / file.name).rename(data_folder / file.name)
            _sync_folder(data_folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise BackupFailed(
            f"The backup was not restored: {error.strerror}.",
            where=f"{folder} to {data_folder}",
            fix="name a folder that this user can write to, with room for the copy.",
        ) from error
    return backup
