"""65,536 devices: layouts against NamedSharding, collectives against arithmetic.

No machine has as many real devices, so what the devices hold is compared with JAX's own index maps
and with numbers that can be computed by hand, on sampled devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.sharding.layout import layout

ROWS = COLUMNS = 256
MESH = f"data={ROWS},model={COLUMNS}"
N = ROWS * COLUMNS
# The first and last devices, both sides of a row's end, and some in between.
SAMPLE = [0, 1, 255, 256, 257, 4095, 32767, 32768, 40001, 65279, 65280, 65535]


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((65536, 512), P("data", "model")),
        ((512, 65536), P("model", "data")),
        ((131072, 3), P(("data", "model"))),
        ((131072, 3), P(("model", "data"))),
        ((5, 768), P(None, "data")),
        ((5, 768), P()),
    ],
)
def test_the_shard_of_a_device_is_that_of_jax(shape, spec):
    ours = layout(shape, spec, MESH)
    abstract = AbstractMesh((ROWS, COLUMNS), ("data", "model"))
    assert ours.shard_shape == NamedSharding(abstract, spec).shard_shape(shape)
    with shardlab.simulated(devices=N):
        mesh = jax.make_mesh((ROWS, COLUMNS), ("data", "model"))
        expected = NamedSharding(mesh, spec).devices_indices_map(shape)
        by_device = {device.id: index for device, index in expected.items()}
    for device in SAMPLE:
        assert _bounds(ours.index(device), shape) == _bounds(by_device[device], shape)


def _bounds(index, shape):
    return [item.indices(size)[:2] for item, size in zip(index, shape, strict=True)]


def run_on_pod(body, *args, in_specs, out_specs):
    return jax.jit(shardlab.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs))(
        *args
    )


BOTH = P(("data", "model"))


def test_sums_over_one_axis_and_over_both_are_those_of_arithmetic():
    def body(x):
        rows = jnp.broadcast_to(lax.psum(x, "model"), (1,))
        everything = lax.psum(x, ("data", "model"))
        return lax.pcast(rows, "model", to="varying"), everything

    # Halved, so that the sum of all fits into int32.
    numbers = jnp.arange(N) // 2
    rows, everything = run_on_pod(body, numbers, in_specs=BOTH, out_specs=(BOTH, P()))
    halves = np.arange(N) // 2
    expected = halves.reshape(ROWS, COLUMNS).sum(1)
    for device in SAMPLE:
        assert rows[device] == expected[device // COLUMNS]
    assert everything[0] == halves.sum()


def test_a_shift_along_one_axis_moves_each_value_to_its_neighbor():
    def body(x):
        shift = [(i, (i + 3) % COLUMNS) for i in range(COLUMNS)]
        return lax.ppermute(x, "model", shift)

    moved = run_on_pod(body, jnp.arange(N), in_specs=BOTH, out_specs=BOTH)
    for device in SAMPLE:
        row, column = divmod(device, COLUMNS)
        assert moved[device] == row * COLUMNS + (column - 3) % COLUMNS


def test_a_ring_over_all_65_536_devices_moves_each_value_to_the_next():
    def body(x):
        return lax.ppermute(x, ("data", "model"), [(i, (i + 1) % N) for i in range(N)])

    moved = run_on_pod(body, jnp.arange(N), in_specs=BOTH, out_specs=BOTH)
    for device in SAMPLE:
        assert moved[device] == (device - 1) % N


def test_positions_and_gathers_are_those_of_the_device():
    def body(x):
        index = lax.axis_index("data") * lax.axis_size("model") + lax.axis_index("model")
        total = lax.all_gather(x, "data").sum()
        return jnp.stack([index, total]).reshape(1, 2)

    result = run_on_pod(body, jnp.arange(N) % 7, in_specs=BOTH, out_specs=BOTH)
    columns = (np.arange(N) % 7).reshape(ROWS, COLUMNS).sum(0)
    for device in SAMPLE:
        assert result[device].tolist() == [device, columns[device % COLUMNS]]


def test_the_gradient_of_a_replicated_weight_sums_all_65_536_terms():
    def loss(w, x):
        return lax.psum((w * x).sum(), ("data", "model"))

    gradient = run_on_pod(
        jax.grad(loss),
        jnp.float32(2),
        jnp.ones(N, jnp.float32),
        in_specs=(P(), BOTH),
        out_specs=P(),
    )
    assert gradient == N
