"""The benchmark's programs compute what they claim, and its harness never drops a contender."""

from __future__ import annotations

import doctest
import sys

import jax
import numpy as np
import pytest
from benchmarks.contender import NotMeasured, contender
from benchmarks.programs import gather, mlp, ring, transformer

from benchmarks import contest, programs, section
from shardlab.simulator.shard_map import shard_map

SMALL = {
    "mlp": mlp.program(8, mlp.Size(batch=12, features=5, hidden=6)),
    "gather": gather.program(8, size=16),
    "ring": ring.program(8, size=16),
    "transformer": transformer.program(
        8, transformer.Size(layers=2, width=24, heads=4, vocabulary=11, batch=6, length=5)
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_simulated_program_gives_the_unsharded_values(name):
    program = SMALL[name]
    simulated = shard_map(
        program.body,
        mesh=program.mesh_text,
        in_specs=program.in_specs,
        out_specs=program.out_specs,
    )
    inputs = program.inputs()
    jax.tree.map(
        lambda ours, right: np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5),
        jax.jit(simulated)(*inputs),
        jax.jit(program.unsharded)(*inputs),
    )


@pytest.mark.parametrize("name", programs.NAMES)
@pytest.mark.parametrize("n_devices", programs.DEVICES)
def test_every_mesh_has_the_devices_asked_for(name, n_devices):
    assert programs.make(name, n_devices).n_devices == n_devices


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import time; time.sleep(60)", "over the limit of 0.2 s"),
        ("raise ValueError('no such mesh')", r"failed: ValueError: no such mesh \(exit code"),
    ],
)
def test_a_contender_without_a_figure_says_why(code, reason):
    limit_s = 0.2 if "sleep" in code else 20.0
    with (
        pytest.raises(NotMeasured, match=reason),
        contender("any", [sys.executable, "-c", code], limit_s),
    ):
        pass


@pytest.mark.parametrize("module", [contest, section, programs])
def test_the_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0
