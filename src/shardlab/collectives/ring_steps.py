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
from typing import Literal

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
Schedule = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "pairs"]


def ring_steps(
    op: str, group_size: int, pairs: Sequence[tuple[int, int]] | None = None
) -> tuple[RingStep, ...]:
    """Return the steps of a collective among devices 0 to group_size - 1.

    `pairs` are the (sender, receiver) pairs of a ppermute; by default each sends to the next.
    """
    if group_size <= 1 and pairs is None:
        return ()
    if pairs is None:
        pairs = [(device, (device + 1) % group_size) for device in range(group_size)]
    schedule = schedule_of(op)
    n_steps = count_steps(schedule, group_size)
    return tuple(ring_step(schedule, group_size, step, pairs) for step in range(n_steps))


def schedule_of(op: str) -> Schedule:
    """Return the algorithm of an operation of JAX; what is not known sends in pairs."""
    # The ring all-reduce of Patarasu and Yuan (2009): reduce-scatter, then all-gather.
    if op in REDUCTIONS:
        return "all_reduce"
    return _SCHEDULES.get(op, "pairs")


_SCHEDULES: dict[str, Schedule] = {
    "psum_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "all_to_all": "all_to_all",
    "ragged_all_to_all": "all_to_all",
    "pbroadcast": "broadcast",
}


def count_steps(schedule: Schedule, group_size: int) -> int:
    """Return the number of steps of an algorithm.

    >>> count_steps("all_reduce", 64), count_steps("all_gather", 64), count_steps("pairs", 64)
    (126, 63, 1)
    """
    if schedule == "pairs":
        return 1
    return max(0, group_size - 1) * (2 if schedule == "all_reduce" else 1)


def ring_step(
    schedule: Schedule, n: int, step: int, pairs: Sequence[tuple[int, int]] = ()
) -> RingStep:
    """Return one step of an algorithm, the first is 0, without those before it.

    >>> print(*ring_step("all_reduce", 4, 5))
    0→1 #2 1→2 #3 2→3 #0 3→0 #1
    """
    if schedule == "pairs":
        return tuple(
            Send(sender=sender, receiver=receiver, chunk=None) for sender, receiver in pairs
        )
    if schedule == "broadcast":
        return (Send(sender=step, receiver=step + 1, chunk=None),)
    if schedule == "all_to_all":
        # In step k each device sends to the device k positions ahead.
        ahead = [(device + step + 1) % n for device in range(n)]
        return tuple(
            Send(sender=device, receiver=receiver, chunk=receiver)
            for device, receiver in enumerate(ahead)
        )
    if schedule == "all_gather" or step >= n - 1:
        # Each chunk travels once around the ring, starting at the device that has it.
        step -= n - 1 if schedule == "all_reduce" else 0
        return _around_ring(n, step, is_added=False)
    # Partial sums travel around the ring; chunk i ends on device i.
    return _around_ring(n, step + 1, is_added=True)


def _around_ring(n: int, behind: int, *, is_added: bool) -> RingStep:
    return tuple(
        Send(
            sender=device,
            receiver=(device + 1) % n,
            chunk=(device - behind) % n,
            is_added=is_added,
        )
        for device in range(n)
    )


def chunk_fraction(op: str, group_size: int) -> Fraction:
    """Return the fraction of the operand that one chunk is."""
    is_unsplit = op in ("all_gather", "pbroadcast", "ppermute")
    return Fraction(1) if is_unsplit else Fraction(1, group_size)
