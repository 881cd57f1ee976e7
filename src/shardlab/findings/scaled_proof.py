"""A large mesh that was checked on scaled-down meshes: what had to hold for it, and what did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.findings.source import SourceLocation


@dataclass(frozen=True, kw_only=True)
class Obligation:
    """One condition under which a result on small meshes holds on the full mesh."""

    name: str
    holds: bool
    what: str  # what was checked, or why it does not hold
    where: SourceLocation | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "holds": self.holds,
            "what": self.what,
            "where": self.where.to_json() if self.where else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Obligation:
        where = SourceLocation.from_json(data["where"]) if data["where"] else None
        return cls(name=data["name"], holds=data["holds"], what=data["what"], where=where)


@dataclass(frozen=True, kw_only=True)
class ScaledProof:
    """The obligations of one mesh that was not run."""

    mesh: str
    reason: str  # why the mesh itself was not run
    scaled_meshes: tuple[str, ...] = ()
    obligations: tuple[Obligation, ...] = ()

    @property
    def carries_over(self) -> bool:
        """Return whether every obligation holds."""
        return bool(self.obligations) and all(item.holds for item in self.obligations)

    def to_json(self) -> dict[str, Any]:
        return {
            "mesh": self.mesh,
            "reason": self.reason,
            "scaled_meshes": list(self.scaled_meshes),
            "carries_over": self.carries_over,
            "obligations": [item.to_json() for item in self.obligations],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ScaledProof:
        return cls(
            mesh=data["mesh"],
            reason=data["reason"],
            scaled_meshes=tuple(data["scaled_meshes"]),
            obligations=tuple(map(Obligation.from_json, data["obligations"])),
        )
