"""How much the server stores, and whether there is room for more."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from shardlab._text.units import bytes_text
from shardlab.server.database.engine import Database
from shardlab.server.operations.quotas import DiskLimits

_CACHE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class StorageFigures:
    """The disk of the data folder, and what the server stores."""

    free_bytes: int
    total_bytes: int
    stored_bytes: int  # the files of the data folder and, with PostgreSQL, its database


class StorageFull(Exception):
    """A recording or an upload has no room; submissions go on."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Storage:
    """Measures the storage, at most once in some seconds."""

    def __init__(self, data_folder: Path, database: Database, limits: DiskLimits) -> None:
        self._folder, self._database, self.limits = data_folder, database, limits
        self._lock = threading.Lock()
        self._measured = float("-inf")
        self._figures = StorageFigures(free_bytes=0, total_bytes=0, stored_bytes=0)

    def measure(self) -> StorageFigures:
        """Return the figures, not older than a few seconds."""
        with self._lock:
            if time.monotonic() - self._measured > _CACHE_SECONDS:
                usage = shutil.disk_usage(self._folder)
                self._figures = StorageFigures(
                    free_bytes=usage.free,
                    total_bytes=usage.total,
                    stored_bytes=_folder_bytes(self._folder) + self._database_bytes(),
                )
                self._measured = time.monotonic()
            return self._figures

    def check_room(self) -> None:
        """Raise `StorageFull` if nothing large may be stored."""
        if reason := self.explain_refusal():
            raise StorageFull(reason)

    def explain_refusal(self) -> str:
        """Return why nothing large may be stored; empty if it may."""
        figures = self.measure()
        consequence = "It stores no new recordings or catalogues. Submissions go on."
        if figures.free_bytes < self.limits.min_free_bytes:
            return f"The disk of this server is nearly full. {consequence}"
        limit = self.limits.max_stored_bytes
        if limit and figures.stored_bytes > limit:
            used = f"{bytes_text(figures.stored_bytes)} of {bytes_text(limit)}"
            return f"This server has used {used}. {consequence}"
        return ""

    def _database_bytes(self) -> int:
        if self._database.engine.dialect.name != "postgresql":
            return 0  # its files are in the data folder
        with self._database.read() as session:
            size = session.execute(text("SELECT pg_database_size(current_database())"))
            return int(size.scalar_one())


def _folder_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # removed in this moment
                continue
    return total
