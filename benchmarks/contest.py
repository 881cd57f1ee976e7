"""Contenders that take turns at the same program, checked first, then timed round by round.

Turns are interleaved and their order rotates, so that a machine that slows down slows all of them;
ratios are taken within a round, and the median over rounds is what counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender, NotMeasured, contender

# A turn lasts about this long: several calls of a fast program, one of a slow one.
_TURN_S = 0.3
# A contender that has spent this long on its turns sits out the remaining rounds.
_ALL_TURNS_S = 45.0


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contender to be: its command and how long it may take to answer any one question."""

    command: list[str]
    limit_s: float


@dataclasses.dataclass
class Figures:
    """What one contender did. `why_not` says why there are no (more) figures, or is empty."""

    rounds: list[float] = dataclasses.field(default_factory=list)
    first_s: float | None = None
    peak_mb: float | None = None
    why_not: str = ""

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.rounds) if self.rounds else None


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A median over rounds, with the lowest and the highest round."""

    median: float
    low: float
    high: float


def ratio(above: Figures, below: Figures) -> Ratio | None:
    """Return how many times longer `above` took, or None where one of them has no figures.

    >>> ratio(Figures([2.0, 9.0, 6.0]), Figures([1.0, 3.0, 3.0]))
    Ratio(median=2.0, low=2.0, high=3.0)
    """
    each = sorted(a / b for a, b in zip(above.rounds, below.rounds, strict=False))
    return Ratio(statistics.median(each), each[0], each[-1]) if each else None


def memory_ratio(above: Figures, below: Figures) -> float | None:
    if above.peak_mb is None or below.peak_mb is None:
        return None
    return above.peak_mb / below.peak_mb


def hold(entries: Mapping[str, Entry], n_rounds: int) -> dict[str, Figures]:
    """Run a contest; the first entry is the one whose result all others must equal."""
    figures = {name: Figures() for name in entries}
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        right = str(Path(folder, "right.npz"))
        ready: list[tuple[Contender, int]] = []
        for number, (name, entry) in enumerate(entries.items()):
            with _noted(figures[name]):
                one = stack.enter_context(contender(name, entry.command, entry.limit_s))
                calls = _warm_up(one, figures[name])
                one.ask("check" if number else "save", path=right)
                ready.append((one, calls))
        _take_turns(ready, figures, n_rounds)
    return figures


@contextlib.contextmanager
def _noted(figures: Figures) -> Any:
    try:
        yield
    except NotMeasured as reason:
        figures.why_not = str(reason)


def _warm_up(one: Contender, figures: Figures) -> int:
    """Make the first calls and return how many calls fill a turn."""
    answer = one.ask("first")
    figures.first_s, figures.peak_mb = answer["first_s"], answer["peak_mb"]
    return max(1, min(100, round(_TURN_S / answer["second_s"])))


def _take_turns(
    ready: Sequence[tuple[Contender, int]], figures: dict[str, Figures], n_rounds: int
) -> None:
    spent = {one.name: 0.0 for one, _ in ready}
    for number in range(n_rounds):
        shift = number % len(ready) if ready else 0
        for one, calls in [*ready[shift:], *ready[:shift]]:
            mine = figures[one.name]
            if mine.why_not or spent[one.name] > _ALL_TURNS_S:
                continue
            with _noted(mine):
                seconds = one.ask("turn", calls=calls)["seconds"]
                mine.rounds.append(statistics.median(seconds))
                spent[one.name] += sum(seconds)
