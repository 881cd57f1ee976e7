"""Every value of a recording equals the value on 8 real host devices, step by step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from shardlab.recording.example_gallery import gallery_programs

# A jit without shard_map has one global value per step: test_recorded_jit_steps.py compares their
# shards. JAX 0.12 rejects a ppermute in another axis order when it compiles.
NOT_RUN = {"jit_with_shardings", "constraint_replicates"}
if jax.__version_info__ >= (0, 12):
    NOT_RUN.add("permutation_axis_order")
GALLERY = [item.slug for item in gallery_programs() if item.slug not in NOT_RUN]

WRITTEN = [
    "psum_over_data",
    "psum_over_model_then_data",
    "pmean_over_data",
    "pmax_over_model",
    "pmin_over_data_then_model",
    "psum_of_a_product_with_both_operands_sharded",
    "psum_of_products_after_linear_operations",
    "psum_of_a_product_scaled_by_a_varying_factor",
    "psum_in_groups",
    "all_gather_tiled_0_over_model",
    "all_gather_untiled_1_over_data_then_model",
    "psum_scatter_tiled_0_over_model",
    "psum_scatter_untiled_1_over_model_then_data",
    "all_to_all_tiled_split_0_concat_1",
    "all_to_all_untiled_split_1_concat_0",
    "ppermute_shuffled",
    "ppermute_chain_with_an_open_end",
    "axis_index_numbers_devices_in_tuple_order",
    "several_collectives_in_sequence",
    "collectives_of_bfloat16",
    "collectives_of_int8",
    "product_of_float32",
    "draws_from_threefry2x32",
    "scan_with_collectives",
    "scan_whose_carries_gain_device_axes_one_by_one",
    "scan_in_reverse_over_sharded_inputs",
    "nested_scans",
    "while_whose_trip_count_differs_between_devices",
    "while_until_all_devices_agree",
    "fori_loop_with_ppermute",
    "fori_loop_with_a_bound_that_differs",
    "cond_whose_predicate_differs",
    "cond_whose_predicate_is_uniform",
    "cond_with_a_collective_over_another_axis_than_its_predicate",
    "switch_by_device_number",
    "cond_in_scan_in_cond",
    "remat_of_a_scan",
    "value_and_grad_outside",
    "value_and_grad_outside_without_vma",
    "grad_inside_the_body",
    "jit_in_jit_in_scan",
    "remat_of_the_body",
    "custom_vjp_inside",
    "custom_jvp_inside",
    "trees_in_and_out",
    "closure_over_an_array",
]


def compare(kind, names):
    folder = Path(__file__).parent
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    process = subprocess.run(
        [sys.executable, str(folder / "recorded_on_devices.py"), kind, *names],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return {item["name"]: item for item in map(json.loads, process.stdout.splitlines())}


@pytest.fixture(scope="module")
def gallery_results():
    return compare("gallery", GALLERY)


@pytest.fixture(scope="module")
def written_results():
    return compare("written", WRITTEN)


@pytest.mark.parametrize("slug", GALLERY)
def test_gallery_values_equal_real_devices_at_every_step(gallery_results, slug):
    result = gallery_results[f"gallery/{slug}"]
    assert result["problems"] == []
    assert result["compared"] >= result["steps"] > 0


@pytest.mark.parametrize("name", WRITTEN)
def test_oracle_values_equal_real_devices_at_every_step(written_results, name):
    result = written_results[f"written/{name}"]
    assert result["problems"] == []
    assert result["compared"] > 0
    assert result["steps"] > 0


def test_at_least_forty_programs_are_compared():
    assert len(WRITTEN) >= 40
