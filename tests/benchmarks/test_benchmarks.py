"""The benchmark's programs compute what they claim: simulated, they give the unsharded values."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from benchmarks.programs import gather, mlp, ring, transformer
from shardlab.engine.shard_map import shard_map

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


@pytest.mark.parametrize("module", [mlp, gather, ring, transformer])
@pytest.mark.parametrize("n_devices", [8, 64, 256, 512, 1024])
def test_every_mesh_has_the_devices_asked_for(module, n_devices):
    assert module.program(n_devices).n_devices == n_devices
