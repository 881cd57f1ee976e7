"""`python -m benchmarks.planner_report`: writes docs/planner-accuracy.md, misses included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.mesh_ranks import rank_published_meshes, ranks_section
from benchmarks.planner_accuracy import (
    DecodePoint,
    RunEstimate,
    coverage,
    estimate_decoding,
    estimate_runs,
    group_estimates,
    mean_error,
    summary_cells,
    worst_error,
)

PAGE = Path(__file__).parent.parent / "docs" / "planner-accuracy.md"
_CALCULON = "megatron/2022"
_INTRODUCTION = """\
# Planner accuracy

Step times of `shardlab plan --time` and `shardlab advise` beside {n_runs} published training
runs. `make planner-accuracy` writes this page; `make bench ARGS="--only planner"` prints the same
figures. The runs with their sources and complete setup are in
`benchmarks/data/published_runs.json`. The figures of `hardware/chips.toml` and
`hardware/frameworks.toml` were fitted to the runs of the split *fit*. Runs of one family
(software, model, chip, sequence, precision, mesh) are in one split. The first figures were chosen
with most runs in view, so the split is strict for one group only: the {n_unseen} runs of `dgxc`
on H100 were collected, and first estimated, when all figures were set.

| | runs | mean error | worst | in the range |
|---|---|---|---|---|
{totals}

Goals: a mean error of at most 8 % and a worst of at most 20 % on held-out runs, at most 5 % on
the eight points of Korthikanti et al. 2022 (arXiv 2205.05198, table 5), where Calculon, an open
model of these points, reports 3.65 % mean and 8.87 % worst; and a range that contains about 90 %
of held-out runs.

## What is not modelled

- **Software.** The same mesh on the same chip differs by up to two times between programs: eager
  PyTorch, compiled PyTorch, Megatron's fused kernels. There are three rows of `--framework`; a
  run of other software is outside of their range. torchtitan on B200 is predicted at half of its
  measured time.
- **Mixtures of experts** have one efficiency of grouped products per chip, and published runs of
  one mesh differ by up to 63 % between releases of the same software. gpt-oss on TPU 7x is
  predicted at two thirds of its measured time.
- **Custom remat policies** of MaxText, with saves by name and host offload, are estimated as full
  recomputation.
- **Attention over long sequences** in programs without a fused kernel for it (LLM Foundry above
  16,384 tokens) is slower than estimated.

## By hardware and software

| hardware | software | split | runs | mean error | worst | in the range |
|---|---|---|---|---|---|---|
{groups}

## Decoding

Time per output token of vLLM; none of these points was used to calibrate.

| point | weights | measured | estimated | ratio |
|---|---|---|---|---|
{decoding}

## Every run

Ratio is estimated / measured; a run outside of its range is marked with ✗.

| run | mesh | batch x sequence | precision | split | measured | estimated | ratio |
|---|---|---|---|---|---|---|---|
{runs}
"""


def accuracy_page(estimates: Sequence[RunEstimate], decoding: Sequence[DecodePoint]) -> str:
    """Return the page as Markdown."""
    return _INTRODUCTION.format(
        n_runs=len(estimates),
        n_unseen=len(_unseen(estimates)),
        totals="\n".join(_total_rows(estimates)),
        groups="\n".join(
            f"| {' | '.join((*key, *summary_cells(group)))} |"
            for key, group in sorted(group_estimates(estimates).items())
        ),
        decoding="\n".join(map(_decode_row, decoding)),
        runs="\n".join(map(_run_row, estimates)),
    )


def _total_rows(estimates: Sequence[RunEstimate]) -> Iterator[str]:
    subsets = {
        "held out": [estimate for estimate in estimates if estimate.run.split == "test"],
        "of them dgxc on H100": _unseen(estimates),
        "fit": [estimate for estimate in estimates if estimate.run.split == "fit"],
        "eight Megatron points": [
            estimate for estimate in estimates if estimate.run.group == _CALCULON
        ],
    }
    for name, subset in subsets.items():
        yield (
            f"| {name} | {len(subset)} | {100 * mean_error(subset):.1f} % | "
            f"{100 * worst_error(subset):.0f} % | {100 * coverage(subset):.0f} % |"
        )


def _decode_row(point: DecodePoint) -> str:
    return (
        f"| {point.id} | {point.dtype} | {point.milliseconds:.1f} ms | {point.estimated:.1f} ms | "
        f"{point.ratio:.2f} |"
    )


def _unseen(estimates: Sequence[RunEstimate]) -> list[RunEstimate]:
    """Return the runs that were collected after the calibration."""
    return [
        estimate
        for estimate in estimates
        if estimate.run.group == "dgxc" and estimate.run.hardware == "h100"
    ]


def _run_row(estimate: RunEstimate) -> str:
    run = estimate.run
    mark = "" if estimate.is_covered else " ✗"
    cells = (
        run.id,
        run.mesh,
        f"{run.batch:,} x {run.sequence:,}",
        run.precision,
        run.split,
        f"{run.seconds:.3g} s",
        f"{estimate.expected:.3g} s",
        f"{estimate.ratio:.2f}{mark}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    page = accuracy_page(estimate_runs(), estimate_decoding())
    PAGE.write_text(page + ranks_section(rank_published_meshes()), "utf-8")
