"""The steps of one collective: who sends what to whom, in a ring or in pairs.

>>> for step in ring_steps("all_gather", 3):
...     print(*step)
0→1 #0 1→2 #1 2→0 #2
0→1 #2 1→2 #0 2→0 #1

These are the plain algorithms whose bytes `cost/wire.py` counts. A network may go both ways round
at once or by a tree: the same bytes in fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardlab.collectives.wire import REDUCTIONS


@dataclass(frozen=True, kw_only=True)
class Send:
    """One device sends one part to another, which adds it to its own or keeps it.

    Parts are numbered: of an all-gather by the device they come from, else by their place in the
    operand cut in as many parts as there are devices. None is the whole operand.
    """

    sender: int
    receiver: int
    part: int | None
    is_added: bool = False

    def __str__(self) -> str:
        what = "all" if self.part is None else f"#{self.part}"
        return f"{self.sender}→{self.receiver} {'+' if self.is_added else ''}{what}"


Step = tuple[Send, ...]


def ring_steps(
    op: str, group_size: int, pairs: Sequence[tuple[int, int]] | None = None
) -> tuple[Step, ...]:
    """Return the steps of a collective among devices 0 to group_size - 1.

    `pairs` are those of a ppermute, sender and receiver; without them each sends to the next.
    """
    if group_size <= 1 and pairs is None:
        return ()
    if op in REDUCTIONS:
        return (*_scatter(group_size), *_gather(group_size))
    if op == "psum_scatter":
        return _scatter(group_size)
    if op == "all_gather":
        return _gather(group_size)
    if op == "all_to_all":
        return _pairwise(group_size)
    if op == "pbroadcast":
        return tuple((Send(sender=at, receiver=at + 1, part=None),) for at in range(group_size - 1))
    if pairs is None:
        pairs = [(at, (at + 1) % group_size) for at in range(group_size)]
    return (tuple(Send(sender=sender, receiver=receiver, part=None) for sender, receiver in pairs),)


def chunk_share(op: str, group_size: int) -> Fraction:
    """Return which share of the operand one part is."""
    whole = op in ("all_gather", "pbroadcast", "ppermute")
    return Fraction(1) if whole else Fraction(1, group_size)


def _gather(n: int) -> tuple[Step, ...]:
    """Each part goes once round the ring, from the device that has it."""
    return tuple(
        tuple(Send(sender=at, receiver=(at + 1) % n, part=(at - turn) % n) for at in range(n))
        for turn in range(n - 1)
    )


def _scatter(n: int) -> tuple[Step, ...]:
    """Each part's sum goes round the ring, growing, and ends on the device of its number."""
    return tuple(
        tuple(
            Send(sender=at, receiver=(at + 1) % n, part=(at - turn - 1) % n, is_added=True)
            for at in range(n)
        )
        for turn in range(n - 1)
    )


def _pairwise(n: int) -> tuple[Step, ...]:
    """In step k each device sends to the one k places on."""
    return tuple(
        tuple(Send(sender=at, receiver=(at + turn) % n, part=(at + turn) % n) for at in range(n))
        for turn in range(1, n)
    )
