"""What was observed of a program: calls, patterns, FLOPs and memory. `checks` decides on these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlab.collectives.call import CollectiveCall
from shardlab.findings.source import SourceLocation
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory per device in bytes, as a compiler reports it; `compiler` names that compiler."""

    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    compiler: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Memory:
        return cls(**data)


@dataclass(frozen=True)
class ProgramPattern:
    """A pattern in the program from which a check may make a finding.

    `facts` are the values that the finding reports; the module in `tracing/patterns/` that finds a
    kind of pattern documents its facts.
    """

    kind: str
    source: SourceLocation
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The calls, patterns and figures of one program on one mesh."""

    program: str
    mesh: MeshSizes
    calls: tuple[CollectiveCall, ...] = ()
    patterns: tuple[ProgramPattern, ...] = ()
    flops: int | None = None  # per device, times loop lengths; None if a count is unknown
    memory: Memory | None = None
    notes: tuple[str, ...] = ()  # assumptions and omissions, for the user
    n_shard_maps: int = 0
    n_unchecked: int = 0  # shard_maps among them with check_vma=False

    def patterns_of(self, kind: str) -> list[ProgramPattern]:
        """Return the patterns of one kind."""
        return [pattern for pattern in self.patterns if pattern.kind == kind]
