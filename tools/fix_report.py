"""Search a fix for every wrong program of the corpus, and compare each one with the right twin.

    python tools/fix_report.py                    all programs
    python tools/fix_report.py tp_ scaled         those whose file or name starts so
    python tools/fix_report.py --every 4          every fourth of them
    python tools/fix_report.py --verbose          also the diff of each fix
    python tools/fix_report.py --seconds 60       processor time that each search may take
    python tools/fix_report.py --output FILE      also one JSON line per program

A fix is proven against what the wrong program computes on one device. Here it is also compared with
the right twin, which the search never sees: on the program's mesh, all outputs. Exits with 1 if a
fix computes something else than a twin that agrees with the wrong program on one device.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import sys
import tempfile
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[1] / "tests" / "oracle" / "corpus"
sys.path.insert(0, str(CORPUS))

import numpy as np  # noqa: E402
from case import Case  # noqa: E402
from pairs import TABLES  # noqa: E402
from training import ALL_SETS, Program, programs  # noqa: E402

import shardlab  # noqa: E402
from shardlab.analysis import fix_proof  # noqa: E402
from shardlab.analysis.mesh_runs import MeshTrial  # noqa: E402
from shardlab.execution.fix_search import (  # noqa: E402
    SearchRequest,
    edited_module,
    search_fixes,
)
from shardlab.execution.load_target import load_target_module  # noqa: E402
from shardlab.execution.target import Target  # noqa: E402
from shardlab.findings.fix_search import FixSearch  # noqa: E402
from shardlab.findings.report import Report  # noqa: E402
from shardlab.sharding.mesh import Mesh, parse_mesh  # noqa: E402

# What no edit of a program can fix, or a run cannot prove: a program without communication, a
# comment, arrays that are too large to run.
NOT_TRIED = {"program.no_communication", "ignore.invalid", "waste.replicated"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrongProgram:
    """One program of the corpus with its twin, both of which have the same arguments."""

    name: str
    group: str
    code: str
    mesh: str
    module: types.ModuleType
    function_name: str
    args: Callable[[types.ModuleType], tuple[Any, ...]]
    twin: Callable[..., Any] | None
    needs_reference: bool = False

    def load(self, module: types.ModuleType) -> fix_proof.Program:
        return fix_proof.Program(
            function=getattr(module, self.function_name), args=self.args(module)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the search returned for one program, and how its fix compares with the twin."""

    program: WrongProgram
    report: Report
    search: FixSearch
    twin: str  # equal, different, other task, or '' without a fix or a twin
    seconds: float

    @property
    def is_fixed(self) -> bool:
        return bool(self.search.fixes)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.program.name,
            "group": self.program.group,
            "code": self.program.code,
            "findings": [f"{item.code} {item.cause}".strip() for item in self.report.findings],
            "fix": self.search.fixes[0].what if self.is_fixed else "",
            "family": self.search.fixes[0].family if self.is_fixed else "",
            "diff": self.search.fixes[0].diff if self.is_fixed else "",
            "tried": self.search.n_tried,
            "note": self.search.note,
            "twin": self.twin,
            "seconds": round(self.seconds, 1),
        }


def wrong_programs(folder: Path) -> Iterator[WrongProgram]:
    """Yield the pairs of small programs, then the training programs with each of their bugs."""
    for table in TABLES:
        right = iter(table.right_cases.values())
        twins = _twins([*table.wrong_cases.values()], [*right])
        for case in table.wrong_cases.values():
            if case.code not in NOT_TRIED and not case.read_only:
                yield _from_case(case, twins.get(case.name))
    for program in programs(ALL_SETS):
        if program.bug is not None and program.bug.code not in NOT_TRIED:
            yield _from_training(program, folder)


def _twins(wrong: list[Case], right: list[Case]) -> dict[str, Case]:
    """Return the twin of each wrong case: the next function in the file."""
    lines = sorted([*wrong, *right], key=lambda case: case.run.__code__.co_firstlineno)
    followers = itertools.pairwise(lines)
    return {a.name: b for a, b in followers if a in wrong and b in right}


def _from_case(case: Case, twin: Case | None) -> WrongProgram:
    module = sys.modules[case.run.__module__]
    return WrongProgram(
        name=case.name,
        group=module.__name__.split(".")[-1],
        code=case.code,
        mesh=case.mesh,
        module=module,
        function_name=case.name,
        args=lambda _: case.args,
        twin=twin.run if twin else None,
    )


def _from_training(program: Program, folder: Path) -> WrongProgram:
    assert program.bug is not None
    right = Program(program.module_name).load()
    path = CORPUS / "training" / f"{program.module_name}.py"
    source = path.read_text().split("# " + 91 * "-" + " bugs\n")[0]
    file = folder / f"{program.name.replace('-', '_')}.py"
    file.write_text(program.bug.apply(source))
    module = load_target_module(Target("file", str(file), "step"))
    return WrongProgram(
        name=program.name,
        group=f"training {program.family}",
        code=program.bug.code,
        mesh=module.MESH,
        module=module,
        function_name="step",
        args=lambda module: tuple(module.example_args()),
        twin=right.step,
        needs_reference=program.bug.needs_reference,
    )


def try_program(program: WrongProgram, seconds: float) -> Outcome:
    # Processor time, so that the result does not depend on what else the machine does.
    start = time.process_time()
    loaded = program.load(program.module)
    reference = program.module.reference if program.needs_reference else None
    report = shardlab.check(loaded.function, *loaded.args, mesh=program.mesh, reference=reference)
    request = SearchRequest(
        module=program.module,
        function_name=program.function_name,
        load_program=program.load,
        report=report,
        deadline=start + seconds,
        meshes=(program.mesh,),
        reference=reference,
        clock=time.process_time,
    )
    search = search_fixes(request)
    twin = compare_with_twin(program, search) if search.fixes and program.twin else ""
    return Outcome(
        program=program,
        report=report,
        search=search,
        twin=twin,
        seconds=time.process_time() - start,
    )


def compare_with_twin(program: WrongProgram, search: FixSearch) -> str:
    """Return whether the fixed program computes what the right twin computes."""
    fix = search.fixes[0]
    data = Path(str(program.module.__file__)).read_bytes()
    text = (data[: fix.start] + fix.text.encode() + data[fix.end :]).decode()
    mesh = parse_mesh(program.mesh)
    one_device = Mesh([(name, 1) for name in mesh.axis_names])
    assert program.twin is not None
    run = functools.partial(_outputs, args=program.load(program.module).args)
    with edited_module(program.module, text) as module:
        assert not isinstance(module, str)
        fixed = program.load(module)
        # The twin of a program that JAX rejects on one device too is compared with the fix itself.
        wrong = run(program.load(program.module).function, one_device)
        wrong = wrong or _outputs(fixed.function, one_device, fixed.args)
        if not _are_close(wrong, run(program.twin, one_device)):
            # Only the code of the twin is alike: it is written for another task.
            return "other task"
        same = all(
            _are_close(_outputs(fixed.function, size, fixed.args), run(program.twin, size))
            for size in (one_device, mesh)
        )
    return "equal" if same else "different"


def _outputs(function: Callable[..., Any], mesh: Mesh, args: tuple[Any, ...]) -> dict[str, Any]:
    filled = fix_proof.fill_arguments(args)
    run = MeshTrial(function, filled, mesh, is_reference=False).run
    return {path: leaf.value for path, leaf in run.outputs.items()}


def _are_close(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return (
        bool(first)
        and first.keys() == second.keys()
        and all(
            first[path].shape == second[path].shape
            and np.allclose(first[path], second[path], rtol=2e-3, atol=1e-4, equal_nan=True)
            for path in first
        )
    )


def outcome_table(outcomes: list[Outcome]) -> str:
    """Return the number of programs, of fixes, and of fixes equal to the twin, by group."""
    rows = [("group", "tried", "fixed", "equal to twin", "other task", "different")]
    groups = list(dict.fromkeys(item.program.group for item in outcomes))
    for group in [*groups, "total"]:
        items = [item for item in outcomes if group in (item.program.group, "total")]
        twins = Counter(item.twin for item in items)
        cells = (len(items), sum(item.is_fixed for item in items), twins["equal"])
        rows.append((group, *map(str, (*cells, twins["other task"], twins["different"]))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("prefixes", nargs="*")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--output")
    options = parser.parse_args()
    prefixes = tuple(options.prefixes) or ("",)
    warnings.simplefilter("ignore")
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, shardlab.simulated(devices=8):
        programs_tried = [
            program
            for program in wrong_programs(Path(folder))
            if program.name.startswith(prefixes) or program.group.startswith(prefixes)
        ]
        for program in programs_tried[:: options.every]:
            item = try_program(program, options.seconds)
            outcomes.append(item)
            words = item.search.fixes[0].what if item.is_fixed else item.search.note or "no fix"
            print(f"{program.name}: {words} {item.twin}", flush=True)
            if options.verbose and item.is_fixed:
                print(item.search.fixes[0].diff, flush=True)
            if options.output:
                with open(options.output, "a") as file:
                    file.write(json.dumps(item.to_json()) + "\n")
    print(f"\n{outcome_table(outcomes)}")
    n_fixed = sum(item.is_fixed for item in outcomes)
    share = n_fixed / max(len(outcomes), 1)
    print(f"\n{n_fixed} of {len(outcomes)} programs have a proven fix: {share:.0%}.")
    return int(any(item.twin == "different" for item in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
