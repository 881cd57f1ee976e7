"""A sandboxed process as its client sees it: limits, requests and responses, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shardlab.sandbox.frame import Frame

Level = Literal["A", "B", "C"]
# time, memory, output: a limit was reached. protocol: what it sent is no response. signal, exit: it
# ended by itself. internal: somebody else ended it, or the sandbox failed.
ExitKind = Literal["time", "memory", "output", "protocol", "signal", "exit", "internal"]


_UNTOUCHED_BYTES = 512 << 20  # a worker of JAX maps 340 MiB before it has done anything


@dataclass(frozen=True)
class ProcessLimits:
    """The resources that a sandboxed process may use."""

    wall_seconds: float = 60.0  # three times the processor time: the machine may be busy
    cpu_seconds: float = 20.0
    idle_seconds: float = 10.0  # without any use of the processor while a request is pending
    memory_bytes: int = 1 << 30
    address_bytes: int = 4 << 30
    output_bytes: int = 64 << 10
    response_bytes: int = 8 << 20
    n_files: int = 64
    n_processes: int = 128

    @property
    def data_bytes(self) -> int:
        """The private memory that a process may map, for the kernel's own limit.

        More than may be in use: stacks of threads and arenas are mapped and hardly touched.
        """
        return self.memory_bytes + _UNTOUCHED_BYTES


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
    cpu_seconds: float = 0.0


class ProcessEnded(Exception):
    """The process ended, or was ended, before it responded."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(f"{reason.kind} {reason.detail}".strip())
        self.reason = reason


class SandboxedProcess(Protocol):
    """One confined process."""

    # Called several times a second while a request is pending. What it returns is a limit that was
    # reached, in words, and ends the process; an empty text lets it run on.
    find_exceeded_budget: Callable[[], str]

    def request(self, frame: Frame) -> Frame:
        """Send a request and return its response. Raises `ProcessEnded`."""
        ...

    @property
    def output(self) -> str:
        """What the process has printed so far, truncated at the limit."""
        ...

    @property
    def cpu_seconds(self) -> float:
        """The processor time that the process has used so far."""
        ...

    @property
    def rejected_calls(self) -> Mapping[str, int]:
        """The system calls that the sandbox has rejected, and how often."""
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
    confinement: str  # what the level is made of on this machine, in words

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ForkServerConfig:
    """What one fork server loads, and the roles that it forks.

    `entry_points` maps each role to a module; a process of that role calls the module's
    `main(requests_fd, responses_fd)`. The fork server imports all of them once, and calls
    `warm_up()` of `warmup_module`, so that each fork starts with everything loaded.
    """

    entry_points: Mapping[str, str]
    warmup_module: str = ""


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """What the processes of a pool run. The sandbox itself knows none of these modules.

    Roles of different fork servers share no memory: neither addresses nor pages. A fork server is
    replaced after `max_forks` processes or `max_age_seconds`, so that what one process has learned
    about its memory is of no use for long.
    """

    fork_servers: tuple[ForkServerConfig, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_roles: tuple[str, ...] = ()  # one process of each is forked ahead of its first request
    max_forks: int = 500
    max_age_seconds: float = 3600.0
