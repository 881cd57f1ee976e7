"""Drafts -> the recording: names, partial sums, times, totals, and a size that a page can load."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shardlab.hardware.chips import Hardware
from shardlab.recording.draft_records import DraftStep, DraftValue
from shardlab.recording.recorder import Recorder
from shardlab.recording.recording import Recording
from shardlab.recording.sharding_flow import LINEAR_OPERATIONS
from shardlab.recording.step_records import RecordedValue, Step, ValueGroup
from shardlab.recording.timeline_schedule import schedule_steps, sum_totals
from shardlab.recording.value_summary import coarsen_cells

MAX_JSON_BYTES = 2_000_000


def finish_recording(recorder: Recorder, chip: Hardware) -> Recording:
    """Return the recording of everything that the recorder saw."""
    _name_values(recorder)
    _mark_terms_of_sums(recorder)
    peak = chip.figures.get("bf16_flops")
    steps = tuple(
        _finish_step(recorder, draft, peak.value if peak else None) for draft in recorder.steps
    )
    values = tuple(map(_finish_value, recorder.values))
    timeline = schedule_steps(steps, recorder.mesh)
    sizes = [draft.n_bytes for draft in recorder.values]
    recording = Recording(
        title="",
        mesh=recorder.mesh,
        steps=steps,
        values=values,
        sources=recorder.sources.files,
        hardware=chip.name,
        timeline=timeline,
        totals=sum_totals(steps, values, sizes, timeline),
        notes=tuple(_notes(recorder)),
        truncated=_truncation(recorder),
    )
    return fit_to_size(recording)


def _notes(recorder: Recorder) -> list[str]:
    notes = list(recorder.shardings.notes)
    if recorder.n_unrecorded:
        notes.append(
            f"{recorder.n_unrecorded} iterations of long loops were computed and not recorded: of "
            "each loop the first 8 are shown, and the last one of a scan."
        )
    if any(step.call is not None and step.call.origin == "compiler" for step in recorder.steps):
        notes.append(
            "Outside shard_map the compiler decides: shardings and collectives there are those of "
            "Shardy's passes, equation by equation. XLA may merge or move collectives later."
        )
    mistyped = [value for value in recorder.values if _is_mistyped(value)]
    if mistyped:
        # JAX 0.10 types each result of a sort by its own operand: the indices of an argsort are
        # declared replicated although the keys vary.
        notes.append(
            f"JAX's types call {len(mistyped)} values replicated whose copies differ; the first is "
            f"value {mistyped[0].id}, {mistyped[0].type}. The copies are what devices compute."
        )
    return notes


def _is_mistyped(value: DraftValue) -> bool:
    declared = value.declared_over
    return declared is not None and not set(value.summary.varies_over) <= set(declared)


def _truncation(recorder: Recorder) -> str | None:
    if not recorder.is_truncated:
        return None
    return f"The first {len(recorder.steps)} steps are shown; the program has more."


def _finish_step(recorder: Recorder, draft: DraftStep, flops_per_second: float | None) -> Step:
    file, line = draft.frames[0][:2] if draft.frames else (-1, 0)
    seconds = None
    if draft.waiting is not None:
        pass  # it never completes, so it has no time
    elif draft.collective is not None:
        seconds = draft.collective.seconds
    elif flops_per_second is not None:
        seconds = draft.flops / flops_per_second
    return Step(
        file=file,
        line=line,
        frames=draft.frames,
        phase=draft.scope.phase,
        region=draft.region,
        op=draft.op,
        code=recorder.sources.line_text(file, line),
        loop=tuple((run.kind, run.line, i, run.length) for run, i in draft.scope.loop),
        branch=draft.scope.branch,
        reads=tuple(dict.fromkeys(draft.reads)),
        writes=tuple(draft.writes),
        collective=draft.collective,
        waiting=draft.waiting,
        flops=draft.flops,
        bytes=draft.n_bytes,
        seconds=seconds,
    )


def _finish_value(draft: DraftValue) -> RecordedValue:
    summary = draft.summary
    return RecordedValue(
        id=draft.id,
        name=draft.name,
        type=draft.type,
        dtype=draft.dtype,
        shape=draft.shape,
        spec=draft.spec,
        varies_over=summary.varies_over,
        declared_over=draft.declared_over,
        partial_over=tuple(sorted(draft.partial_over)),
        disagrees=draft.disagrees,
        groups=summary.groups,
        n_groups=summary.n_groups,
        device_means=summary.device_means,
    )


# ------------------------------------------------------------------------------------------ names


def _name_values(recorder: Recorder) -> None:
    """Give the result of each assignment the name of its variable.

    The steps of one statement follow each other, but the last one need not compute its value: JAX
    puts there what the gradient needs later. The value is the last one that another line reads.
    """
    readers = _reading_lines(recorder.steps)
    for group in _statements(recorder.steps):
        file, line, _ = group[0].frames[0]
        names = recorder.sources.assigned_names(file, line)
        written = [value for step in group for value in step.writes]
        if len(names) != 1 or not written:
            continue
        used = [value for value in written if readers.get(value, set()) - {(file, line)}]
        value = recorder.values[(used or written)[-1]]
        value.name = value.name or names[0]


_BOUNDARIES = ("enter shard_map", "leave shard_map")


def _statements(steps: Sequence[DraftStep]) -> Iterator[list[DraftStep]]:
    """Yield runs of forward steps on one line, in one iteration of the loops around."""

    def place(step: DraftStep) -> Any:
        is_named = step.frames and step.scope.phase == "forward" and step.op not in _BOUNDARIES
        loop = tuple((id(run), number) for run, number in step.scope.loop)
        return (step.frames[0][:2], loop) if is_named else None

    for key, group in itertools.groupby(steps, place):
        if key is not None:
            yield list(group)


def _reading_lines(steps: Sequence[DraftStep]) -> dict[int, set[tuple[int, int]]]:
    """Return the lines that read each value in the forward pass."""
    lines: dict[int, set[tuple[int, int]]] = {}
    for step in steps:
        if step.frames and step.scope.phase == "forward" and step.op not in _BOUNDARIES:
            for value in step.reads:
                lines.setdefault(value, set()).add(step.frames[0][:2])
    return lines


# ----------------------------------------------------------------------------------- partial sums


def _mark_terms_of_sums(recorder: Recorder) -> None:
    """Mark the operands of sums over devices, and what linear operations make them of."""
    producers = {value: step for step in recorder.steps for value in step.writes}
    for step in recorder.steps:
        if step.collective is None or step.collective.op not in ("psum", "reduce_scatter"):
            continue
        axes = set(step.collective.axes)
        pending = list(step.reads[:1])
        visited: set[int] = set()
        while pending:
            value = recorder.values[pending.pop()]
            names = axes & set(value.summary.varies_over)
            producer = producers.get(value.id)
            is_input = producer is None or producer.op == "enter shard_map"
            if not names or value.id in visited or is_input:
                continue
            visited.add(value.id)
            value.partial_over |= names
            if producer is not None and producer.op in LINEAR_OPERATIONS:
                pending += _linear_operands(recorder, producer, axes)


def _linear_operands(recorder: Recorder, step: DraftStep, axes: set[str]) -> Sequence[int]:
    """Return the operands that are terms of the same sum."""
    varying = [v for v in step.reads if axes & set(recorder.values[v].summary.varies_over)]
    if step.op in ("mul", "div"):
        # Linear in one factor, if the other one is the same on every device.
        is_first = bool(varying) and varying[0] == step.reads[0]
        return varying if len(varying) == 1 and (step.op == "mul" or is_first) else []
    return varying


# ------------------------------------------------------------------------------------------- size


_LEVELS = ((32, 64), (16, 48), (8, 32), (8, 16), (4, 16), (4, 8), (2, 8))  # side, groups
_LAST_LEVEL = (2, 4)


def fit_to_size(recording: Recording, max_bytes: int = MAX_JSON_BYTES) -> Recording:
    """Return the recording with less detail per value, until its JSON is small enough."""
    other_bytes = len(dataclasses.replace(recording, values=()).to_json_text())
    n_bytes = max_bytes - other_bytes + 1  # no comma follows the last value
    if _fits(recording.values, n_bytes):
        return recording
    for side, n_groups in _LEVELS:
        reduced = (_reduce_detail(value, side, n_groups) for value in recording.values)
        if _fits(reduced, n_bytes):
            return _with_detail(recording, side, n_groups)
    return _with_detail(recording, *_LAST_LEVEL)


def _with_detail(recording: Recording, side: int, n_groups: int) -> Recording:
    values = tuple(_reduce_detail(value, side, n_groups) for value in recording.values)
    return dataclasses.replace(recording, values=values)


def _fits(values: Iterable[RecordedValue], n_bytes: int) -> bool:
    """Return whether the JSON of the values fits; ends at the first one that does not.

    A psum over hundreds of devices has tens of megabytes before its groups are reduced.
    """
    for value in values:
        n_bytes -= len(json.dumps(value.to_json(), separators=(",", ":"))) + 1  # and a comma
        if n_bytes < 0:
            return False
    return True


def _reduce_detail(value: RecordedValue, side: int, n_groups: int) -> RecordedValue:
    groups = tuple(_coarsen_group(group, side) for group in value.groups[:n_groups])
    return dataclasses.replace(value, groups=groups)


def _coarsen_group(group: ValueGroup, side: int) -> ValueGroup:
    cells = None if group.cells is None else coarsen_cells(group.cells, side)
    return group if cells is group.cells else dataclasses.replace(group, cells=cells)
