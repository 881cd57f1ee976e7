"""The time of one collective, with its formula and network."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The seconds of one execution, their formula, and the network that limits it."""

    seconds: float
    formula: str
    network: str


def gathered_bytes(op: str, payload_bytes: int, group_size: int) -> int:
    """Return V: the gathered array of an all-gather, the unreduced array of the others.

    >>> gathered_bytes("all_gather", 100, 4), gathered_bytes("psum", 100, 4)
    (400, 100)
    """
    return payload_bytes * group_size if op == "all_gather" else payload_bytes
