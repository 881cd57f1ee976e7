"""What the engine has seen of a program, before anybody decides whether it is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlab.collectives.call import CollectiveCall
from shardlab.findings.source import SourceLocation
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one device holds, as the compiler counts it; `compiler` says whose figures these are."""

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
    """A pattern seen in the program that a check may make a finding of.

    `facts` holds what the check's words need; which kinds there are is said where they are made
    (`engine/clues.py`).
    """

    kind: str
    source: SourceLocation
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The calls, clues and figures of one program on one mesh."""

    program: str
    mesh: MeshSizes
    calls: tuple[CollectiveCall, ...] = ()
    clues: tuple[ProgramPattern, ...] = ()
    flops: int | None = None  # of one device, loops multiplied; None where a count is unknown
    memory: Memory | None = None
    notes: tuple[str, ...] = ()  # assumptions and what was left out, for the person to read
    n_shard_maps: int = 0
    n_unchecked: int = 0  # shard_maps among them with check_vma=False
