"""Notices when the user saves a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

FileState = tuple[int, int, int]  # modification time, size, inode
# Polls in a row without the file before it counts as deleted: editors may rename the old file away
# before they write the new one.
_POLLS_UNTIL_DELETED = 10


class FileWatch:
    """Polls a file, and reports when its contents have changed.

    A change counts once two polls in a row find the same state: editors truncate a file before they
    write it, or replace it, and half a file must not be judged. Polling, unlike inotify, also works
    on network disks and in containers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reported_state = self._read_state()
        self._last_state = self._reported_state
        self._digest = self._hash_file()
        self._n_missing = 0
        self.was_saved_unchanged = False  # at the last poll

    def has_changed(self) -> bool:
        """Poll once; True the first time that new contents are stable."""
        state = self._read_state()
        self._n_missing = self._n_missing + 1 if state is None else 0
        self.was_saved_unchanged = False
        is_stable, self._last_state = state == self._last_state, state
        if state is None or state == self._reported_state or not is_stable:
            return False
        digest = self._hash_file()
        if self._read_state() != state:  # it was written while it was hashed
            return False
        self._reported_state = state
        is_new, self._digest = digest != self._digest, digest
        self.was_saved_unchanged = not is_new
        return is_new

    @property
    def was_deleted(self) -> bool:
        """Return whether the last poll is the one after which the file counts as deleted."""
        return self._n_missing == _POLLS_UNTIL_DELETED

    def _read_state(self) -> FileState | None:
        try:
            status = self.path.stat()
        except OSError:  # between the two steps of an atomic save, or deleted
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _hash_file(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError:
            return b""
