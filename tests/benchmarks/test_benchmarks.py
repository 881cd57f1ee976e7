"""The benchmark programs compute the right values, and a variant that fails is reported."""

from __future__ import annotations

import doctest
import sys

import jax
import numpy as np
import pytest
from benchmarks.programs import all_gather_matmul, mlp, ring_matmul, transformer
from benchmarks.worker_client import NotMeasured, start_worker

import shardlab
from benchmarks import comparison, programs, report

SMALL = {
    "mlp": mlp.make_program(8, mlp.Size(batch=12, features=5, hidden=6)),
    "gather": all_gather_matmul.make_program(8, size=16),
    "ring": ring_matmul.make_program(8, size=16),
    "transformer": transformer.make_program(
        8, transformer.Size(layers=2, width=24, heads=4, vocabulary=11, batch=6, length=5)
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_simulated_program_computes_the_unsharded_values(name):
    program = SMALL[name]
    simulated = shardlab.shard_map(
        program.body,
        mesh=program.mesh,
        in_specs=program.in_specs,
        out_specs=program.out_specs,
    )
    inputs = program.inputs()
    jax.tree.map(
        lambda ours, expected: np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5),
        jax.jit(simulated)(*inputs),
        jax.jit(program.unsharded)(*inputs),
    )


@pytest.mark.parametrize("name", programs.NAMES)
@pytest.mark.parametrize("n_devices", programs.DEVICES)
def test_every_mesh_has_the_requested_device_count(name, n_devices):
    assert programs.make_program(name, n_devices).n_devices == n_devices


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import time; time.sleep(60)", "over the limit of 0.2 s"),
        ("raise ValueError('no such mesh')", r"failed: ValueError: no such mesh \(exit code"),
    ],
)
def test_a_variant_that_is_not_measured_has_a_reason(code, reason):
    limit_s = 0.2 if "sleep" in code else 20.0
    with (
        pytest.raises(NotMeasured, match=reason),
        start_worker("any", [sys.executable, "-c", code], limit_s),
    ):
        pass


@pytest.mark.parametrize("module", [comparison, report, programs])
def test_the_examples_in_docstrings_run(module):
    assert doctest.testmod(module).failed == 0
