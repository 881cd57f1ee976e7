"""Section `planner`, part: Calculon on the eight Megatron points that it is validated on.

Korthikanti et al. 2022 (arXiv 2205.05198), table 5. Calculon (calculon-ai/calculon) runs in a child
process if its clone is given (`--calculon FOLDER`, or SHARDLAB_CALCULON); it is never committed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Section

if TYPE_CHECKING:
    from benchmarks.planner_accuracy import RunEstimate

_WORKER = Path(__file__).parent / "calculon_worker.py"
_MODELS = {"22b": "megatron-22B", "175b": "gpt3-175B", "530b": "turing-530B", "1t": "megatron-1T"}
_LIMIT_S = 120
# As its README and `calculon llm-validation` at caa4b11 report them.
PUBLISHED_MEAN, PUBLISHED_WORST = 0.0365, 0.0887


def compare_with_calculon(points: Sequence[RunEstimate], folder: Path | None) -> Section:
    """Return the eight points with the estimates of both models, and mean and worst error."""
    section = Section(
        "Megatron points of Calculon (arXiv 2205.05198, table 5)",
        ["point", "measured s", "shardlab s", "ratio", "Calculon s", "ratio"],
    )
    theirs = run_calculon(folder, points) if folder else {}
    for point in points:
        seconds = theirs.get(point.run.id)
        peer = ["-", "-"] if seconds is None else _cells(seconds, point.run.seconds)
        ours = _cells(point.expected, point.run.seconds)
        section.rows.append([point.run.id, f"{point.run.seconds:.4g}", *ours, *peer])
        section.data.append({"id": point.run.id, "shardlab": point.expected, "calculon": seconds})
    errors = [point.error for point in points]
    section.notes.append(f"shardlab: {_error_text(errors)}")
    if theirs:
        peer_errors = [
            abs(theirs[point.run.id] / point.run.seconds - 1)
            for point in points
            if point.run.id in theirs
        ]
        section.notes.append(f"Calculon: {_error_text(peer_errors)}")
    else:
        published = f"mean error {PUBLISHED_MEAN:.2%}, worst {PUBLISHED_WORST:.2%}"
        section.notes.append(f"Calculon: {published} as published; --calculon FOLDER runs it here")
    return section


def run_calculon(folder: Path, points: Sequence[RunEstimate]) -> Mapping[str, float]:
    """Return the seconds that Calculon estimates, by the id of a run."""
    names = {point.run.id: _calculon_name(point.run.id) for point in points}
    command = [sys.executable, str(_WORKER), str(folder.resolve()), *names.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        last_line = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"Calculon in {folder} failed: {' '.join(last_line)}")
    seconds = json.loads(done.stdout)
    return {run_id: seconds[name] for run_id, name in names.items()}


def _calculon_name(run_id: str) -> str:
    """Return the name of a point in Calculon's clone.

    >>> _calculon_name("a100-megatron-seqpar-175b-full")
    'gpt3-175B_full'
    """
    *_, size, remat = run_id.split("-")
    return f"{_MODELS[size]}_{remat}"


def _cells(seconds: float, measured: float) -> list[str]:
    return [f"{seconds:.4g}", f"{seconds / measured:.3f}"]


def _error_text(errors: Sequence[float]) -> str:
    return f"mean error {statistics.mean(errors):.2%}, worst {max(errors):.2%}"
