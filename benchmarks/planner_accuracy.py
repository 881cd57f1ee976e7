"""Section `planner`: estimated step times beside published ones, run by run.

The runs are in `data/published_runs.json`, each with its source. Those of the split `fit` were used
to calibrate the figures of `hardware/chips.toml`; those of the split `test` were not. Runs of one
family (software, model, chip, sequence, precision, mesh) are in one split.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.calculon_points import compare_with_calculon
from benchmarks.collective_accuracy import compare_with_autoparallel
from benchmarks.options import Options
from benchmarks.report import Goal, Section

RUNS_FILE = Path(__file__).parent / "data" / "published_runs.json"
DECODE_FILE = Path(__file__).parent / "data" / "decode_points.json"
_MEAN_GOAL, _WORST_GOAL = 0.08, 0.20
_COVERAGE_GOAL = 0.9
# Korthikanti et al. 2022, table 5: the points Calculon is validated on
CALCULON_GROUP = "megatron/2022"


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
    framework: str = ""
    without: tuple[str, ...] = ()  # of flash attention and sequence parallelism
    saves: tuple[str, ...] = ()  # arrays saved by name, on the device or the host
    wide_experts: bool = False  # sharded over tensor axes too, each as a whole
    excluded: str = ""  # why the run is not comparable, according to its source


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
        PublishedRun(**{name: _hashable(value) for name, value in run.items()})
        for run in data["runs"]
    ]
    return runs, {name: Architecture(**sizes) for name, sizes in data["models"].items()}


@cache
def _small_tensors() -> Mapping[str, Any]:
    """Return what the models have besides the sizes of an architecture."""
    from shardlab.planner.models.transformer import SmallTensors

    data = json.loads(RUNS_FILE.read_text("utf-8"))
    return {name: SmallTensors(**small) for name, small in data["small_tensors"].items()}


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def prepare_run(run: PublishedRun, architecture: Any) -> Callable[..., float]:
    """Return a function that estimates a run with other figures of its chip and framework.

    What does not depend on them, such as the sharded weights, is computed once.
    """
    from shardlab.hardware.chips import Figure, parse_hardware
    from shardlab.hardware.frameworks import frameworks
    from shardlab.hardware.operation_time import OperationTimer

    estimator, work = _estimator(run, architecture)
    hardware = parse_hardware(run.hardware)

    def estimate(
        figures: Mapping[str, float], framework_figures: Mapping[str, float], software: str
    ) -> float:
        fitted = {name: Figure(name, value, "fit") for name, value in figures.items()}
        chip = replace(hardware, figures={**hardware.figures, **fitted})
        trial = replace(
            estimator,
            operation_timer=OperationTimer(hardware=chip),
            framework=replace(frameworks()[software], **framework_figures),
            _operations={},
            _collectives=None,
        )
        return trial.estimate(architecture, work, _workload(run))[0].expected

    return estimate


def as_typed(run: PublishedRun, architecture: Any) -> PublishedRun:
    """Return the run as it is typed in without its details.

    Known are model, hardware, batch, sequence, mesh and precision. Software, remat, microbatches
    and the pipeline schedule are the defaults of `plan --time`.
    """
    from shardlab.hardware.chips import parse_hardware
    from shardlab.planner.timing.timing_defaults import shards_whole_experts, with_timing_defaults
    from shardlab.sharding.mesh import parse_mesh

    is_wide = shards_whole_experts(parse_hardware(run.hardware), parse_mesh(run.mesh), architecture)
    plain = replace(
        run,
        microbatch=None,
        without=(),
        saves=(),
        framework="",
        schedule="1f1b",
        wide_experts=is_wide,
    )
    estimator, work = _estimator(plain, architecture)
    zero = estimator.framework_for(work.mesh).zero
    if zero:  # what does not fit without it may fit with it
        estimator, work = _estimator(plain, architecture, zero)
    workload = with_timing_defaults(_workload(plain), estimator, work)
    return replace(
        plain,
        remat=workload.remat,
        microbatch=workload.microbatch,
        schedule=str(workload.schedule),
        without=() if workload.flash else ("flash",),
    )


def estimate_run(run: PublishedRun, architecture: Any) -> RunEstimate:
    """Return the estimate for a run."""
    estimator, work = _estimator(run, architecture)
    step = estimator.estimate(architecture, work, _workload(run))[0]
    return RunEstimate(run=run, expected=step.expected, lower=step.lower, upper=step.upper)


def _workload(run: PublishedRun) -> Any:
    from shardlab.planner.memory.workload import Workload

    return Workload(
        batch=run.batch,
        sequence=run.sequence,
        remat="+".join(run.saves) or run.remat,
        microbatch=run.microbatch,
        flash="flash" not in run.without,
        dropout="flash" in run.without,  # GPT before flash attention was trained with it
        sequence_parallel="sequence_parallel" not in run.without,
    )


def _estimator(run: PublishedRun, architecture: Any, zero_stage: int = 0) -> Any:
    from shardlab.planner.models.transformer import transformer_model
    from shardlab.planner.strategies.strategy import strategy_name
    from shardlab.planner.timing.estimate_step import step_estimator

    parts = [axis.split("=")[0] for axis in run.mesh.split(",")]
    used = [part for part in parts if part in ("fsdp", "expert", "tensor")]
    if run.wide_experts:
        used = [*(part for part in used if part != "expert"), "wide-expert"]
    strategy = strategy_name(used)
    if zero_stage and {"data", "fsdp", "expert"} & set(parts):
        strategy = f"{strategy}+zero{zero_stage}"
    return step_estimator(
        transformer_model(run.model, architecture, small_tensors=_small_tensors().get(run.model)),
        run.mesh,
        hardware=run.hardware,
        strategy=strategy,
        schedule=run.schedule,
        precision=run.precision,
        framework=run.framework or None,
    )


def estimate_runs() -> tuple[list[RunEstimate], list[RunEstimate]]:
    """Return the estimates for all comparable runs, with their complete setup and as typed in."""
    runs, architectures = load_runs()
    comparable = [run for run in runs if not run.excluded]
    complete = [estimate_run(run, architectures[run.model]) for run in comparable]
    typed = [
        estimate_run(as_typed(run, architectures[run.model]), architectures[run.model])
        for run in comparable
    ]
    return complete, typed


def measure_planner(options: Options) -> list[Section]:
    """Compare the planner with published runs, and with Calculon and AutoParallel."""
    estimates, typed = estimate_runs()
    points = [estimate for estimate in estimates if estimate.run.group == CALCULON_GROUP]
    return [
        _compare_with_runs(estimates, typed, points),
        compare_with_calculon(points, options.calculon),
        compare_with_autoparallel(options.autoparallel),
    ]


def _compare_with_runs(
    estimates: Sequence[RunEstimate], typed: Sequence[RunEstimate], points: Sequence[RunEstimate]
) -> Section:
    """Return the errors of the step times, by hardware and split."""
    section = Section(
        "Step times beside published runs",
        ["hardware", "software", "split", "runs", "mean error", "worst", "in the range"],
    )
    for key, group in sorted(group_estimates(estimates).items()):
        section.rows.append([*key, *summary_cells(group)])
    section.data += [
        {"id": estimate.run.id, "measured": estimate.run.seconds, "ratio": estimate.ratio}
        for estimate in estimates
    ]
    held_out = [estimate for estimate in estimates if estimate.run.split == "test"]
    typed_out = [estimate for estimate in typed if estimate.run.split == "test"]
    section.goals += [
        Goal("mean error of held-out runs", _MEAN_GOAL, mean_error(held_out)),
        Goal("worst error of held-out runs", _WORST_GOAL, worst_error(held_out)),
        Goal("mean error of the Megatron points of Calculon", 0.05, mean_error(points)),
        Goal("held-out runs outside of their range", 1 - _COVERAGE_GOAL, 1 - coverage(held_out)),
        Goal("mean error of held-out runs typed without details", 0.12, mean_error(typed_out)),
        Goal("of these outside of their range", 1 - _COVERAGE_GOAL, 1 - coverage(typed_out)),
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
