"""Section `autoshard`: the estimated step time found, against well-known shardings.

Every time is an estimate of the same cost model, on shardings of the same program: the comparison
judges the search, not the model. `exhaustive` is a search of its own over every sharding of the
arguments, where these are few enough; it does not use the moves of the search that it confirms.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks.autoshard import registry
from benchmarks.autoshard.program import BenchmarkProgram
from benchmarks.options import Options
from benchmarks.report import Goal, Section, milliseconds_text, ratio_text
from shardlab._jax.shardy_program import lower_once
from shardlab.autoshard.answer import Autosharding, ShardingCost
from shardlab.autoshard.arguments import find_state, group_leaves, read_leaves
from shardlab.autoshard.evaluation import Evaluator
from shardlab.autoshard.find_shardings import autoshard
from shardlab.autoshard.spec_choices import spec_choices
from shardlab.autoshard.step_cost import StepCoster, usable_memory, weight_shapes_of
from shardlab.errors import LabError
from shardlab.hardware.chips import parse_hardware
from shardlab.sharding.mesh import parse_mesh
from shardlab.tracing.stage import argument_names

BASELINES = ("replicated", "data parallel", "FSDP", "Megatron")
# More than the search itself tries completely, so that its moves are judged too.
_EXHAUSTIVE_LIMIT = 1000
_TOLERANCE = 1.001  # times of the same candidate differ in the last digits
_SEARCH_TARGET_S = 60.0  # of 64 layers unrolled, the largest program of the issue


def measure_autoshard(options: Options, names: Sequence[str] = registry.NAMES) -> Section:
    """Search the shardings of every program on its meshes, and compare."""
    section = Section(
        "Shardings found by search, estimated step times",
        [
            "program",
            "mesh",
            "found, ms",
            "best of 4 known",
            "ms",
            "found / known",
            "exhaustive, ms",
            "candidates",
            "search, s",
            "processor, s",
        ],
    )
    for name in names:
        program = registry.make_program(name)
        for mesh in program.meshes[: options.meshes]:
            _add_row(section, name, program, mesh, options)
    section.goals += _goals(section.data)
    section.notes = [
        "Known: " + ", ".join(BASELINES) + "; only what fits the memory counts.",
        f"Exhaustive: every sharding of the arguments, in spaces of at most {_EXHAUSTIVE_LIMIT}; "
        "the answer may be faster than that, by constraints inside of the program.",
    ]
    return section


def _add_row(
    section: Section, name: str, program: BenchmarkProgram, mesh: str, options: Options
) -> None:
    start, processor_start = time.perf_counter(), time.process_time()
    try:
        answer = autoshard(
            program.function,
            *program.args,
            mesh=mesh,
            hardware=program.hardware,
            budget=options.search_s,
            prove=options.prove,
        )
    except LabError as error:
        section.rows.append([name, mesh, f"not found: {error.what}", *["-"] * 7])
        section.data.append({"program": name, "mesh": mesh, "failure": error.what})
        return
    seconds, processor_seconds = time.perf_counter() - start, time.process_time() - processor_start
    known = best_known(answer.comparison)
    exhaustive = exhaustive_seconds(program, mesh)
    ratio = answer.cost.seconds / known.seconds if known else None
    section.rows.append(
        [
            name,
            mesh,
            milliseconds_text(answer.cost.seconds),
            known.name if known else "none fits",
            milliseconds_text(known.seconds if known else None),
            ratio_text(ratio),
            milliseconds_text(exhaustive),
            str(answer.search.n_candidates),
            f"{seconds:.1f}",
            f"{processor_seconds:.1f}",
        ]
    )
    section.data.append(
        {
            "program": name,
            "mesh": mesh,
            "search_s": seconds,
            "processor_s": processor_seconds,
            **_answer_data(answer, known, exhaustive),
        }
    )
    # One line each: a full run takes an hour, and may be ended early.
    print("  ".join(section.rows[-1]), flush=True)


def _answer_data(
    answer: Autosharding, known: ShardingCost | None, exhaustive: float | None
) -> dict[str, Any]:
    return {
        "found_s": answer.cost.seconds,
        "known": known.name if known else None,
        "known_s": known.seconds if known else None,
        "exhaustive_s": exhaustive,
        "n_candidates": answer.search.n_candidates,
        "is_complete": answer.search.is_complete,
    }


def _goals(rows: Sequence[dict[str, Any]]) -> list[Goal]:
    answered = [row for row in rows if "failure" not in row]
    ratios = [row["found_s"] / row["known_s"] for row in answered if row["known_s"]]
    optima = [row["found_s"] / row["exhaustive_s"] for row in answered if row["exhaustive_s"]]
    n_failed = len(rows) - len(answered)
    return [
        Goal("programs and meshes without an answer", 0, n_failed, unit=""),
        Goal("slowest answer / best of the known", _TOLERANCE, max(ratios, default=None)),
        Goal("slowest answer / exhaustive optimum", _TOLERANCE, max(optima, default=None)),
        Goal(
            "longest search",
            _SEARCH_TARGET_S,
            max((row["search_s"] for row in answered), default=None),
            unit=" s",
        ),
    ]


def best_known(comparison: Sequence[ShardingCost]) -> ShardingCost | None:
    """Return the fastest of the four known shardings that fits the memory."""
    fitting = [cost for cost in comparison if cost.name in BASELINES and cost.fits]
    return min(fitting, key=lambda cost: cost.seconds, default=None)


def exhaustive_seconds(program: BenchmarkProgram, mesh: str) -> float | None:
    """Return the least time over all shardings of the arguments; None if they are too many."""
    sizes = tuple(parse_mesh(mesh).shape.items())
    state = find_state(program.function, program.args)
    named = argument_names(program.function, program.args)
    leaves = read_leaves(named, frozenset(state.values()), [axis for axis, _ in sizes])
    groups = group_leaves(leaves)
    choices = [spec_choices(group.shape, sizes) for group in groups]
    if math.prod(map(len, choices)) > _EXHAUSTIVE_LIMIT:
        return None
    hardware = parse_hardware(program.hardware)
    weights = weight_shapes_of([group.shape for group in groups if group.is_state])
    evaluator = Evaluator(
        program=lower_once(program.function, program.args, sizes, state),
        groups=groups,
        coster=StepCoster(hardware=hardware, weight_shapes=frozenset(weights)),
        memory_limit=usable_memory(hardware),
    )
    candidates = (evaluator.evaluate(sizes, item) for item in itertools.product(*choices))
    seconds = [
        candidate.seconds
        for candidate in candidates
        if candidate is not None and candidate.memory_bytes <= evaluator.memory_limit
    ]
    jax.clear_caches()  # lowered programs of realistic size are large
    return min(seconds, default=None)
