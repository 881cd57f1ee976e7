"""Section `planner`: estimated step times beside published ones, run by run.

The runs are in `data/published_runs.json`, each with its source. Those of the split `fit` were used
to calibrate the figures of `hardware/chips.toml`; those of the split `test` were not. Runs of one
family (software, model, chip, sequence, precision, mesh) are in one split.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.options import Options
from benchmarks.report import Goal, Section

RUNS_FILE = Path(__file__).parent / "data" / "published_runs.json"
DECODE_FILE = Path(__file__).parent / "data" / "decode_points.json"
_MEAN_GOAL, _WORST_GOAL = 0.08, 0.20
_COVERAGE_GOAL = 0.9
_CALCULON = "megatron/2022"  # Korthikanti et al. 2022, table 5: the points Calculon is validated on


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One published run: its setup, and the measured seconds of a step."""

    id: str
    group: str
    source: str
    model: str
    hardware: str
    mesh: str
    batch: int
    sequence: int
    remat: str
    precision: str
    seconds: float
    split: str
    microbatch: int | None = None
    schedule: str = "1f1b"
    framework: str | None = None
    without: tuple[str, ...] = ()  # of flash attention and sequence parallelism


@dataclass(frozen=True, kw_only=True)
class RunEstimate:
    """A run beside its estimate."""

    run: PublishedRun
    expected: float
    lower: float
    upper: float

    @property
    def ratio(self) -> float:
        return self.expected / self.run.seconds

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)

    @property
    def is_covered(self) -> bool:
        return self.lower <= self.run.seconds <= self.upper


@dataclass(frozen=True, kw_only=True)
class DecodePoint:
    """A published time per output token, and its estimate. None of them was used to calibrate."""

    id: str
    source: str
    model: str
    hardware: str
    tensor: int
    batch: int
    context: int  # mean number of tokens in the cache
    dtype: str  # of the weights
    milliseconds: float
    estimated: float = 0.0

    @property
    def ratio(self) -> float:
        return self.estimated / self.milliseconds


def estimate_decoding() -> list[DecodePoint]:
    """Return the published decode points with their estimates."""
    import shardlab
    from shardlab.planner.memory.workload import Workload
    from shardlab.planner.timing.estimate_step import estimate_step

    points = []
    for record in json.loads(DECODE_FILE.read_text("utf-8"))["points"]:
        point = DecodePoint(**record)
        workload = Workload(batch=point.batch, sequence=point.context)
        options = {
            "strategy": "tensor",
            "workload": workload,
            "optimizer": "none",
            "policy": point.dtype,
        }
        mesh = f"data=1,tensor={point.tensor}"
        plan = shardlab.plan(point.model, mesh, **options)
        step = estimate_step(
            point.model,
            mesh,
            hardware=point.hardware,
            cache_bytes=plan.bytes_of("kv_cache"),
            **options,
        )
        points.append(replace(point, estimated=step.expected * 1e3))
    return points


def load_runs() -> tuple[list[PublishedRun], dict[str, Any]]:
    """Return the runs, and the architectures of their models."""
    from shardlab.planner.model import Architecture

    data = json.loads(RUNS_FILE.read_text("utf-8"))
    runs = [
        PublishedRun(**{**run, "without": tuple(run.get("without", ()))}) for run in data["runs"]
    ]
    return runs, {name: Architecture(**sizes) for name, sizes in data["models"].items()}


def estimate_run(run: PublishedRun, architecture: Any, hardware: Any = None) -> RunEstimate:
    """Return the estimate for a run."""
    from shardlab.planner.memory.workload import Workload
    from shardlab.planner.models.transformer import transformer_model
    from shardlab.planner.timing.estimate_step import estimate_step

    parts = [axis.split("=")[0] for axis in run.mesh.split(",")]
    strategy = "+".join(part for part in parts if part in ("fsdp", "expert", "tensor"))
    step = estimate_step(
        transformer_model(run.model, architecture),
        run.mesh,
        hardware=hardware or run.hardware,
        workload=Workload(
            batch=run.batch,
            sequence=run.sequence,
            remat=run.remat,
            microbatch=run.microbatch,
            flash="flash" not in run.without,
            dropout="flash" in run.without,  # GPT before flash attention was trained with it
            sequence_parallel="sequence_parallel" not in run.without,
        ),
        strategy=strategy or "data-parallel",
        schedule=run.schedule,
        precision=run.precision,
        framework=run.framework,
    )
    return RunEstimate(run=run, expected=step.expected, lower=step.lower, upper=step.upper)


def estimate_runs() -> list[RunEstimate]:
    """Return the estimates for all runs."""
    runs, architectures = load_runs()
    return [estimate_run(run, architectures[run.model]) for run in runs]


def measure_planner(options: Options) -> Section:
    """Compare the estimates with the published step times, by hardware and split."""
    section = Section(
        "Step times beside published runs",
        ["hardware", "software", "split", "runs", "mean error", "worst", "in the range"],
    )
    estimates = estimate_runs()
    for key, group in sorted(group_estimates(estimates).items()):
        section.rows.append([*key, *summary_cells(group)])
    section.data += [
        {"id": estimate.run.id, "measured": estimate.run.seconds, "ratio": estimate.ratio}
        for estimate in estimates
    ]
    held_out = [estimate for estimate in estimates if estimate.run.split == "test"]
    points = [estimate for estimate in estimates if estimate.run.group == _CALCULON]
    section.goals += [
        Goal("mean error of held-out runs", _MEAN_GOAL, mean_error(held_out)),
        Goal("worst error of held-out runs", _WORST_GOAL, worst_error(held_out)),
        Goal("mean error of the Megatron points of Calculon", 0.05, mean_error(points)),
        Goal("held-out runs outside of their range", 1 - _COVERAGE_GOAL, 1 - coverage(held_out)),
    ]
    # Imported here: the ranks use the runs of this module.
    from benchmarks.mesh_ranks import add_ranks, rank_published_meshes

    add_ranks(section, rank_published_meshes())
    return section


def group_estimates(
    estimates: Iterable[RunEstimate],
) -> Mapping[tuple[str, str, str], list[RunEstimate]]:
    """Return the estimates by hardware, software and split."""
    groups: dict[tuple[str, str, str], list[RunEstimate]] = {}
    for estimate in estimates:
        run = estimate.run
        groups.setdefault((run.hardware, run.group, run.split), []).append(estimate)
    return groups


def summary_cells(estimates: Sequence[RunEstimate]) -> list[str]:
    return [
        str(len(estimates)),
        f"{100 * mean_error(estimates):.0f} %",
        f"{100 * worst_error(estimates):.0f} %",
        f"{100 * coverage(estimates):.0f} %",
    ]


def mean_error(estimates: Sequence[RunEstimate]) -> float:
    return statistics.mean(estimate.error for estimate in estimates) if estimates else math.nan


def worst_error(estimates: Sequence[RunEstimate]) -> float:
    return max((estimate.error for estimate in estimates), default=math.nan)


def coverage(estimates: Sequence[RunEstimate]) -> float:
    if not estimates:
        return math.nan
    return statistics.mean(estimate.is_covered for estimate in estimates)
