"""The messages between the launcher and the processes of a launch: one JSON object per line.

The launcher sends one `LaunchJob`. A process sends an `Arrival` when it is connected, a `Status` a
second and at each change, the `KnownCollectives` of each program that it compiles, and at the end a
`ProcessRecord` or a `ProcessFailure`. Under another launcher the same messages are values of
jax.distributed's key-value store (`joined_cluster.py`).

>>> encode_message(Arrival(host="node7", pid=12, jax_version="0.10.2"))
'{"version": 1, "kind": "arrival", "host": "node7", "pid": 12, "jax_version": "0.10.2"}'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shardlab.cluster.records import ProcessRecord, SimulationRecord
from shardlab.execution.messages import Failure, MessageError, short_text
from shardlab.execution.target import Target

VERSION = 1

# `starting`: Python and JAX load; `connecting`: in jax.distributed.initialize; `running`: the
# program's own lines; `executing`: in a compiled program; `finished`: the program has ended.
Phase = Literal["starting", "connecting", "running", "compiling", "executing", "finished"]


@dataclass(frozen=True, kw_only=True)
class LaunchJob:
    """What each process runs, and which one it is."""

    target: Target
    args: tuple[str, ...] = ()
    args_from: str | None = None
    mesh: str | None = None
    steps: int = 1  # calls of a function
    process: int = 0
    n_processes: int = 1
    coordinator: str | None = None  # host:port; None where JAX detects the cluster
    is_loopback: bool = False
    devices_per_process: int | None = None  # of a CPU
    platform: str | None = None
    max_shard_elements: int = 2**16
    # Of a simulation: what it compiles and traces besides running the program.
    has_collectives: bool = True
    has_traces: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LaunchJob:
        return cls(**{**data, "args": tuple(data["args"]), "target": Target(**data["target"])})

    @property
    def n_devices(self) -> int:
        return self.n_processes * (self.devices_per_process or 1)

    @property
    def command_line(self) -> str:
        """Return the command as the user typed it, for the `where` of an error."""
        return f"shardlab launch {self.target}"


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A process is connected to the others."""

    host: str
    pid: int
    jax_version: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Arrival:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a process is.

    `n_executed` counts the executions on several processes that it has completed; all processes
    must do the same ones in the same order. `idle_seconds` is how long it has neither used a
    processor nor waited for one (`activity.py`).
    """

    phase: Phase
    program: str = ""  # that it compiles or executes
    n_executed: int = 0
    line: str = ""  # of the user's program, "train.py:12 (main)"
    idle_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Status:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class KnownCollective:
    """One collective of a compiled program, for the name of a hang."""

    op: str
    mesh_axes: tuple[str, ...]
    line: str
    is_conditional: bool

    def __str__(self) -> str:
        axes = f" over {', '.join(map(repr, self.mesh_axes))}" if self.mesh_axes else ""
        return f"{self.op}{axes}{f' at {self.line}' if self.line else ''}"


@dataclass(frozen=True, kw_only=True)
class KnownCollectives:
    """The collectives of a program that a process has compiled, in the order of the program."""

    program: str
    collectives: tuple[KnownCollective, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KnownCollectives:
        calls = tuple(
            KnownCollective(**{**call, "mesh_axes": tuple(call["mesh_axes"])})
            for call in data["collectives"]
        )
        return cls(program=data["program"], collectives=calls)


@dataclass(frozen=True, kw_only=True)
class ProcessFailure:
    """The program raised in this process; it waits to be ended, so that others see no lost peer."""

    failure: Failure
    status: Status  # when it was raised

    def to_json(self) -> dict[str, Any]:
        return {"failure": self.failure.to_json(), "status": self.status.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProcessFailure:
        return cls(
            failure=Failure.from_json(data["failure"]), status=Status.from_json(data["status"])
        )


Message = (
    LaunchJob
    | Arrival
    | Status
    | KnownCollectives
    | ProcessFailure
    | ProcessRecord
    | SimulationRecord
)
_KINDS: dict[str, Any] = {
    "job": LaunchJob,
    "arrival": Arrival,
    "status": Status,
    "collectives": KnownCollectives,
    "failure": ProcessFailure,
    "record": ProcessRecord,
    "simulation": SimulationRecord,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_message(message: Message) -> str:
    """Return a message as one line of JSON, without its line break."""
    header = {"version": VERSION, "kind": _NAMES[type(message)]}
    return json.dumps({**header, **message.to_json()}, default=str)


def decode_message(line: str | bytes) -> Message:
    """Return the message of a line. Raises `MessageError`."""
    try:
        data = json.loads(line)
        version, kind = data.pop("version"), _KINDS[data.pop("kind")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MessageError(f"not a message: {short_text(error)}") from None
    if version != VERSION:
        raise MessageError(f"a message of version {version!r:.20}; this is version {VERSION}")
    try:
        message: Message = kind.from_json(data)
    except Exception as error:  # a program may write to the channel
        name = type(error).__name__
        raise MessageError(f"an invalid {_NAMES[kind]}: {name}: {short_text(error)}") from None
    return message
