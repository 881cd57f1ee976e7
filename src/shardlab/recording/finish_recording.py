"""Drafts -> the recording: names, partial sums, times, totals, and a size that a page can load."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shardlab.hardware.chips import Hardware
from shardlab.recording.recorder import DraftStep, DraftValue, Recorder
from shardlab.recording.recording import Recording
from shardlab.recording.sharding_flow import LINEAR_OPERATIONS
from shardlab.recording.step_records import RecordedValue, Step
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
    notes = []
    if recorder.n_unrecorded:
        notes.append(
            f"{recorder.n_unrecorded} iterations of long loops were computed and not recorded: of "
            "each loop the first 8 are shown, and the last one of a scan."
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
    if draft.collective is not None:
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
    varies = summary.varies_over
    return RecordedValue(
        id=draft.id,
        name=draft.name,
        type=draft.type,
        dtype=draft.dtype,
        shape=draft.shape,
        spec=draft.spec,
        varies_over=varies,
        declared_over=draft.declared_over,
        # Equal copies are no terms of a sum that is worth showing, such as zeros.
        partial_over=tuple(name for name in varies if name in draft.partial_over),
        disagrees=draft.disagrees,
        groups=summary.groups,
        n_groups=summary.n_groups,
        device_means=summary.device_means,
    )


# ------------------------------------------------------------------------------------------ names


def _name_values(recorder: Recorder) -> None:
    """Name the result of each assignment: the last step of the statement computes it."""
    sources = recorder.sources
    drafts = recorder.steps
    for index, draft in enumerate(drafts):
        if not draft.frames or draft.scope.phase == "backward" or not draft.writes:
            continue
        if draft.op in ("enter shard_map", "leave shard_map"):
            continue
        file, line, _ = draft.frames[0]
        names = sources.assigned_names(file, line)
        following = drafts[index + 1] if index + 1 < len(drafts) else None
        is_last = following is None or not _is_same_statement(sources, draft, following)
        if is_last and len(names) == len(draft.writes) == 1:
            value = recorder.values[draft.writes[0]]
            value.name = value.name or names[0]


def _is_same_statement(sources: object, first: DraftStep, second: DraftStep) -> bool:
    if not second.frames or first.scope.loop != second.scope.loop:
        return False
    return first.frames[0][:2] == second.frames[0][:2] and first.scope.phase == second.scope.phase


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


def fit_to_size(recording: Recording, max_bytes: int = MAX_JSON_BYTES) -> Recording:
    """Return the recording with less detail per value, until its JSON is small enough."""
    for side, n_groups in ((32, 64), (16, 48), (8, 32), (8, 16), (4, 16), (4, 8), (2, 8), (2, 4)):
        if len(recording.to_json_text()) <= max_bytes:
            break
        values = tuple(_reduce_detail(value, side, n_groups) for value in recording.values)
        recording = dataclasses.replace(recording, values=values)
    return recording


def _reduce_detail(value: RecordedValue, side: int, n_groups: int) -> RecordedValue:
    groups = tuple(
        dataclasses.replace(group, cells=coarsen_cells(group.cells, side) if group.cells else None)
        for group in value.groups[:n_groups]
    )
    return dataclasses.replace(value, groups=groups)
