"""What a problem's reference draws, tried before anything is judged with it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.reference import Reference, load_reference
from shardlab.course.problem_lint import Fault

_FILE = "reference.py"


def draw_faults(problem: Problem) -> Iterator[Fault]:
    """Yield what is wrong with the inputs of each part, in its first cases."""
    for part in problem.parts:
        reference = load_reference(problem, part)
        try:
            yield from _of_part(part, reference)
        except Exception as error:
            what = f"For part {part.number} it raises {type(error).__name__}: {error}."
            yield Fault(rule="problem", what=what, file=_FILE)


def _of_part(part: Part, reference: Reference) -> Iterator[Fault]:
    from shardlab.judge.cases import make_cases

    wanted = [name for name in part.arguments if name != "mesh"]
    for case in itertools.islice(make_cases(part, 1, 2), 2):
        drawn = reference.inputs(case.draw)
        if sorted(drawn) != sorted(wanted):
            what = f"The inputs of part {part.number} are {', '.join(drawn)}; it calls {part.call}."
            yield Fault(rule="reference.inputs", what=what, file=_FILE)
            return
        before = _bytes(drawn)
        with contextlib.suppress(ValueError):  # what the answer must raise too
            reference.expected(case.draw.mesh, **drawn)
        if before != _bytes(drawn):
            what = f"expected changes the inputs of part {part.number}."
            yield Fault(rule="reference.draw", what=what, file=_FILE)
            return
        if before != _bytes(reference.inputs(case.draw)):
            what = f"Part {part.number} draws other inputs from the same seed."
            yield Fault(rule="reference.draw", what=what, file=_FILE)
            return


def _bytes(inputs: dict[str, Any]) -> Any:
    from shardlab.judge.protocol.values import array_bytes, pack_value

    data, arrays = pack_value(inputs)
    return data, [array_bytes(array) for array in arrays]
