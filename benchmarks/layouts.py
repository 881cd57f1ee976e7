"""How many layouts a second `shardlab.layout` works out in one process."""

from __future__ import annotations

import statistics
import time

import shardlab
from benchmarks.options import Options
from benchmarks.section import Bar, Section

_N = 5_000
_MESHES = ("data=16,model=32", {"data": 2, "model": 4}, "pod=2,data=16,model=16")
_SPECS = ("None,model", ("data", "model"), "(data,model),None", (None, ("model", "data")))


def run(options: Options) -> Section:
    """Time layouts of ever new shapes, so that remembering whole answers would not help."""
    rates = [_rate(first=number * _N) for number in range(max(5, options.rounds))]
    rate = statistics.median(rates)
    return Section(
        "Layouts in one process",
        ["layouts a second", "lowest", "highest"],
        rows=[[f"{value:,.0f}" for value in (rate, min(rates), max(rates))]],
        bars=[Bar("shardlab.layout", 100_000, rate, at_most=False, unit=" layouts a second")],
        data=[{"rates": rates}],
    )


def _rate(first: int) -> float:
    start = time.perf_counter()
    for i in range(first, first + _N):
        layout = shardlab.layout(
            (512 * (i + 1), 1024), _SPECS[i % len(_SPECS)], _MESHES[i % len(_MESHES)]
        )
        assert layout.shard_shape
    return _N / (time.perf_counter() - start)
