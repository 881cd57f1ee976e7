"""The messages between the command line and the process that runs the user's program.

One JSON object per line. The client sends one `Job`; the worker sends any number of `Progress`
messages and then either a `WorkerResult` or a `Failure`. Every message has a version and a kind, so
that a worker of another installation is reported instead of misread.

>>> encode_message(Progress(step="loading JAX"))
'{"version": 1, "kind": "progress", "step": "loading JAX"}'
>>> decode_message('{"version": 1, "kind": "progress", "step": "loading JAX"}')
Progress(step='loading JAX')
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shardlab._text.printable import printable_text
from shardlab.autoshard.answer import Autosharding
from shardlab.errors import LabError
from shardlab.execution.target import Target
from shardlab.findings.report import Report
from shardlab.planner.model import Model
from shardlab.planner.models.model_json import model_from_json, model_to_json
from shardlab.recording.recording import Recording
from shardlab.tracing.trace import Trace

VERSION = 1

Command = Literal["autoshard", "check", "launch", "plan", "record", "trace"]


class MessageError(ValueError):
    """A line that is not a message of this version."""


@dataclass(frozen=True, kw_only=True)
class AutoshardOptions:
    """What `shardlab autoshard` searches for, and for how long."""

    memory: str | None = None  # of a device
    budget: float = 30.0  # seconds
    seed: int = 0
    prove: bool = True
    proof_limit: float = 120.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Job:
    """One request: what to do with which function or script, and under which memory limit."""

    command: Command
    target: Target
    args: tuple[str, ...] = ()  # shapes of a function, or a script's own arguments
    args_from: str | None = None  # name of a tuple or function in the file that gives arguments
    meshes: tuple[str, ...] = ()
    devices: int | None = None
    topology: str | None = None
    quick: bool = False  # `trace`: the collectives of Shardy's passes, without a compiler
    run: bool = True
    scaled: bool | None = None  # `check`: scale meshes down always, never, or if they are too large
    hardware: str | None = None  # the chip of the times in a recording
    program: str | None = None  # of a script: the name of the program to record
    reference: Target | None = None  # a function whose results are the right ones
    autoshard: AutoshardOptions | None = None
    fix: bool = False  # `check`: also search for an edit that fixes the program
    memory_limit: int = 0  # bytes
    cpu_seconds: float = 0.0  # of one processor; 0 for no limit

    @property
    def command_line(self) -> str:
        """Return the command as the user typed it, for the `where` of an error."""
        return f"shardlab {self.command} {self.target}"

    @property
    def mesh(self) -> str | None:
        """Return the first mesh, or None without one."""
        return self.meshes[0] if self.meshes else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        # JSON has no tuples, and a frozen record should not hold lists.
        lists = {"args": tuple(data["args"]), "meshes": tuple(data["meshes"])}
        reference, autoshard = data.get("reference"), data.get("autoshard")
        options = {"autoshard": AutoshardOptions(**autoshard) if autoshard else None}
        targets = {
            "target": Target(**data["target"]),
            "reference": Target(**reference) if reference else None,
        }
        return cls(**{**data, **lists, **targets, **options})


@dataclass(frozen=True)
class Progress:
    """The step that the worker has just begun."""

    step: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Progress:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error of the worker or of the user's program, with the program's own traceback."""

    code: str
    what: str
    where: str
    fix: str
    traceback: str = ""

    @classmethod
    def of_error(cls, error: LabError, traceback: str = "") -> Failure:
        """Return the parts of an error."""
        return cls(
            code=error.code, what=error.what, where=error.where, fix=error.fix, traceback=traceback
        )

    def to_error(self) -> LabError:
        """Return the error with its original class, which decides the exit code."""
        kind = next((kind for kind in _error_classes(LabError) if kind.code == self.code), LabError)
        # Some subclasses have constructors of their own; the three parts are all that is needed.
        error = kind.__new__(kind)
        LabError.__init__(error, self.what, where=self.where, fix=self.fix)
        return error

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        return cls(**data)


def _error_classes(kind: type[LabError]) -> Iterator[type[LabError]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _error_classes(subclass)


@dataclass(frozen=True, kw_only=True)
class WorkerResult:
    """The records of a job: a report (check), traces, a recording (record), a model (plan), or
    shardings (autoshard).

    A script that fails after some of its programs ran has results and a `failure`.
    """

    report: Report | None = None
    traces: tuple[Trace, ...] = ()
    recording: Recording | None = None
    notes: tuple[str, ...] = ()
    model: Model | None = None
    autosharding: Autosharding | None = None
    failure: Failure | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "report": None if self.report is None else self.report.to_json(),
            "traces": [trace.to_json() for trace in self.traces],
            "recording": None if self.recording is None else self.recording.to_json(),
            "notes": list(self.notes),
            "model": None if self.model is None else model_to_json(self.model),
            "autosharding": None if self.autosharding is None else self.autosharding.to_json(),
            "failure": None if self.failure is None else self.failure.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerResult:
        report, model, failure = data["report"], data["model"], data["failure"]
        recording, autosharding = data["recording"], data["autosharding"]
        return cls(
            report=None if report is None else Report.from_json(report),
            traces=tuple(map(Trace.from_json, data["traces"])),
            recording=None if recording is None else Recording.from_json(recording),
            notes=tuple(data["notes"]),
            model=None if model is None else model_from_json(model),
            autosharding=None if autosharding is None else Autosharding.from_json(autosharding),
            failure=None if failure is None else Failure.from_json(failure),
        )


Message = Job | Progress | Failure | WorkerResult
_KINDS: dict[str, type[Job | Progress | Failure | WorkerResult]] = {
    "job": Job,
    "progress": Progress,
    "failure": Failure,
    "result": WorkerResult,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_message(message: Message) -> str:
    """Return a message as one line of JSON, without its line break."""
    # `default`: a program's own metadata (a model's details, say) may hold any Python value.
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
        return kind.from_json(data)
    except Exception as error:  # the program can write anything to the channel
        name = type(error).__name__
        raise MessageError(f"an invalid {_NAMES[kind]}: {name}: {short_text(error)}") from None


def short_text(error: Exception) -> str:
    return printable_text(str(error)[:200])
