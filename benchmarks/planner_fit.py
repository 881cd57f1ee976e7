"""`python -m benchmarks.planner_fit`: fits the figures that say what programs reach of a chip.

Only runs of the split `fit` are read. One figure after the other is moved by a few percent as long
as the weighted error falls (coordinate descent), and the new values are printed; `--write` puts
them into `hardware/chips.toml` and `hardware/frameworks.toml`. Run it after a change of the model
of operations or collectives, then `make planner-accuracy`.

Chips of one architecture share their figures, and a framework has the same figures on all chips.
Those of a chip are fitted first, to runs of the software that reaches most of it (MaxText on TPUs,
Megatron on GPUs); those of other frameworks are relative to them.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.planner_accuracy import PublishedRun, as_typed, load_runs, prepare_run

_HARDWARE = Path(__file__).parent.parent / "src" / "shardlab" / "hardware"
# Chips that share their figures: those of one architecture
CHIP_FAMILIES = {
    "tpu-v4": ("tpu-v4",),
    "tpu-v5e": ("tpu-v5e",),
    "tpu-v5p": ("tpu-v5p",),
    "tpu-v6e": ("tpu-v6e",),
    "tpu-7x": ("tpu-7x",),
    "ampere": ("a100", "a100-40gb"),
    "hopper": ("h100", "h200", "h800"),
    "hopper-500w": ("h100-96gb",),
    "blackwell": ("b200", "gb200", "gb300"),
}
CHIP_FIGURES = (
    "matmul_efficiency",
    "attention_efficiency",
    "narrow_efficiency",
    "expert_efficiency",
    "overlap_loss",
    "exposed_share",
)
FRAMEWORK_FIGURES = ("compute", "attention", "passes")
# Rows whose figures are 1 by definition: those of their chips
_REFERENCE_FRAMEWORKS = ("maxtext", "megatron", "megatron-2022")
# Chips without a run of these: fitted together with the framework that ran there
_SECOND_STAGE_FAMILIES = ("hopper-500w",)
_STEPS = (1.15, 1.05, 1.015)  # factors by which a figure is moved, coarse to fine
_BOUNDS = {"passes": (1.0, 6.0), "overlap_loss": (0.02, 0.6)}
_FRACTION_BOUNDS = (0.1, 1.0)
_USUAL_MISS = 0.12  # of a run; much larger ones have causes that no figure describes
_COVERAGE = 0.9  # of the range of an estimate
_FEWEST_RUNS = 9  # with fewer runs the largest miss says little about a range of 90 %
_UNKNOWN_SHARE = 1.3
_MAX_ERROR = 0.8  # a wider range would say nothing
_PRIOR_WEIGHT = 3.0  # figures that no run determines stay where they are


@dataclass
class FittedRun:
    """A run that can be estimated again with other figures."""

    run: PublishedRun
    estimate: Any  # figures of the chip, framework figures -> seconds
    architecture: Any
    weight: float = 1.0
    typed: Any = None  # the run without its details

    @property
    def software(self) -> str:
        """The framework of the run; if it has none, the one that is assumed."""
        from shardlab.hardware.chips import parse_hardware
        from shardlab.planner.timing.timing_defaults import mesh_framework
        from shardlab.sharding.mesh import parse_mesh

        if self.run.framework:
            return self.run.framework
        hardware, mesh = parse_hardware(self.run.hardware), parse_mesh(self.run.mesh)
        return mesh_framework(hardware, mesh, self.architecture).name

    @property
    def family(self) -> str:
        return next(name for name, chips in CHIP_FAMILIES.items() if self.run.hardware in chips)


Key = tuple[str, str]  # chip family or framework, figure


@dataclass
class Fit:
    """The figures that are fitted, and the runs that determine them."""

    runs: Sequence[FittedRun]
    values: dict[Key, float]
    keys: Sequence[Key]
    start: dict[Key, float] = field(default_factory=dict)
    _errors: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = self.start or dict(self.values)
        self._errors = {run.run.id: self._error(run, self.values) for run in self.runs}

    def optimize(self, n_rounds: int = 3) -> None:
        for factor in _STEPS:
            for _ in range(n_rounds):
                improved = [self._improve(key, factor) for key in self.keys]
                if not any(improved):
                    break

    def _improve(self, key: Key, factor: float) -> bool:
        runs = [run for run in self.runs if self._depends(run, key)]
        improved = False
        for step in (factor, 1 / factor):
            while self._try(key, step, runs):
                improved = True
        return improved

    def _try(self, key: Key, step: float, runs: Sequence[FittedRun]) -> bool:
        lower, upper = _BOUNDS.get(key[1], _FRACTION_BOUNDS)
        moved = min(max(self.values[key] * step, lower), upper)
        if moved == self.values[key]:
            return False
        values = {**self.values, key: moved}
        errors = {run.run.id: self._error(run, values) for run in runs}
        before = sum(self._errors[name] for name in errors) + self._prior(key, self.values[key])
        after = sum(errors.values()) + self._prior(key, moved)
        if after >= before - 1e-6:
            return False
        self.values = values
        self._errors.update(errors)
        return True

    def _prior(self, key: Key, value: float) -> float:
        return _PRIOR_WEIGHT * math.log(value / self.start[key]) ** 2

    def _depends(self, run: FittedRun, key: Key) -> bool:
        return key[0] in (run.family, run.run.framework)

    def _error(self, run: FittedRun, values: Mapping[Key, float]) -> float:
        miss = math.log(self.seconds(run, values) / run.run.seconds) / _USUAL_MISS
        return run.weight * math.log1p(miss**2)  # Cauchy's loss: outliers do not decide

    def seconds(self, run: FittedRun, values: Mapping[Key, float]) -> float:
        """Return the estimate for a run with other figures."""
        software = run.software
        chip = {name: value for (owner, name), value in values.items() if owner == run.family}
        framework = {name: value for (owner, name), value in values.items() if owner == software}
        return float(run.estimate(chip, framework, software))


def fitted_runs(runs: Iterable[PublishedRun], architectures: Mapping[str, Any]) -> list[FittedRun]:
    """Return the runs with weights: many runs of one model and software count as a few."""
    fitted = [_prepare(run, architectures[run.model]) for run in runs]
    sizes = Counter(_source(run.run) for run in fitted)
    return [replace(run, weight=1 / math.sqrt(sizes[_source(run.run)])) for run in fitted]


def _prepare(run: PublishedRun, architecture: Any) -> FittedRun:
    typed = as_typed(run, architecture)
    return FittedRun(
        run,
        prepare_run(run, architecture),
        architecture,
        typed=FittedRun(typed, prepare_run(typed, architecture), architecture),
    )


def _source(run: PublishedRun) -> tuple[str, str, str, str]:
    return run.group, run.hardware, run.model, run.precision


def start_values() -> dict[Key, float]:
    """Return the figures of the tables."""
    from shardlab.hardware.chips import parse_hardware
    from shardlab.hardware.frameworks import frameworks

    values: dict[Key, float] = {}
    for family, chips in CHIP_FAMILIES.items():
        figures = parse_hardware(chips[0]).figures
        values |= {(family, name): figures[name].value for name in CHIP_FIGURES if name in figures}
    for framework in frameworks().values():
        if framework.name not in _REFERENCE_FRAMEWORKS:
            values |= {
                (framework.name, name): getattr(framework, name) for name in FRAMEWORK_FIGURES
            }
    return values


def ranges(fit: Fit) -> dict[Key, float]:
    """Return the relative errors of each family of chips that 90 % of runs stay within.

    `default_time_error` is that of runs typed in without their details, `expert_time_error` that of
    mixtures of experts, with or without them. The quantile is that of
    split conformal prediction: of n misses the one at rank 0.9 (n + 1).
    """
    misses: dict[Key, list[float]] = {}
    for run in fit.runs:
        for name, trial in (("step_time_error", run), ("default_time_error", run.typed)):
            miss = abs(math.log(fit.seconds(trial, fit.values) / run.run.seconds))
            name = "expert_time_error" if run.architecture.experts else name
            misses.setdefault((run.family, name), []).append(math.expm1(miss))
    return {key: _quantile(values) for key, values in misses.items()}


def _quantile(values: Sequence[float]) -> float:
    rank = math.ceil(_COVERAGE * (len(values) + 1))
    error = sorted(values)[min(rank, len(values)) - 1]
    return min(error * (_UNKNOWN_SHARE if len(values) < _FEWEST_RUNS else 1), _MAX_ERROR)


def write_values(values: Mapping[Key, float]) -> None:
    """Write fitted figures into the two tables, each at its line."""
    chips_file, frameworks_file = _HARDWARE / "chips.toml", _HARDWARE / "frameworks.toml"
    chips, frameworks = chips_file.read_text("utf-8"), frameworks_file.read_text("utf-8")
    for (owner, name), value in values.items():
        text = f"{value:.3g}"
        if owner not in CHIP_FAMILIES:
            frameworks = _replace_value(frameworks, owner, rf"({name} = )\S+", text)
            continue
        for chip in CHIP_FAMILIES[owner]:
            chips = _replace_value(chips, chip, rf"({name} = {{ value = )[^,]+", text)
    chips_file.write_text(chips, "utf-8")
    frameworks_file.write_text(frameworks, "utf-8")


def _replace_value(text: str, section: str, pattern: str, value: str) -> str:
    head, marker, tail = text.partition(f"\n[{section}]\n")
    body, separator, rest = tail.partition("\n[")
    body = re.sub(rf"(?m)^{pattern}", rf"\g<1>{value}", body)
    return f"{head}{marker}{body}{separator}{rest}"


def _report(fit: Fit) -> Iterator[str]:
    for key, value in fit.values.items():
        yield f"{key[0]:16} {key[1]:24} {fit.start[key]:.3g} -> {value:.3g}"
    misses = [abs(fit.seconds(run, fit.values) / run.run.seconds - 1) for run in fit.runs]
    yield f"{len(misses)} runs: mean {sum(misses) / len(misses):.1%}, worst {max(misses):.0%}"


def fit_figures() -> Fit:
    """Fit the figures of the chips to the reference frameworks, then those of the others."""
    runs, architectures = load_runs()
    used = [run for run in runs if run.split == "fit" and not run.excluded]
    fitted = fitted_runs(used, architectures)
    start = start_values()
    is_first = {
        key: key[0] in CHIP_FAMILIES and key[0] not in _SECOND_STAGE_FAMILIES for key in start
    }
    reference = [run for run in fitted if run.run.framework in _REFERENCE_FRAMEWORKS]
    first = Fit(reference, start, [key for key in start if is_first[key]])
    first.optimize()
    others = [run for run in fitted if run.run.framework not in _REFERENCE_FRAMEWORKS]
    second = Fit(others, first.values, [key for key in start if not is_first[key]])
    second.optimize()
    return Fit(fitted, second.values, [], start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.planner_fit")
    parser.add_argument("--write", action="store_true", help="write the figures into the tables")
    arguments = parser.parse_args()
    fit = fit_figures()
    errors = ranges(fit)
    print("\n".join(_report(fit)))
    for key, error in errors.items():
        print(f"{key[0]:16} {key[1]:24} {error:.2f}")
    if arguments.write:
        write_values(fit.values | errors)


if __name__ == "__main__":
    main()
