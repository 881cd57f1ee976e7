"""Programs of the oracle on real processes: values, gradients, shardings, collectives agree."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cluster.launch_command import launch, read_report

SCRIPT = str(Path(__file__).with_name("oracle_programs.py"))
DEFAULT = (
    "psum_over_data",
    "psum_of_a_tree",
    "all_gather_tiled_0_over_model",
    "value_and_grad_outside",
)
NAMES = (
    *DEFAULT,
    "psum_over_data_then_model",
    "pmean_over_model_then_data",
    "pmax_over_model",
    "pmin_over_data",
    "psum_of_replicated_value_multiplies",
    "psum_of_a_constant_counts_devices",
    "psum_of_a_product_with_both_operands_sharded",
    "psum_of_products_after_linear_operations",
    "psum_over_a_vmapped_axis_and_a_mesh_axis",
    "all_gather_tiled_1_over_model_then_data",
    "all_gather_untiled_2_over_data_then_model",
    "all_gather_of_replicated_value_repeats",
    "psum_scatter_tiled_0_over_model",
    "psum_scatter_tiled_1_over_data_then_model",
    "all_to_all_tiled_split_0_concat_1",
    "all_to_all_tiled_split_2_concat_0",
    "all_to_all_over_data_then_model",
    "axis_index_numbers_devices_in_tuple_order",
    "pcast_to_varying_turns_a_gradient_into_a_sum",
    "several_collectives_in_sequence",
    "product_of_bfloat16",
    "product_of_complex64",
    "product_of_int8",
    "psum_of_bool_counts",
    "draws_from_threefry2x32",
    "scan_whose_carries_gain_device_axes_one_by_one",
    "while_until_all_devices_agree",
    "fori_loop_with_ppermute",
    "cond_whose_predicate_is_uniform",
    "cond_in_scan_in_cond",
    "remat_of_a_scan",
    "switch_by_device_number",
    "grad_inside_the_body",
    "local_grad_of_an_unsummed_loss",
    "vjp_of_vjp",
    "vmap_of_a_shard_map",
)


def check_programs(folder, processes, devices, names):
    done = launch(
        folder, "--on", f"local:{processes}", "--devices-per-process", str(devices), "--verify",
        "--json", "report.json", SCRIPT, "--", str(processes * devices), *names,
    )  # fmt: skip
    assert (folder / "report.json").exists(), done.stderr
    report = read_report(folder)
    assert report.verification.differences == ()
    assert report.verification.notes == ()
    assert done.code == 0
    # Every program was launched, and all devices have a shard of each output.
    assert {program.key.removeprefix("gradients_of_") for program in report.programs} >= set(names)
    for program in report.programs:
        for output in program.outputs:
            assert {shard.device for shard in output.shards} == set(range(processes * devices))
    return report


def test_two_processes_agree_on_some_programs(tmp_path):
    report = check_programs(tmp_path, 2, 1, DEFAULT)
    keys = [program.key for program in report.programs]
    assert "gradients_of_value_and_grad_outside" in keys or "gradients_of_psum_over_data" in keys
    assert report.verification.n_collectives > 0


@pytest.mark.long
@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (4, 1), (2, 4)])
def test_forty_programs_agree_on_each_shape(processes, devices, tmp_path):
    assert len(NAMES) == 40
    report = check_programs(tmp_path, processes, devices, NAMES)
    assert sum(key.startswith("gradients_of_") for key in (p.key for p in report.programs)) > 20
    assert report.verification.n_collectives > 40
    print(f"{processes}x{devices}: {report.verification.n_outputs} outputs", file=sys.stderr)
