"""Section `autoshard-time`: a search of many unrolled layers, and what one candidate costs.

The time on a clock is bounded by the budget. What the budget buys is the number of candidates,
which follows from the processor time of lowering the program and of one candidate.
"""

from __future__ import annotations

import time

import jax

from benchmarks.autoshard.transformers import unrolled
from benchmarks.options import Options
from benchmarks.report import Goal, Section
from shardlab.autoshard.find_shardings import autoshard

_MESH = "data=16,model=4"
_GOALS_S = {24: 30.0, 64: 60.0}  # of a step with so many layers


def measure_search_time(options: Options) -> Section:
    """Search the shardings of train steps with 24 and 64 unrolled layers."""
    section = Section(
        "Time of a search, layers unrolled",
        ["layers", "search, s", "processor, s", "candidates", "processor of one candidate, s"],
    )
    for n_layers, goal_s in _GOALS_S.items():
        program = unrolled.make_program(n_layers)
        start, processor_start = time.perf_counter(), time.process_time()
        answer = autoshard(
            program.function,
            *program.args,
            mesh=_MESH,
            hardware=program.hardware,
            budget=options.search_s,
            prove=False,
        )
        seconds = time.perf_counter() - start
        processor_s = time.process_time() - processor_start
        n_candidates = answer.search.n_candidates
        row = [n_layers, seconds, processor_s, n_candidates, processor_s / n_candidates]
        section.rows.append([f"{value:.3g}" for value in row])
        section.data.append(dict(zip(section.columns, row, strict=True)))
        section.goals.append(Goal(f"search of {n_layers} layers", goal_s, seconds, unit=" s"))
        jax.clear_caches()
    section.notes = ["The processor time of one candidate includes its share of the lowering."]
    return section
