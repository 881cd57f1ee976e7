"""What a process of the server runs: the versions that a web process and its workers must share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardlab import __version__
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.judge.judge_version import jax_version, judge_version

_IGNORED = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})


@dataclass(frozen=True, kw_only=True)
class Release:
    """Versions, and the digest of the catalogue that submissions are judged with."""

    shardlab_version: str
    jax_version: str
    judge_version: str
    catalogue_digest: str

    def list_differences(self, expected: Release) -> list[str]:
        """Return what differs so that verdicts could, in words."""
        pairs = (
            ("JAX", self.jax_version, expected.jax_version),
            ("the judge", self.judge_version, expected.judge_version),
            ("the catalogue", self.catalogue_digest[:12], expected.catalogue_digest[:12]),
        )
        return [
            f"{name} {here} here, {there} on the server"
            for name, here, there in pairs
            if here != there
        ]


def this_release(catalogue: str | None = None) -> Release:
    """Return what this process runs."""
    return Release(
        shardlab_version=__version__,
        jax_version=jax_version(),
        judge_version=judge_version(),
        catalogue_digest=catalogue_digest(
            BUILT_IN_CATALOGUE if catalogue is None else Path(catalogue).resolve()
        ),
    )


@cache
def catalogue_digest(folder: Path) -> str:
    """Return the SHA-256 of the names and contents of all files of a catalogue."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if _IGNORED.intersection(name.parts) or path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        # With lengths, so that no two catalogues have the same text.
        digest.update(f"{name.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
