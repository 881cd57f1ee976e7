"""The value on every device: shards, peek, and debug.print with the device's coordinate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.errors import NotSharded
from shardlab.simulator.peek import forget_peeks


@pytest.fixture(autouse=True)
def _forget_all_peeks():
    forget_peeks()


def map_over_mesh(body, mesh="data=2,model=3", names=("data", "model")):
    return shardlab.shard_map(body, mesh=mesh, in_specs=P(*names), out_specs=P(*names))


def test_shards_have_device_coordinate_index_and_data():
    with shardlab.simulated(devices=6):
        mesh = jax.make_mesh((2, 3), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        y = jax.device_put(jnp.arange(12).reshape(4, 3), NamedSharding(mesh, P("data", "model")))
    device_shards = shardlab.shards(y)
    assert [s.device for s in device_shards] == list(range(6))
    assert device_shards[4].coordinate == {"data": 1, "model": 1}
    assert device_shards[4].index == (slice(2, 4), slice(1, 2))
    np.testing.assert_array_equal(device_shards[4].data, [[7], [10]])


def test_shards_of_a_tree_explains_the_fix():
    with pytest.raises(NotSharded, match="takes one array, and this is a dict"):
        shardlab.shards({"w": jnp.ones(2)})


def test_peek_records_every_device_under_jit():
    f = map_over_mesh(lambda x: shardlab.peek("x", x) * 2)
    jax.jit(f)(jnp.arange(6.0).reshape(2, 3))
    records = shardlab.peeks("x")
    assert [tuple(p.coordinate.values()) for p in records][2:4] == [(0, 2), (1, 0)]
    assert [float(p.value[0, 0]) for p in records] == [0, 1, 2, 3, 4, 5]


def test_peek_records_each_step_of_a_scan():
    def body(x):
        def step(carry, _):
            return shardlab.peek("carry", carry * 2), None

        return jax.lax.scan(step, x, length=3)[0]

    map_over_mesh(body)(jnp.arange(6.0).reshape(2, 3) + 1)
    last_device = [p for p in shardlab.peeks("carry") if p.coordinate == {"data": 1, "model": 2}]
    assert [(p.step, p.value.item()) for p in last_device] == [(0, 12), (1, 24), (2, 48)]


def test_peek_returns_its_argument_and_lets_gradients_through():
    f = map_over_mesh(lambda x: shardlab.peek("x", jnp.sin(x)))
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(x), jnp.cos(x), rtol=1e-6)


def test_peeks_of_an_unknown_name_are_empty():
    assert shardlab.peeks("never") == []


def test_debug_print_prints_once_per_device_with_its_coordinate(capfd):
    def body(x):
        jax.debug.print("sum {s}", s=jnp.sum(x))
        return x

    jax.jit(map_over_mesh(body))(jnp.arange(6.0).reshape(2, 3))
    jax.effects_barrier()
    lines = capfd.readouterr().out.splitlines()
    assert lines == [
        "[data=0 model=0] sum 0.0",
        "[data=0 model=1] sum 1.0",
        "[data=0 model=2] sum 2.0",
        "[data=1 model=0] sum 3.0",
        "[data=1 model=1] sum 4.0",
        "[data=1 model=2] sum 5.0",
    ]


def test_debug_print_of_an_equal_value_still_prints_on_every_device(capfd):
    def body(x):
        jax.debug.print("hello")
        return x

    map_over_mesh(body, mesh="data=3", names=["data"])(jnp.arange(3.0))
    jax.effects_barrier()
    assert capfd.readouterr().out.splitlines() == [f"[data={i}] hello" for i in range(3)]
