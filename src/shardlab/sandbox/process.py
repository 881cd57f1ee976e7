"""A confined process as the judge sees it: requests in, answers out, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from shardlab.sandbox.frame import Frame

Role = Literal["author", "runner"]
Level = Literal["A", "B", "C"]


@dataclass(frozen=True)
class Limits:
    """What a guest may take."""

    wall_seconds: float = 60.0  # three times the other: a busy machine is not the answer's doing
    cpu_seconds: float = 20.0
    idle_seconds: float = 10.0  # of waiting for itself, with no use of the processor
    memory_bytes: int = 1 << 30
    address_bytes: int = 4 << 30
    data_bytes: int = 1536 << 20
    output_bytes: int = 64 << 10
    answer_bytes: int = 8 << 20
    n_files: int = 64
    n_processes: int = 128


@dataclass(frozen=True, kw_only=True)
class ExitReason:
    """How a guest ended: `why` is one of time, memory, output, frame, signal, exit."""

    why: str
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    peak_bytes: int = 0
    idle_seconds: float = 0.0  # since the processor last worked for it
    is_own: bool = False  # nobody but the guest itself can have brought it about


class ProcessEnded(Exception):
    """The guest ended, or was ended, before it answered."""

    def __init__(self, ending: ExitReason) -> None:
        super().__init__(f"{ending.why} {ending.detail}".strip())
        self.ending = ending


class SandboxedProcess(Protocol):
    """One confined process."""

    def ask(self, request: Frame) -> Frame:
        """Send a request and return its answer. Raises `ProcessEnded`."""
        ...

    @property
    def output(self) -> str:
        """What the process has printed so far, cut at the limit."""
        ...

    def close(self) -> None:
        """End the process and all it started."""
        ...


class SandboxPool(Protocol):
    """Where guests come from: a fork server at level A and B, plain processes at C."""

    level: Level

    def guest(self, role: Role, limits: Limits) -> SandboxedProcess: ...

    def close(self) -> None: ...
