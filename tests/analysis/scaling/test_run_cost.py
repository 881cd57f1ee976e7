"""The cost of a run grows with what differs between devices, not with their number."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.analysis.scaling.obligations import trace_full_mesh
from shardlab.analysis.scaling.run_cost import estimate_run_cost
from shardlab.sharding.mesh import parse_mesh


@jax.shard_map(in_specs=(P(), P("data")), out_specs=P("data"))
def scale_rows(scales, x):
    return jnp.tanh(x * jnp.exp(scales)) + lax.pmean(x.sum(), "data")


ARGS = ("f32[3]", "f32[512,3]")


def cost_of(program, args, mesh):
    parsed = parse_mesh(mesh)
    return estimate_run_cost(trace_full_mesh(program, args, parsed), parsed.n_devices)


def cost_on(mesh):
    return cost_of(scale_rows, ARGS, mesh)


def test_an_axis_over_which_nothing_varies_costs_nothing():
    assert cost_on("data=256,model=256").total_bytes == cost_on("data=256,model=1").total_bytes


def test_shards_of_one_array_cost_as_much_as_the_array():
    # The largest value is a shard of x on each device, also with 32 times as many devices.
    assert cost_on("data=8").largest_bytes == cost_on("data=256").largest_bytes == 512 * 3 * 4


def test_the_compiled_program_has_no_dimension_for_an_axis_over_which_nothing_varies():
    program = shardlab.shard_map(
        lambda scales, x: jnp.tanh(x * jnp.exp(scales)),
        mesh="data=256,model=251",
        in_specs=(P(), P("data")),
        out_specs=P("data"),
    )
    lowered = jax.jit(program).lower(jnp.ones(3), jnp.ones((512, 3)))
    shapes = re.findall(r"tensor<([\dx]*)f32>", lowered.as_text())
    assert any("256" in shape for shape in shapes)
    assert not any("251" in shape for shape in shapes)


def test_what_is_too_large_is_said():
    @jax.shard_map(in_specs=(P(), P("data")), out_specs=P())
    def own_weights(weights, x):
        return lax.psum(weights * x.sum(), "data")

    cost = cost_of(own_weights, ("f32[1048576]", "f32[65536]"), "data=65536")
    reason = cost.reason_too_large()
    assert reason == "one value takes 274.9 GB on all devices (limit 1.1 GB)"
