"""What the web process and a worker process say to each other.

The worker's options are its argument. On its standard input the web process writes a byte when
there is something to do, and closes it to end the worker. On its standard output the worker writes
one event per line.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shardlab.sandbox.process import Level
from shardlab.server.operations.log_format import LogFormat
from shardlab.server.operations.quotas import ServerLimits

# The URL of a PostgreSQL database, which may have a password in it.
DATABASE_VARIABLE = "SHARDLAB_DATABASE"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker process runs."""

    name: str  # unique: the leases of a worker that has ended are found by it
    data_folder: str
    n_slots: int  # jobs at the same time
    minimum_level: Level
    is_local: bool = True  # submissions are in the terminal's store, not in the server's database
    catalogue: str | None = None
    log_format: LogFormat = "text"
    limits: dict[str, Any] = field(default_factory=lambda: ServerLimits().to_json())

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, text: str) -> WorkerOptions:
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class WorkerEvent:
    """Something that the web process shows or passes on.

    `ready`: programs can run, `text` is the level of the sandbox. `can_judge`: submissions can be
    judged too. `failed`: a sandbox cannot be opened, `text` says why. `changed`: the job `text` has
    changed in the database.
    """

    kind: Literal["ready", "can_judge", "failed", "changed"]
    text: str

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerEvent:
        return cls(**json.loads(line))
