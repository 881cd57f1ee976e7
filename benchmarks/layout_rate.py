"""Section `layouts`: how many layouts per second `shardlab.layout` computes in one process."""

from __future__ import annotations

import statistics
import time

import shardlab
from benchmarks.options import Options
from benchmarks.report import Goal, Section

_LAYOUTS_PER_ROUND = 5_000
_MESHES = ("data=16,model=32", {"data": 2, "model": 4}, "pod=2,data=16,model=16")
_SPECS = ("None,model", ("data", "model"), "(data,model),None", (None, ("model", "data")))


def measure_layouts(options: Options) -> Section:
    """Time layouts of shapes that never repeat, so a cache of results would not help."""
    rates = [
        _layouts_per_second(first=number * _LAYOUTS_PER_ROUND)
        for number in range(max(5, options.rounds))
    ]
    rate = statistics.median(rates)
    return Section(
        "Layouts in one process",
        ["layouts per second, median", "min", "max"],
        rows=[[f"{value:,.0f}" for value in (rate, min(rates), max(rates))]],
        goals=[Goal("shardlab.layout in one process", 100_000, rate, at_most=False, unit="/s")],
        data=[{"rates": rates}],
    )


def _layouts_per_second(first: int) -> float:
    start = time.perf_counter()
    for i in range(first, first + _LAYOUTS_PER_ROUND):
        layout = shardlab.layout(
            (512 * (i + 1), 1024), _SPECS[i % len(_SPECS)], _MESHES[i % len(_MESHES)]
        )
        assert layout.shard_shape
    return _LAYOUTS_PER_ROUND / (time.perf_counter() - start)
