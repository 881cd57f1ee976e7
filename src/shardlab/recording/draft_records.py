"""Steps and values while a recording is made: names, partial sums and times come at its end."""

from __future__ import annotations

import dataclasses
from typing import Literal

from shardlab.collectives.call import CollectiveCall
from shardlab.recording.step_records import Frame, RecordedCollective, TakenBranch, Waiting
from shardlab.recording.value_summary import ValueSummary


@dataclasses.dataclass
class LoopRun:
    """One execution of a loop; a while loop has its length only when it is over."""

    kind: str
    line: int
    length: int | None


@dataclasses.dataclass(frozen=True)
class Scope:
    """Where the interpreter is: the call, loop, branch and phase around the next equation."""

    frames: tuple[Frame, ...] = ()
    is_library: bool = False  # inside a function of JAX: its lines are those of the first caller
    phase: Literal["forward", "backward"] = "forward"
    loop: tuple[tuple[LoopRun, int], ...] = ()
    branch: TakenBranch | None = None
    is_checked: bool = True  # whether JAX checks VMA types here
    path: tuple[int, ...] = ()  # the calls and loops around, by the identity of their equations


@dataclasses.dataclass
class DraftValue:
    """A value while the recording is made."""

    id: int
    name: str | None
    type: str
    dtype: str
    shape: tuple[int, ...]
    spec: str | None
    declared_over: tuple[str, ...] | None
    summary: ValueSummary
    n_bytes: int
    partial_over: set[str] = dataclasses.field(default_factory=set)
    disagrees: bool = False


@dataclasses.dataclass
class DraftStep:
    """A step while the recording is made."""

    scope: Scope
    frames: tuple[Frame, ...]
    region: Literal["body", "outside"]
    op: str
    reads: list[int]
    writes: list[int]
    collective: RecordedCollective | None = None
    call: CollectiveCall | None = None
    waiting: Waiting | None = None
    flops: int = 0
    n_bytes: int = 0
