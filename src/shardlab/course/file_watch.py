"""A file that a person saves: what it holds, each time that it has become something else."""

from __future__ import annotations

import hashlib
from pathlib import Path

Look = tuple[int, int, int]
# Looks in a row that find nothing, before a file counts as gone: a save may take its place in two
# steps.
_PATIENCE = 10


class FileWatch:
    """Looks at a file when it is asked to, and says when its contents have changed.

    A change counts once two looks in a row find the same file: editors empty a file before they
    write it, or put another in its place, and half of an answer is none. Looking needs no help
    from the system, so that it works on network disks and in containers too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._judged: Look | None = self._look()
        self._last: Look | None = self._judged
        self._digest = self._hash()
        self._n_missed = 0

    def has_changed(self) -> bool:
        """Look once; True the first time that new contents have come to rest."""
        look = self._look()
        self._n_missed = self._n_missed + 1 if look is None else 0
        is_at_rest, self._last = look == self._last, look
        if look is None or look == self._judged or not is_at_rest:
            return False
        digest = self._hash()
        if self._look() != look:  # it was written meanwhile
            return False
        self._judged = look
        is_new, self._digest = digest != self._digest, digest
        return is_new

    @property
    def is_just_gone(self) -> bool:
        """Say whether the last look is the one at which the file counts as gone."""
        return self._n_missed == _PATIENCE

    def _look(self) -> Look | None:
        try:
            found = self.path.stat()
        except OSError:  # between the two halves of an atomic save, or gone
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _hash(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError:
            return b""
