"""The planner's accuracy: the page is what the benchmark measures, and the data is complete."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.calculon_points import compare_with_calculon
from benchmarks.collective_accuracy import (
    GOAL,
    GOAL_OPERATIONS,
    committed_points,
    compare_with_autoparallel,
)
from benchmarks.collective_accuracy import worst_error as worst_collective_error
from benchmarks.mesh_ranks import family_runs, rank_mesh, ranks_section
from benchmarks.planner_accuracy import (
    PublishedRun,
    as_typed,
    estimate_decoding,
    estimate_runs,
    load_runs,
    mean_error,
)
from benchmarks.planner_fit import Fit, fitted_runs
from benchmarks.planner_report import PAGE, accuracy_page

from shardlab.hardware.chips import hardware_names


@pytest.fixture(scope="module")
def estimates():
    return estimate_runs()


def test_the_page_is_what_the_benchmark_measures(estimates):
    # `make planner-accuracy` writes it again; the ranks at its end take minutes
    page = accuracy_page(*estimates, estimate_decoding())
    assert PAGE.read_text("utf-8").startswith(page)


def test_every_run_has_a_source_known_hardware_and_a_split():
    runs, architectures = load_runs()
    assert len({run.id for run in runs}) == len(runs)
    for run in runs:
        assert run.source.count(" ") >= 2  # repository, commit, path
        assert run.hardware in hardware_names()
        assert run.model in architectures
        assert run.split in ("fit", "test")


def test_runs_of_one_family_are_in_one_split():
    splits: dict[object, set[str]] = {}
    for run in load_runs()[0]:
        mesh = ",".join(axis for axis in run.mesh.split(",") if not axis.startswith("data="))
        family = (run.group, run.model, run.hardware, run.sequence, run.precision, mesh)
        splits.setdefault(family, set()).add(run.split)
    shared = [family for family, names in splits.items() if len(names) > 1]
    # the runs of the shared calibration file are in the split fit, whatever their family
    assert len(shared) <= 3


def test_the_megatron_points_are_closer_than_calculon_is(estimates):
    points = [estimate for estimate in estimates[0] if estimate.run.group == "megatron/2022"]
    assert len(points) == 8
    assert mean_error(points) < 0.0365  # what Calculon reports for these eight


def test_collectives_are_within_15_percent_of_the_nccl_model():
    points = [point for point in committed_points() if point.op in GOAL_OPERATIONS]
    assert {point.n_nodes for point in points} == {1, 2, 4, 8, 16, 32}
    assert (min(point.n_bytes for point in points), len(points)) == (2**20, 3 * 6 * 11)
    assert worst_collective_error(points) < GOAL


def test_the_section_of_collectives_has_their_goal():
    section = compare_with_autoparallel(None)
    assert [goal.is_reached for goal in section.goals] == [True]
    assert len(section.rows) == 4 * 6


def test_calculon_is_compared_with_its_published_error_without_a_clone(estimates):
    complete, _ = estimates
    points = [estimate for estimate in complete if estimate.run.group == "megatron/2022"]
    section = compare_with_calculon(points, None)
    assert section.notes[-1].startswith("Calculon: mean error 3.65%, worst 8.87% as published")


def test_a_run_typed_in_without_details_has_the_defaults_of_the_software():
    runs, architectures = load_runs()
    by_id = {run.id: run for run in runs}

    def typed(name: str) -> PublishedRun:
        return as_typed(by_id[name], architectures[by_id[name].model])

    pipeline = typed("h100-mbridge25.09-llama3-70b-64-fp8-cs-gbs128")
    assert (pipeline.remat, pipeline.microbatch, pipeline.framework) == ("selective", 2, "")
    assert typed("v6e-llama3.1-8b-8").remat == "full"
    gpt = typed("a100-megatron2021-145b")
    assert (gpt.remat, gpt.without, gpt.schedule) == ("full", ("flash",), "1f1b")
    assert typed("h100-mbridge25.11-qwen3-235b-a22b-256-fp8-gbs2048").wide_experts


def test_the_fit_moves_a_figure_to_where_its_runs_are():
    """A run whose time is that of half the efficiency leads to half the efficiency."""
    runs, architectures = load_runs()
    run = next(run for run in runs if run.id == "v6e-gpt3-175b-256-bf16")
    [fitted] = fitted_runs([run], architectures)
    key = ("tpu-v6e", "matmul_efficiency")
    slow = fitted.estimate({"matmul_efficiency": 0.4}, {}, "maxtext")
    fit = Fit([replace(fitted, run=replace(run, seconds=slow))], {key: 0.6}, [key])
    fit.optimize()
    assert fit.values[key] == pytest.approx(0.4, rel=0.05)


def test_a_published_mesh_has_a_rank_and_a_reason():
    runs, architectures = load_runs()
    run = next(run for run in runs if run.id == "v6e-llama3.1-8b-16")
    rank = rank_mesh(run, architectures[run.model])
    assert rank.is_in_top
    assert f"| all | {int(rank.is_in_top)} of 1 (100 %) |" in ranks_section([rank])
    families = family_runs(runs)
    assert len({run.id for run in families}) == len(families) < len(runs)
