"""What a search for a fix returned: edits that are proven, and those that were tried in vain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Fix:
    """An edit of the user's source after which the program is right, and on what that was shown.

    `text` replaces the bytes from `start` to `end` of the file. The digests are SHA-256 of the file
    before and after, so that a file that has changed since then is not overwritten.
    """

    what: str
    family: str
    file: str
    line: int
    diff: str
    start: int
    end: int
    text: str
    digest: str
    new_digest: str
    meshes: tuple[str, ...]  # on which it agrees with one device, or with the reference
    n_inputs: int  # different inputs for which it agrees
    has_gradients: bool  # gradients were compared too
    remaining: tuple[str, ...] = ()  # codes of the errors and warnings that `check` still has

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fix:
        remaining = tuple(data.get("remaining", ()))
        return cls(**{**data, "meshes": tuple(data["meshes"]), "remaining": remaining})


@dataclass(frozen=True, kw_only=True)
class RejectedEdit:
    """An edit that was tried and is not offered, with the reason."""

    what: str
    family: str
    line: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class FixSearch:
    """The result of `check --fix`: proven fixes, smallest first, and every edit that failed."""

    fixes: tuple[Fix, ...] = ()
    rejected: tuple[RejectedEdit, ...] = ()
    note: str = ""  # why nothing was tried, or why the search ended early

    @property
    def n_tried(self) -> int:
        return len(self.fixes) + len(self.rejected)

    def to_json(self) -> dict[str, Any]:
        return {
            "fixes": [fix.to_json() for fix in self.fixes],
            "rejected": [asdict(item) for item in self.rejected],
            "note": self.note,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FixSearch:
        return cls(
            fixes=tuple(map(Fix.from_json, data["fixes"])),
            rejected=tuple(RejectedEdit(**item) for item in data["rejected"]),
            note=data["note"],
        )
