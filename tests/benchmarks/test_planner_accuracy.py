"""The planner's accuracy: the page is what the benchmark measures, and the data is complete."""

from __future__ import annotations

import pytest
from benchmarks.mesh_ranks import family_runs, rank_mesh, ranks_section
from benchmarks.planner_accuracy import estimate_decoding, estimate_runs, load_runs, mean_error
from benchmarks.planner_report import PAGE, accuracy_page

from shardlab.hardware.chips import hardware_names


@pytest.fixture(scope="module")
def estimates():
    return estimate_runs()


def test_the_page_is_what_the_benchmark_measures(estimates):
    # `make planner-accuracy` writes it again; the ranks at its end take minutes
    assert PAGE.read_text("utf-8").startswith(accuracy_page(estimates, estimate_decoding()))


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
    points = [estimate for estimate in estimates if estimate.run.group == "megatron/2022"]
    assert len(points) == 8
    assert mean_error(points) < 0.0365  # what Calculon reports for these eight


def test_a_published_mesh_has_a_rank_and_a_reason():
    runs, architectures = load_runs()
    run = next(run for run in runs if run.id == "v6e-llama3.1-8b-16")
    rank = rank_mesh(run, architectures[run.model])
    assert rank.is_in_top
    assert f"| all | {int(rank.is_in_top)} of 1 (100 %) |" in ranks_section([rank])
    families = family_runs(runs)
    assert len({run.id for run in families}) == len(families) < len(runs)
