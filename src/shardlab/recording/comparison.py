"""Two recordings side by side: collectives gained and lost, bytes, time, memory, values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab._text.units import bytes_text, count_text, seconds_text
from shardlab.recording.recording import Recording
from shardlab.recording.step_records import RecordedValue, Step

CollectiveKey = tuple[str, tuple[str, ...], int]  # op, mesh axes, line


@dataclass(frozen=True, kw_only=True)
class CollectiveChange:
    """Collectives of one kind on one line, of which one run has more than the other."""

    op: str
    axes: tuple[str, ...]
    line: int
    code: str
    count: int
    wire_bytes: int  # of all of them, per device
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "axes": list(self.axes)}


@dataclass(frozen=True, kw_only=True)
class FigureChange:
    """A total of both runs."""

    first: float
    second: float

    @property
    def difference(self) -> float:
        return self.second - self.first

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "difference": self.difference}


@dataclass(frozen=True, kw_only=True)
class ValueDifference:
    """The first step at which the two runs compute different values."""

    first_step: int
    second_step: int
    line: int
    op: str
    code: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class RecordingComparison:
    """What the second run has more or less than the first."""

    gained: tuple[CollectiveChange, ...]
    lost: tuple[CollectiveChange, ...]
    figures: Mapping[str, FigureChange]  # wire_bytes, communication_s, step_s, peak_bytes, flops
    difference: ValueDifference | None

    def to_json(self) -> dict[str, Any]:
        return {
            "gained": [change.to_json() for change in self.gained],
            "lost": [change.to_json() for change in self.lost],
            "figures": {name: change.to_json() for name, change in self.figures.items()},
            "difference": self.difference.to_json() if self.difference else None,
        }

    def __str__(self) -> str:
        lines = [
            f"{sign} {count_text(change.count, change.op)} over {', '.join(change.axes)}, line "
            f"{change.line}: {bytes_text(change.wire_bytes)}"
            for sign, changes in (("+", self.gained), ("-", self.lost))
            for change in changes
        ]
        for name, write in (("wire_bytes", bytes_text), ("step_s", seconds_text)):
            figure = self.figures[name]
            lines.append(f"{name}: {write(figure.first)} -> {write(figure.second)}")
        if self.difference is not None:
            lines.append(
                f"values differ from line {self.difference.line} on: {self.difference.code}"
            )
        return "\n".join(lines)


_FIGURES = ("flops", "wire_bytes", "compute_s", "communication_s", "step_s", "peak_bytes")


def compare_recordings(first: Recording, second: Recording) -> RecordingComparison:
    """Return what changed from the first run to the second.

    Collectives are matched by operation, mesh axes and source line: for two versions of one program
    the lines must be the same ones, as they are after an edit of `recording.edits`.
    """
    steps_of = [_collectives_by_key(recording) for recording in (first, second)]
    counts = [Counter({key: len(steps) for key, steps in by_key.items()}) for by_key in steps_of]
    return RecordingComparison(
        gained=_changes(counts[1] - counts[0], steps_of[1]),
        lost=_changes(counts[0] - counts[1], steps_of[0]),
        figures={
            name: FigureChange(
                first=getattr(first.totals, name), second=getattr(second.totals, name)
            )
            for name in _FIGURES
        },
        difference=_first_difference(first, second),
    )


def _collectives_by_key(recording: Recording) -> dict[CollectiveKey, list[Step]]:
    by_key: dict[CollectiveKey, list[Step]] = {}
    for step in recording.steps:
        if step.collective is not None:
            key = (step.collective.op, step.collective.axes, step.line)
            by_key.setdefault(key, []).append(step)
    return by_key


def _changes(
    counts: Counter[CollectiveKey], steps_of: Mapping[CollectiveKey, list[Step]]
) -> tuple[CollectiveChange, ...]:
    changes = []
    for (op, axes, line), count in counts.items():
        steps = steps_of[op, axes, line][:count]
        collectives = [step.collective for step in steps if step.collective is not None]
        changes.append(
            CollectiveChange(
                op=op,
                axes=axes,
                line=line,
                code=steps[0].code,
                count=count,
                wire_bytes=sum(collective.wire_bytes for collective in collectives),
                seconds=sum(collective.seconds or 0.0 for collective in collectives),
            )
        )
    return tuple(sorted(changes, key=lambda change: (change.line, change.op)))


def _first_difference(first: Recording, second: Recording) -> ValueDifference | None:
    """Return the first step that both runs have and after which their values differ.

    Steps are matched in order by line and operation; a step that only one run has is skipped.
    """
    if first.mesh != second.mesh:
        return None
    matched = _match_steps(first, second)
    for i, j in matched:
        step, other = first.steps[i], second.steps[j]
        pairs = zip(step.writes, other.writes, strict=False)
        if any(_differs(first.values[a], second.values[b]) for a, b in pairs):
            return ValueDifference(
                first_step=i, second_step=j, line=step.line, op=step.op, code=step.code
            )
    return None


def _match_steps(first: Recording, second: Recording) -> list[tuple[int, int]]:
    positions: dict[Any, list[int]] = {}
    for index, step in enumerate(second.steps):
        positions.setdefault(_step_key(step), []).append(index)
    matched = []
    for index, step in enumerate(first.steps):
        candidates = positions.get(_step_key(step))
        if candidates:
            matched.append((index, candidates.pop(0)))
    return matched


def _step_key(step: Step) -> Any:
    # JAX traces psum to another primitive if it checks types.
    op = step.op.removesuffix("_invariant")
    return step.file, step.line, op, step.phase, step.loop


def _differs(first: RecordedValue, second: RecordedValue) -> bool:
    if first.shape != second.shape or first.n_groups != second.n_groups:
        return True
    return any(
        (a.devices, a.min, a.max, a.mean, a.cells) != (b.devices, b.min, b.max, b.mean, b.cells)
        and not (a.n_nan or b.n_nan)
        for a, b in zip(first.groups, second.groups, strict=False)
    )
