"""A sandboxed process as its client sees it: limits, requests and responses, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shardlab.sandbox.frame import Frame

Level = Literal["A", "B", "C"]
# time, memory, output: a limit was reached. protocol: what it sent is no response. signal, exit: it
# ended by itself. internal: somebody else ended it, or the sandbox failed.
ExitKind = Literal["time", "memory", "output", "protocol", "signal", "exit", "internal"]


@dataclass(frozen=True)
class ProcessLimits:
    """The resources that a sandboxed process may use."""

    wall_seconds: float = 60.0  # three times the processor time: the machine may be busy
    cpu_seconds: float = 20.0
    idle_seconds: float = 10.0  # without any use of the processor while a request is pending
    memory_bytes: int = 1 << 30
    address_bytes: int = 4 << 30
    data_bytes: int = 1536 << 20
    output_bytes: int = 64 << 10
    response_bytes: int = 8 << 20
    n_files: int = 64
    n_processes: int = 128


@dataclass(frozen=True, kw_only=True)
class ExitReason:
    """How a sandboxed process ended."""

    kind: ExitKind
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    peak_bytes: int = 0
    idle_seconds: float = 0.0  # since the process last used the processor
    is_self_inflicted: bool = False  # the process itself is the only one that can have caused it


class ProcessEnded(Exception):
    """The process ended, or was ended, before it responded."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(f"{reason.kind} {reason.detail}".strip())
        self.reason = reason


class SandboxedProcess(Protocol):
    """One confined process."""

    def request(self, frame: Frame) -> Frame:
        """Send a request and return its response. Raises `ProcessEnded`."""
        ...

    @property
    def output(self) -> str:
        """What the process has printed so far, truncated at the limit."""
        ...

    def close(self) -> None:
        """End the process and everything that it started."""
        ...

    def abort(self) -> None:
        """End the process from another thread; a pending request raises `ProcessEnded`."""
        ...


class SandboxPool(Protocol):
    """Starts sandboxed processes."""

    level: Level

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """What the processes of a pool run. The sandbox itself knows none of these modules.

    `entry_points` maps each role to a module; a process of that role calls the module's
    `main(requests_fd, responses_fd)`. The fork server imports all of them once, and calls
    `warm_up()` of `warmup_module`, so that each fork starts with everything loaded.
    """

    entry_points: Mapping[str, str]
    warmup_module: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_roles: tuple[str, ...] = ()  # one process of each is forked ahead of its first request
