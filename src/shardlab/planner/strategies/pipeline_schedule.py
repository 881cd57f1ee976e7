"""Pipeline schedules: how long the stages wait for each other, and what they hold meanwhile.

>>> one_f_one_b, interleaved = parse_schedule("1f1b"), parse_schedule("interleaved:5")
>>> round(bubble_fraction(one_f_one_b, 8, 64), 3), round(bubble_fraction(interleaved, 8, 64), 3)
(0.109, 0.022)
>>> str(parse_schedule("interleaved").for_layers(16)), str(interleaved.for_layers(16))
('interleaved:8', 'interleaved:5')

1F1B (PipeDream-Flush) lets a stage wait for p - 1 microbatches of all stages before it, forward and
backward. With v groups of layers on each stage (interleaved, Narayanan et al. 2021, arXiv
2104.04473, section 2.2.2) these are v times shorter, and there is v times as much communication
between stages. Without a number the groups have two layers, as in most of NVIDIA's recipes for
NeMo. Zero-bubble schedules (Qi et al. 2023, arXiv 2401.10241) fill the wait with the
gradients of weights: a third of it remains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr

ScheduleName = Literal["1f1b", "interleaved", "zero-bubble"]
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "interleaved", "zero-bubble")
_BY_LAYERS = 0  # chunks: as many as the layers of a stage allow
_USUAL_GROUP = 2  # layers
_MAX_CHUNKS = 64
_ZERO_BUBBLE_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule:
    """A schedule, and into how many groups the layers of one stage are divided.

    `chunks` is 0 until the layers of a stage are known (`for_layers`).
    """

    name: ScheduleName = "1f1b"
    chunks: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.chunks}" if self.chunks > 1 else self.name

    def for_layers(self, n_layers: int) -> PipelineSchedule:
        """Return the schedule for a stage of that many layers, with a number of groups."""
        if self.chunks != _BY_LAYERS:
            return self
        # Groups of two layers, or the next larger equal groups; else of one layer.
        sizes = range(_USUAL_GROUP, n_layers // 2 + 1)
        size = next((size for size in sizes if n_layers % size == 0), 1)
        return replace(self, chunks=max(n_layers // size, 1))

    def in_flight(self, n_stages: int, n_microbatches: int) -> float:
        """Return the microbatches whose activations the first stage holds at once.

        Interleaving holds (p - 1) / (p v) of a microbatch per stage more (Korthikanti et al. 2022,
        arXiv 2205.05198, section 4.2.3).
        """
        held = float(min(n_stages, n_microbatches))
        if self.chunks > 1:
            held *= 1 + (n_stages - 1) / (n_stages * self.chunks)
        return held


ONE_F_ONE_B = PipelineSchedule()


def parse_schedule(schedule: Any) -> PipelineSchedule:
    """Return a schedule from text such as `1f1b`, `interleaved:5` or `zero-bubble`."""
    if isinstance(schedule, PipelineSchedule):
        return schedule
    text = str(schedule).strip().lower()
    name, _, chunks = text.partition(":")
    known = next((known for known in SCHEDULES if known == name.replace("_", "-")), None)
    is_count = chunks.isascii() and chunks.isdecimal() and 1 <= int(chunks) <= _MAX_CHUNKS
    if known is None or (chunks and not (is_count and known == "interleaved")):
        nearest = nearest_name(name, SCHEDULES)
        raise UnknownOption(
            f"Unknown pipeline schedule {short_repr(schedule)}.",
            where=f"one of {', '.join(SCHEDULES)}, or interleaved:5 for 5 groups of layers a stage",
            fix=f"Did you mean {nearest!r}?" if nearest and nearest != name else "'1f1b'.",
        )
    if known != "interleaved":
        return PipelineSchedule(name=known)
    return PipelineSchedule(name=known, chunks=int(chunks) if chunks else _BY_LAYERS)


def bubble_fraction(schedule: PipelineSchedule, n_stages: int, n_microbatches: int) -> float:
    """Return the wait of a stage as a fraction of its own work."""
    share = _ZERO_BUBBLE_SHARE if schedule.name == "zero-bubble" else 1.0
    return share * (n_stages - 1) / (schedule.chunks * n_microbatches)
