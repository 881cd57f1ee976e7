"""`python -m benchmarks.planner_report`: writes docs/planner-accuracy.md, misses included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.collective_accuracy import compare_with_autoparallel
from benchmarks.mesh_ranks import rank_published_meshes, ranks_section
from benchmarks.planner_accuracy import (
    CALCULON_GROUP,
    DecodePoint,
    RunEstimate,
    coverage,
    estimate_decoding,
    estimate_runs,
    group_estimates,
    load_runs,
    mean_error,
    summary_cells,
    worst_error,
)
from benchmarks.planner_memory import memory_section

PAGE = Path(__file__).parent.parent / "docs" / "planner-accuracy.md"
_WORST_GOAL = 0.20
_INTRODUCTION = """\
# Planner accuracy

Step times of `shardlab plan --time` and `shardlab advise` beside {n_runs} published training
runs. `make planner-accuracy` writes this page; `make bench ARGS="--only planner"` prints the same
figures. The runs with their sources and complete setup are in
`benchmarks/data/published_runs.json`.

## What was fitted, and how strict the split is

`python -m benchmarks.planner_fit` fits what programs reach of a chip (`hardware/chips.toml`) and
what a framework adds to it (`hardware/frameworks.toml`). It reads the runs of the split *fit* only;
`--write` writes the figures. Runs of one family (software, model, chip, sequence, precision, mesh)
are in one split. No figure belongs to a single run: a family of chips has six, a framework three.

The split is strict for these figures. It is not strict for the formulas: which operations are
counted was decided with the residuals of all runs in view. The {n_unseen} runs of `dgxc` on H100
were collected when an earlier version was complete.
The 37 mixtures of experts on GPUs were added last: only `expert_efficiency` and the ranges were
fitted to those of the split *fit*, and eleven of both splits had been seen before.

| | runs | mean error | worst | in the range |
|---|---|---|---|---|
{totals}

*Typed in*: only model, hardware, batch, sequence, mesh and precision are known; software, remat
policy, microbatches, schedule and flash attention are the defaults of `plan --time`, with a
wider range. These defaults were chosen with the typed-in residuals of both splits in view.

Goals: a mean error of at most 8 % and a worst of at most 20 % on held-out runs, at most 5 % on
the eight points of Korthikanti et al. 2022 (arXiv 2205.05198, table 5), where Calculon, an open
model of these points, reports 3.65 % mean and 8.87 % worst; and a range that contains about 90 %
of held-out runs. Held-out runs with an error above 20 %: {misses}.

## What is not modelled

- **Software.** The same mesh on the same chip differs by up to two times between programs. There
  are six rows of `--framework`. AXLearn's times are comments in its source, measured at different
  times with different releases, and up to 40 % slower than other programs on the same chip.
- **Mixtures of experts** have a range of their own (`expert_time_error`). On GPUs the dispatcher
  decides: the same Qwen3 30B on H100 takes twice as long without token drop. gpt-oss on TPU 7x and
  Llama 4 Maverick on v5p are predicted at about 70 % of their measured time. Three runs of Qwen3
  235B with an expert tensor size of 1 (`wide-expert`) came last, all of them held out.
- **Power limits.** The row h100-96gb is the H100 at 500 W of torchtitan's benchmark pages. The same
  runs typed in as h100 are predicted 5 to 10 % too fast.
- **Host offload** of saved activations is assumed to overlap with compute.

Not comparable, and in none of the figures:

{excluded}

## By hardware and software

| hardware | software | split | runs | mean error | worst | in the range | typed in | in the range |
|---|---|---|---|---|---|---|---|---|
{groups}

## Collectives

H100 with eight GPUs per node, beside the NCCL model of AutoParallel (meta-pytorch/autoparallel),
which was fitted to nccl-tests: 1 MiB to 1 GiB, groups of full nodes. Both models have NCCL's tuning
constants, and ours takes the measured shares of bandwidth from AutoParallel too: this shows that
NCCL's choices are reproduced; it is not an independent measurement. Ratio is ours / AutoParallel's.
Goal: within 15 % for all-gather, reduce-scatter (`psum_scatter`) and all-reduce (`psum`).

| operation | nodes | mean ratio | worst ratio | mean error |
|---|---|---|---|---|
{collectives}

{memory}

## Decoding

Time per output token of vLLM. The 1.5 ms of the host between two tokens are those of
`vllm-ci-a100-80g-llama3-8b-tp1-b8-9523`; no other point was used to calibrate. On MI300X small
batches are close and large ones too fast: the all-reduces of their activations take longer than
estimated. Prefill has no published point here.

| point | weights | measured | estimated | ratio |
|---|---|---|---|---|
{decoding}

## Every run

Ratio is estimated / measured; a run outside of its range is marked with ✗.

| run | mesh | batch x sequence | precision | split | measured | estimated | ratio | typed in |
|---|---|---|---|---|---|---|---|---|
{runs}
"""


def accuracy_page(
    estimates: Sequence[RunEstimate], typed: Sequence[RunEstimate], decoding: Sequence[DecodePoint]
) -> str:
    """Return the page as Markdown."""
    misses = [
        estimate.run.id
        for estimate in estimates
        if estimate.run.split == "test" and estimate.error > _WORST_GOAL
    ]
    return _INTRODUCTION.format(
        n_runs=len(estimates),
        n_unseen=len(_unseen(estimates)),
        totals="\n".join(_total_rows(estimates, typed)),
        misses=", ".join(misses) or "none",
        excluded="\n".join(f"- {run.id}: {run.excluded}" for run in load_runs()[0] if run.excluded),
        groups="\n".join(_group_rows(estimates, typed)),
        collectives="\n".join(_collective_rows()),
        memory=memory_section(),
        decoding="\n".join(map(_decode_row, decoding)),
        runs="\n".join(map(_run_row, estimates, typed)),
    )


def _group_rows(estimates: Sequence[RunEstimate], typed: Sequence[RunEstimate]) -> Iterator[str]:
    typed_groups = group_estimates(typed)
    for key, group in sorted(group_estimates(estimates).items()):
        _, mean, _, share = summary_cells(typed_groups[key])
        yield f"| {' | '.join((*key, *summary_cells(group), mean, share))} |"


def _total_rows(estimates: Sequence[RunEstimate], typed: Sequence[RunEstimate]) -> Iterator[str]:
    subsets = {
        "held out": [estimate for estimate in estimates if estimate.run.split == "test"],
        "of them dgxc on H100": _unseen(estimates),
        "fit": [estimate for estimate in estimates if estimate.run.split == "fit"],
        "eight Megatron points": [
            estimate for estimate in estimates if estimate.run.group == CALCULON_GROUP
        ],
        "held out, typed in": [estimate for estimate in typed if estimate.run.split == "test"],
    }
    for name, subset in subsets.items():
        yield (
            f"| {name} | {len(subset)} | {100 * mean_error(subset):.1f} % | "
            f"{100 * worst_error(subset):.0f} % | {100 * coverage(subset):.0f} % |"
        )


def _collective_rows() -> Iterator[str]:
    for op, _, *cells in compare_with_autoparallel(None).rows:
        yield f"| {' | '.join((op, *cells))} |"


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


def _run_row(estimate: RunEstimate, typed: RunEstimate) -> str:
    run = estimate.run
    cells = (
        run.id,
        run.mesh,
        f"{run.batch:,} x {run.sequence:,}",
        run.precision,
        run.split,
        f"{run.seconds:.3g} s",
        f"{estimate.expected:.3g} s",
        _ratio_text(estimate),
        _ratio_text(typed),
    )
    return f"| {' | '.join(cells)} |"


def _ratio_text(estimate: RunEstimate) -> str:
    return f"{estimate.ratio:.2f}{'' if estimate.is_covered else ' ✗'}"


if __name__ == "__main__":
    page = accuracy_page(*estimate_runs(), estimate_decoding())
    PAGE.write_text(page + ranks_section(rank_published_meshes()), "utf-8")
