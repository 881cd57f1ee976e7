"""One collective call of a program, and the branches and loops around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation

Phase = Literal["forward", "backward", "recompute"]
Origin = Literal["program", "compiler"]


@dataclass(frozen=True, kw_only=True)
class ControlScope:
    """A loop or a branch around a call.

    `varies` names the mesh axes over which the predicate of a cond, or the condition of a while,
    differs between devices; empty if all devices take the same branch.
    """

    kind: Literal["scan", "while", "cond"]
    source: SourceLocation
    id: int  # the same for all calls in one loop or cond
    length: int | None = None  # of a scan; None for a while, whose trip count is unknown
    branch: int | None = None  # of a cond
    n_branches: int | None = None
    varies: tuple[str, ...] = ()
    predicate: SourceLocation | None = None  # the line that computes the predicate

    def branch_name(self, branch: int) -> str:
        """Return the name of a branch: its number, and for two branches true or false."""
        if self.n_branches != 2:
            return f"branch {branch}"
        return f"branch {branch} ({'true' if branch else 'false'})"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "source": self.source.to_json(),
            "id": self.id,
            "length": self.length,
            "branch": self.branch,
            "n_branches": self.n_branches,
            "varies": list(self.varies),
            "predicate": self.predicate.to_json() if self.predicate else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ControlScope:
        predicate = data["predicate"]
        return cls(
            kind=data["kind"],
            source=SourceLocation.from_json(data["source"]),
            id=data["id"],
            length=data["length"],
            branch=data["branch"],
            n_branches=data["n_branches"],
            varies=tuple(data["varies"]),
            predicate=SourceLocation.from_json(predicate) if predicate else None,
        )


@dataclass(frozen=True, kw_only=True)
class CollectiveCall:
    """One collective, as each device calls it.

    `shape` and `payload_bytes` are of the operand on one device; `wire_bytes` is what one device
    sends in one execution, by the formula of `collectives/wire.py`. `count` is the number of
    executions, None inside a while loop.
    """

    op: str  # JAX's name: psum, pmax, all_gather, psum_scatter, all_to_all, ppermute, ...
    mesh_axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    payload_bytes: int
    wire_bytes: int
    count: int | None
    phase: Phase
    source: SourceLocation = UNKNOWN_LOCATION
    group_size: int = 1  # devices in one group
    out_shape: tuple[int, ...] = ()
    varies: tuple[str, ...] = ()  # mesh axes over which the operand differs between devices
    within: tuple[ControlScope, ...] = ()  # outermost first
    origin: Origin = "program"
    # Parameters of some operations: dimension, permutation pairs, axis_index_groups.
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_wire_bytes(self) -> int | None:
        """The bytes that one device sends over all executions; None if the count is unknown."""
        return None if self.count is None else self.count * self.wire_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "mesh_axes": list(self.mesh_axes),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "payload_bytes": self.payload_bytes,
            "wire_bytes": self.wire_bytes,
            "count": self.count,
            "phase": self.phase,
            "source": self.source.to_json(),
            "group_size": self.group_size,
            "out_shape": list(self.out_shape),
            "varies": list(self.varies),
            "within": [scope.to_json() for scope in self.within],
            "origin": self.origin,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CollectiveCall:
        return cls(
            op=data["op"],
            mesh_axes=tuple(data["mesh_axes"]),
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            payload_bytes=data["payload_bytes"],
            wire_bytes=data["wire_bytes"],
            count=data["count"],
            phase=data["phase"],
            source=SourceLocation.from_json(data["source"]),
            group_size=data["group_size"],
            out_shape=tuple(data["out_shape"]),
            varies=tuple(data["varies"]),
            within=tuple(map(ControlScope.from_json, data["within"])),
            origin=data["origin"],
            details=data["details"],
        )
