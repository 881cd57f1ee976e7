"""A judgement as the pages show it: one headline, the ladder of meshes, and the failing case."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from shardlab._text.printable import printable_data, printable_lines, printable_text
from shardlab._text.units import count_text
from shardlab.catalogue.problem import Problem
from shardlab.errors import LabError
from shardlab.judge.counterexample_json import counterexample_json
from shardlab.judge.debug_output import DebugOutput, debug_output_title
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import VERDICTS, Verdict
from shardlab.sharding.mesh import parse_mesh

if TYPE_CHECKING:
    from shardlab.judge.progress import PlannedCase  # loads NumPy

_MAX_PRINTED_LINES = 60
_DEBUG_DEVICES = 4
_LINE_NUMBER = re.compile(r"line (\d+)")


@dataclass(frozen=True, kw_only=True)
class VerdictView:
    """One verdict: what is wrong, in which case, where, and what to try."""

    code: str
    label: str
    case_name: str  # empty if it is about all cases
    what: str
    where: str
    line: int | None  # of the submission
    shows: tuple[str, ...]
    fix: str

    @property
    def tone(self) -> str:
        """Return the CSS class of its color."""
        return tone_of_code(self.code)


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One case on the ladder of meshes."""

    name: str
    part: int
    number: int
    state: str  # passed, failed, running, waiting, skipped
    code: str = ""
    n_devices: int = 1
    grid: tuple[int, int] = (1, 1)  # rows and columns of the mesh, for its small picture
    is_simulated: bool = False
    what: str = ""
    collectives: str = ""
    peak_bytes: int = 0

    @property
    def state_text(self) -> str:
        """Return the state in words, for screen readers and the table."""
        if self.state == "failed":
            return f"{self.code}: {VERDICTS.get(self.code, 'failed')}"
        return self.state


@dataclass(frozen=True, kw_only=True)
class PartView:
    """The cases of one part, in order."""

    number: int
    name: str
    call: str
    rungs: tuple[Rung, ...]
    verdicts: tuple[VerdictView, ...] = ()  # its failures, each kind once

    @property
    def n_passed(self) -> int:
        return sum(rung.state == "passed" for rung in self.rungs)

    @property
    def n_failed(self) -> int:
        return sum(rung.state == "failed" for rung in self.rungs)

    @property
    def tone(self) -> str:
        if self.n_failed:
            return "bad"
        return "good" if self.n_passed == len(self.rungs) else ""


@dataclass(frozen=True, kw_only=True)
class ElementView:
    """One element of a device's shard, and what it should be if it is wrong."""

    holds: str
    expected: str  # empty if it is right


@dataclass(frozen=True, kw_only=True)
class DeviceView:
    """What one device holds in the failing case."""

    device: int
    place: str
    index: str
    state: str  # right, wrong, or open if many values would be right
    holds: str
    expected: str
    rows: tuple[tuple[ElementView, ...], ...]  # of a shard that is small enough; else empty


@dataclass(frozen=True, kw_only=True)
class OutputView:
    """One output of the failing case, device by device."""

    name: str
    array: str
    expected: str
    spec: str
    devices: tuple[DeviceView, ...]
    n_hidden: int


@dataclass(frozen=True, kw_only=True)
class FailingCaseView:
    """The minimal failing case with all its values."""

    call: str
    mesh: str
    inputs: tuple[tuple[str, str], ...]  # name and value
    expected: str
    returned: str
    collectives: str
    outputs: tuple[OutputView, ...]
    is_right_everywhere: bool  # the values are right, so a table of them shows nothing
    verdicts: tuple[VerdictView, ...]
    can_debug: bool  # its run can be recorded


@dataclass(frozen=True, kw_only=True)
class PrintedView:
    """What the submission printed in one case: by Python, or by each device."""

    title: str
    text: str = ""
    devices: tuple[tuple[str, str], ...] = ()  # heading and text


@dataclass(frozen=True, kw_only=True)
class JudgementView:
    """Everything that a page shows of a judgement."""

    passed: bool
    counts: bool
    headline: VerdictView
    summary: str
    parts: tuple[PartView, ...]
    failing_case: FailingCaseView | None
    printed: tuple[PrintedView, ...]
    notes: tuple[str, ...]
    conditions: str
    debug_example: str  # the name of an example to step through; empty if no part is a program

    @property
    def tone(self) -> str:
        return self.headline.tone


def tone_of_code(code: str) -> str:
    """Return the CSS class of a verdict: good, bad, or warn for the judge's own failures.

    >>> tone_of_code("AC"), tone_of_code("WA"), tone_of_code("IE"), tone_of_code("")
    ('good', 'bad', 'warn', '')
    """
    return {"AC": "good", "IE": "warn", "": ""}.get(code, "bad")


def view_judgement(judgement: Judgement, problem: Problem | None) -> JudgementView:
    """Return a judgement for the page; `problem` is None if it has left the catalogue."""
    first = judgement.first_failure
    has_parts = len({case.part for case in judgement.cases}) > 1
    n, n_passed = len(judgement.cases), sum(case.passed for case in judgement.cases)
    summary = [f"{n_passed} of {count_text(n, 'case')} passed"]
    if judgement.not_judged:
        summary.append(f"{count_text(len(judgement.not_judged), 'case')} not judged after that")
    if not judgement.counts:
        summary.append("not counted as an attempt")
    conditions = [f"sandbox level {judgement.level}"] if judgement.level else []
    conditions += [f"seed {judgement.seed}"] if judgement.kind == "submit" else ["the examples"]
    return JudgementView(
        passed=judgement.passed,
        counts=judgement.counts,
        headline=_view_verdict(judgement.verdict, _case_name(first, has_parts) if first else ""),
        summary="; ".join(summary),
        parts=tuple(_view_parts(judgement, problem)),
        failing_case=_view_failing_case(judgement.counterexample, problem),
        printed=tuple(_view_printed(judgement, has_parts)),
        notes=tuple(map(printable_text, judgement.notes)),
        conditions="; ".join(conditions),
        debug_example=_debug_example(problem),
    )


def _debug_example(problem: Problem | None) -> str:
    """Return the example that shows most: the last program, on the mesh closest to 4 devices."""
    from shardlab.judge.progress import plan_cases

    cases = () if problem is None else plan_cases(problem, kind="run", seed=0)
    programs = [case for case in cases if case.mesh and _is_program(problem, case.part)]
    if not programs:
        return ""
    last_part = programs[-1].part
    best = min(
        (case for case in programs if case.part == last_part),
        key=lambda case: abs(case.n_devices - _DEBUG_DEVICES),
    )
    return f"example {best.part}, {best.name}"


def case_rung(case: CaseResult) -> Rung:
    """Return a judged case as a rung of the ladder."""
    n_devices, grid = _mesh_grid(case.mesh)
    return Rung(
        name=case.name,
        part=case.part,
        number=case.number,
        state="passed" if case.passed else "failed",
        code="" if case.passed else case.verdicts[0].code,
        n_devices=n_devices,
        grid=grid,
        is_simulated=case.is_simulated,
        what=printable_text(case.verdicts[0].what),
        collectives=_collectives_text(case.facts.get("collectives", ())),
        peak_bytes=case.facts.get("peak_bytes") or 0,
    )


def planned_rung(case: PlannedCase, *, state: str) -> Rung:
    """Return a case that is not judged yet: all but its result is known in advance."""
    n_devices, grid = _mesh_grid(case.mesh)
    return Rung(
        name=case.name,
        part=case.part,
        number=case.number,
        state=state,
        n_devices=n_devices,
        grid=grid,
        is_simulated=case.is_simulated,
    )


def _part_heading(number: int, problem: Problem | None) -> tuple[str, str]:
    """Return the name and the call of a part."""
    if problem is None or not 0 < number <= len(problem.parts):
        return "", ""
    part = problem.parts[number - 1]
    return part.name, part.call


def _view_parts(judgement: Judgement, problem: Problem | None) -> Iterator[PartView]:
    rungs: dict[int, list[Rung]] = {}
    for case in judgement.cases:
        rungs.setdefault(case.part, []).append(case_rung(case))
    for text in judgement.not_judged:  # such as "part 2, data=4"
        part, _, name = text.removeprefix("part ").partition(", ")
        number = int(part) if part.isdigit() else 1
        # The mesh of a case is its name, but for a remark such as "permuted" after it.
        n_devices, grid = _mesh_grid(name.partition(" ")[0])
        rung = Rung(
            name=name or text,
            part=number,
            number=0,
            state="skipped",
            n_devices=n_devices,
            grid=grid,
        )
        rungs.setdefault(number, []).append(rung)
    for number, part_rungs in sorted(rungs.items()):
        name, call = _part_heading(number, problem)
        cases = [case for case in judgement.cases if case.part == number]
        yield PartView(
            number=number,
            name=name,
            call=call,
            rungs=tuple(part_rungs),
            verdicts=tuple(_distinct_failures(cases)),
        )


def _distinct_failures(cases: Sequence[CaseResult]) -> Iterator[VerdictView]:
    """Yield each kind of failure once, with the first case that has it."""
    seen_kinds = set()
    for case in cases:
        for verdict in case.verdicts:
            kind = (verdict.code, verdict.cause)
            if verdict.code != "AC" and kind not in seen_kinds:
                seen_kinds.add(kind)
                yield _view_verdict(verdict, case.name)


def _view_verdict(verdict: Verdict, case_name: str) -> VerdictView:
    line = _LINE_NUMBER.search(verdict.where)
    return VerdictView(
        code=verdict.code,
        label=printable_text(verdict.label),
        case_name=case_name,
        what=printable_text(verdict.what),
        where=printable_text(verdict.where),
        line=int(line[1]) if line else None,
        shows=tuple(map(printable_text, verdict.shows)),
        fix=printable_text(verdict.fix),
    )


def _case_name(case: CaseResult, has_parts: bool) -> str:
    return f"part {case.part}, {case.name}" if has_parts else case.name


def _mesh_grid(text: str) -> tuple[int, tuple[int, int]]:
    """Return the number of devices and the rows and columns of a mesh; one device without one."""
    try:
        sizes = parse_mesh(text).axis_sizes if "=" in text else ()
    except LabError:
        sizes = ()
    n_devices = prod(sizes)
    columns = sizes[-1] if sizes else 1
    if columns > 8:  # a long axis is drawn in rows, about as high as wide
        columns = 1 << -(-(n_devices - 1).bit_length() // 2)
    return n_devices, (-(-n_devices // columns), columns)


def _collectives_text(collectives: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{figures['count']} {figures['op']} of {figures['payload_bytes']:,} B"
        for figures in printable_data(list(collectives))
    )


def _view_failing_case(case: CaseResult | None, problem: Problem | None) -> FailingCaseView | None:
    if case is None:
        return None
    data = counterexample_json(case)
    return FailingCaseView(
        call=data["call"],
        mesh=case.mesh,
        inputs=tuple((value["name"], value["text"]) for value in data["inputs"]),
        expected=data["expected"],
        returned=data["returned"],
        collectives=_collectives_text(data["collectives"]),
        outputs=tuple(map(_view_output, data["outputs"])),
        is_right_everywhere=data["is_right_everywhere"],
        verdicts=tuple(_view_verdict(verdict, "") for verdict in case.verdicts),
        # A plain value has no run on devices; older judgements do not say how inputs were drawn.
        can_debug=bool(case.facts.get("draw")) and _is_program(problem, case.part),
    )


def _is_program(problem: Problem | None, part: int) -> bool:
    has_part = problem is not None and 0 < part <= len(problem.parts)
    return has_part and problem is not None and problem.parts[part - 1].kind == "program"


def _view_output(output: Mapping[str, Any]) -> OutputView:
    devices = tuple(map(_view_device, output["devices"]))
    return OutputView(
        name=output["name"],
        array=output["array"],
        expected=output["expected"],
        spec=output["spec"],
        devices=devices,
        n_hidden=output["n_devices"] - len(devices),
    )


def _view_device(device: Mapping[str, Any]) -> DeviceView:
    return DeviceView(
        device=device["device"],
        place=device["place"],
        index=device["index"],
        state=device["state"],
        holds=device["holds"],
        expected=device["expected"] if device["state"] == "wrong" else "",
        rows=_element_rows(device["elements"]),
    )


def _element_rows(elements: Mapping[str, Any] | None) -> tuple[tuple[ElementView, ...], ...]:
    """Return the elements of a shard as a table; nothing for a scalar or a large shard."""
    if not elements or not elements["shape"] or len(elements["shape"]) > 2:
        return ()
    wrong = set(elements["wrong"])
    cells = [
        ElementView(holds=holds, expected=elements["expected"][n] if n in wrong else "")
        for n, holds in enumerate(elements["holds"])
    ]
    n_columns = elements["shape"][-1] or 1
    return tuple(tuple(cells[n : n + n_columns]) for n in range(0, len(cells), n_columns))


def _view_printed(judgement: Judgement, has_parts: bool) -> Iterator[PrintedView]:
    """Yield what was printed: in the first case that failed, or else on the most telling mesh."""
    first = judgement.first_failure
    if first is not None:
        named = [(first, _case_name(first, has_parts))]
        if judgement.counterexample is not None:
            named.append((judgement.counterexample, "minimal failing case"))
    else:
        printing = [case for case in judgement.cases if case.debug_output or case.output.strip()]
        several = [case for case in printing if case.mesh and not case.mesh.endswith("=1")]
        by_device = [case for case in several if case.debug_output]
        named = [(case, _case_name(case, has_parts)) for case in (by_device or several or printing)]
    for case, name in named[:2] if first is not None else named[:1]:
        text = _limit_lines(printable_lines(case.output))
        if text.strip():
            head = "Printed while tracing" if case.mesh else "Printed"
            yield PrintedView(title=f"{head} ({name})", text=text)
        if case.debug_output is not None:
            yield _view_debug_output(case.debug_output, name, case.mesh)


def _view_debug_output(output: DebugOutput, name: str, mesh: str) -> PrintedView:
    title = debug_output_title(output, name, mesh)
    devices = tuple(
        (_device_heading(device.device, device.place), _limit_lines("\n".join(device.lines)))
        for device in output.devices
    )
    return PrintedView(title=title[:1].upper() + title[1:], text=output.note, devices=devices)


def _device_heading(device: int | None, place: str) -> str:
    if device is None:
        return "outside of a shard_map"
    return f"device {device}" + (f" ({printable_text(place)})" if place else "")


def _limit_lines(text: str) -> str:
    lines = text.split("\n")
    if len(lines) <= _MAX_PRINTED_LINES:
        return text
    rest = count_text(len(lines) - _MAX_PRINTED_LINES, "more line")
    return "\n".join([*lines[:_MAX_PRINTED_LINES], f"... {rest}"])
