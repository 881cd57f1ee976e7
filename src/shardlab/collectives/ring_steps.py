"""The steps of one collective: which device sends which chunk to whom, on a ring or in pairs.

>>> for step in ring_steps("all_gather", 3):
...     print(*step)
0→1 #0 1→2 #1 2→0 #2
0→1 #2 1→2 #0 2→0 #1

These are the basic algorithms whose bytes `collectives/wire.py` counts. A network may use both
directions of the ring at once, or a tree: the same bytes in fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardlab.collectives.wire import REDUCTIONS


@dataclass(frozen=True, kw_only=True)
class Send:
    """One device sends one chunk to another, which adds it to its own chunk or stores it.

    Chunks of an all-gather are numbered by the device they come from; chunks of other collectives
    by their position in the operand, split into as many chunks as there are devices. None is the
    full operand.
    """

    sender: int
    receiver: int
    chunk: int | None
    is_added: bool = False

    def __str__(self) -> str:
        chunk = "all" if self.chunk is None else f"#{self.chunk}"
        return f"{self.sender}→{self.receiver} {'+' if self.is_added else ''}{chunk}"


RingStep = tuple[Send, ...]


def ring_steps(
    op: str, group_size: int, pairs: Sequence[tuple[int, int]] | None = None
) -> tuple[RingStep, ...]:
    """Return the steps of a collective among devices 0 to group_size - 1.

    `pairs` are the (sender, receiver) pairs of a ppermute; by default each sends to the next.
    """
    if group_size <= 1 and pairs is None:
        return ()
    # The ring all-reduce of Patarasu and Yuan (2009): reduce-scatter, then all-gather.
    if op in REDUCTIONS:
        return (*_reduce_scatter_steps(group_size), *_all_gather_steps(group_size))
    if op == "psum_scatter":
        return _reduce_scatter_steps(group_size)
    if op == "all_gather":
        return _all_gather_steps(group_size)
    if op == "all_to_all":
        return _all_to_all_steps(group_size)
    if op == "pbroadcast":
        return tuple(
            (Send(sender=device, receiver=device + 1, chunk=None),)
            for device in range(group_size - 1)
        )
    if pairs is None:
        pairs = [(device, (device + 1) % group_size) for device in range(group_size)]
    return (
        tuple(Send(sender=sender, receiver=receiver, chunk=None) for sender, receiver in pairs),
    )


def chunk_fraction(op: str, group_size: int) -> Fraction:
    """Return the fraction of the operand that one chunk is."""
    is_unsplit = op in ("all_gather", "pbroadcast", "ppermute")
    return Fraction(1) if is_unsplit else Fraction(1, group_size)


def _all_gather_steps(n: int) -> tuple[RingStep, ...]:
    """Each chunk travels once around the ring, starting at the device that has it."""
    return tuple(
        tuple(
            Send(sender=device, receiver=(device + 1) % n, chunk=(device - step) % n)
            for device in range(n)
        )
        for step in range(n - 1)
    )


def _reduce_scatter_steps(n: int) -> tuple[RingStep, ...]:
    """Partial sums travel around the ring; chunk i ends on device i."""
    return tuple(
        tuple(
            Send(
                sender=device,
                receiver=(device + 1) % n,
                chunk=(device - step - 1) % n,
                is_added=True,
            )
            for device in range(n)
        )
        for step in range(n - 1)
    )


def _all_to_all_steps(n: int) -> tuple[RingStep, ...]:
    """In step k each device sends to the device k positions ahead."""
    return tuple(
        tuple(
            Send(sender=device, receiver=(device + step) % n, chunk=(device + step) % n)
            for device in range(n)
        )
        for step in range(1, n)
    )
