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
    by their position in the operand, which is split into `count_chunks` chunks. None is the full
    operand.
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
    op: str,
    group_size: int,
    pairs: Sequence[tuple[int, int]] | None = None,
    n_elements: int | None = None,
) -> tuple[RingStep, ...]:
    """Return the steps of a collective among devices 0 to group_size - 1.

    `pairs` are the (sender, receiver) pairs of a ppermute; by default each sends to the next.
    `n_elements` are those of the operand on one device; by default there are enough for one chunk
    per device.

    >>> for step in ring_steps("psum", 3, n_elements=1):
    ...     print(*step)
    1→2 +#0
    2→0 +#0
    0→1 #0
    1→2 #0
    """
    if group_size <= 1 and pairs is None:
        return ()
    if pairs is None:
        pairs = [(device, (device + 1) % group_size) for device in range(group_size)]
    schedule = schedule_of(op)
    n_steps = count_steps(schedule, group_size)
    n_chunks = count_chunks(schedule, group_size, n_elements)
    return tuple(ring_step(schedule, group_size, step, pairs, n_chunks) for step in range(n_steps))


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


def count_chunks(schedule: Schedule, group_size: int, n_elements: int | None = None) -> int:
    """Return the number of chunks of an operand.

    An element is never split: an all-reduce of fewer elements than devices has one chunk per
    element, and some devices send nothing in a step. Other collectives have one chunk per device by
    definition, or send the full operand.

    >>> count_chunks("all_reduce", 8, 100), count_chunks("all_reduce", 8, 3)
    (8, 3)
    """
    if schedule in ("pairs", "broadcast"):
        return 1
    if schedule != "all_reduce" or n_elements is None:
        return group_size
    return max(1, min(n_elements, group_size))


def ring_step(
    schedule: Schedule,
    n: int,
    step: int,
    pairs: Sequence[tuple[int, int]] = (),
    n_chunks: int | None = None,
) -> RingStep:
    """Return one step of an algorithm, the first is 0, without those before it.

    >>> print(*ring_step("all_reduce", 4, 5))
    0→1 #2 1→2 #3 2→3 #0 3→0 #1
    >>> print(*ring_step("all_reduce", 4, 5, n_chunks=1))
    2→3 #0
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
        return _around_ring(n, step, n_chunks, is_added=False)
    # Partial sums travel around the ring; chunk i ends on device i.
    return _around_ring(n, step + 1, n_chunks, is_added=True)


def _around_ring(n: int, behind: int, n_chunks: int | None, *, is_added: bool) -> RingStep:
    return tuple(
        Send(
            sender=device,
            receiver=(device + 1) % n,
            chunk=(device - behind) % n,
            is_added=is_added,
        )
        for device in range(n)
        if n_chunks is None or (device - behind) % n < n_chunks
    )


def chunk_fraction(op: str, group_size: int, n_elements: int | None = None) -> Fraction:
    """Return the fraction of the operand that one chunk is."""
    if op == "all_gather":  # its chunks are the operands of the devices
        return Fraction(1)
    return Fraction(1, count_chunks(schedule_of(op), group_size, n_elements))
