"""The messages between a virtual host and the coordinator, one JSON object per line.

Arrays do not travel here: hosts exchange them as files (`shard_exchange.py`).

>>> encode_message(Reply(request=3, values=("1", "2")))
b'{"kind": "Reply", "request": 3, "values": ["1", "2"], "error": ""}\\n'
>>> decode_message(b'{"kind": "Reply", "request": 3, "values": ["1", "2"], "error": ""}')
Reply(request=3, values=('1', '2'), error='')
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Request:
    """Something that a thread of a host waits for: the coordinator answers with one `Reply`."""

    request: int  # a number for the reply, counted by the host
    operation: str = ""  # what the user called, such as "jit(step)"
    line: str = ""  # file, line and function of the program


@dataclass(frozen=True, kw_only=True)
class Meet(Request):
    """Wait until all hosts of `group` meet; each gets the `value` of all of them.

    The meetings of one channel happen in order, and hosts must bring the same `agreement`: a digest
    of the computation that they start.
    """

    channel: str
    group: tuple[int, ...]
    agreement: str = ""
    value: str = ""
    deadline: float | None = None  # seconds from now, of a barrier with a time limit


@dataclass(frozen=True, kw_only=True)
class GetKey(Request):
    """Wait until a key of the key-value store is set, at most `deadline` seconds."""

    key: str
    deadline: float | None


@dataclass(frozen=True, kw_only=True)
class StoreCall(Request):
    """A call of the key-value store that is answered at once."""

    call: str  # set, replace, try_get, dir_get, delete, increment or live
    key: str = ""
    value: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to a request; `error` is what the caller raises instead, if any."""

    request: int
    values: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Asks a host whether any of its threads could still do something."""

    number: int


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """`is_blocked`: every thread waits for a reply, or for a thread that does."""

    number: int
    is_blocked: bool


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A host has found an error that ends the run, such as replicas that differ between hosts."""

    code: str
    what: str
    where: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The program of this host has ended."""

    exit_code: int
    summary: str
    is_distributed: bool  # whether it called jax.distributed.initialize


Message = Meet | GetKey | StoreCall | Reply | Probe | ProbeAnswer | Failure | Finished
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Meet, GetKey, StoreCall, Reply, Probe, ProbeAnswer, Failure, Finished)
}


def encode_message(message: Message) -> bytes:
    fields = dataclasses.asdict(message)
    return json.dumps({"kind": type(message).__name__, **fields}).encode() + b"\n"


def decode_message(line: bytes) -> Message:
    fields = json.loads(line)
    kind = _KINDS[fields.pop("kind")]
    # JSON has no tuples, and a frozen record should not hold lists.
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    message: Message = kind(**frozen)
    return message
