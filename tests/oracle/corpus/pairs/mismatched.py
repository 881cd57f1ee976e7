"""Devices that call different collectives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table(grads=False)


@pair.wrong("hazard.mismatched_collectives", "data=4", f32(24, 5), cause="garbage")
def sum_on_some_devices_and_maximum_on_others(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        even = lax.axis_index("data") % 2 == 0
        norm = lax.cond(
            even,
            lambda x: lax.psum(jnp.abs(x).sum(), "data"),  # <- here
            lambda x: lax.pmax(jnp.abs(x).sum(), "data"),  # <- here
            x,
        )
        return x / norm

    return step(x)


@pair.right
def sum_and_maximum_on_all_devices(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        total = lax.psum(jnp.abs(x).sum(), "data")
        largest = lax.pmax(jnp.abs(x).max(), "data")
        return jnp.where(x > 0, x / total, x / largest)

    return step(x)


@pair.wrong("hazard.mismatched_collectives", "data=4", f32(24, 5), cause="garbage")
def two_sums_of_different_things(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def step(x):
        def centred(x):
            return x - lax.psum(x, "data") / 24  # <- here

        def scaled(x):
            return x * lax.psum(x**2, "data")  # <- here

        return lax.cond(x.sum() > 0, centred, scaled, x)

    return step(x)


@pair.right
def one_sum_of_what_each_device_chose(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def step(x):
        chosen = lax.cond(lax.pmax(x.max(), "data") > 0, lambda x: x, lambda x: x**2, x)
        return x - lax.psum(chosen.sum(0), "data") / 24

    return step(x)


@pair.wrong("hazard.mismatched_collectives", "expert=4", f32(8, 12), cause="hangs", really="hangs")
def routing_by_exchange_on_some_and_by_gather_on_others(x):
    def exchanged(x):
        return lax.all_to_all(x, "expert", 1, 1, tiled=True)  # <- here

    def summed(x):
        return x - lax.psum(x, "expert")  # <- here

    @jax.shard_map(in_specs=P("expert"), out_specs=P("expert"))
    def route(x):
        kind = jnp.argmax(x[0, :3])
        return lax.switch(kind, [exchanged, summed, summed], x)

    return route(x)


@pair.right
def routing_chosen_together(x):
    def exchanged(x):
        sent = lax.all_to_all(x, "expert", 1, 0, tiled=True)
        return lax.all_to_all(sent, "expert", 0, 1, tiled=True)

    def summed(x):
        return x - lax.psum(x.sum(0), "expert")

    @jax.shard_map(in_specs=P("expert"), out_specs=P("expert"))
    def route(x):
        kind = jnp.argmax(lax.pmax(x.max(0), "expert")[:3])
        return lax.switch(kind, [exchanged, summed, summed], x)

    return route(x)


@pair.wrong("hazard.mismatched_collectives", "data=8", f32(24, 5), cause="garbage")
def rings_that_turn_in_both_directions(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        n = lax.axis_size("data")
        up, down = [(i, (i + 1) % n) for i in range(n)], [((i + 1) % n, i) for i in range(n)]
        return lax.cond(
            lax.axis_index("data") < n // 2,
            lambda x: lax.ppermute(x, "data", up),  # <- here
            lambda x: lax.ppermute(x, "data", down),  # <- here
            x,
        )

    return step(x)


@pair.right
def rings_in_both_directions_on_all_devices(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        n = lax.axis_size("data")
        up, down = [(i, (i + 1) % n) for i in range(n)], [((i + 1) % n, i) for i in range(n)]
        above = lax.ppermute(x[-1:], "data", up)
        below = lax.ppermute(x[:1], "data", down)
        return jnp.concatenate([above, x[:-1]]) + jnp.concatenate([x[1:], below])

    return step(x)


@pair.wrong("hazard.mismatched_collectives", "data=4", f32(24, 5), cause="garbage")
def mean_in_training_and_maximum_in_evaluation_by_device(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def step(x):
        training = x[0, 0] > 0

        def layer(x, _):
            stat = lax.cond(
                training,
                lambda x: lax.pmean(x.mean(), "data"),  # <- here
                lambda x: lax.pmin(x.min(), "data"),  # <- here
                x,
            )
            return x - stat, None

        return lax.scan(layer, x, None, length=2)[0]

    return step(x)


@pair.right
def mean_in_training_and_maximum_in_evaluation_for_all(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"), check_vma=False)
    def step(x):
        training = lax.pmax(x.max(), "data") > 0

        def layer(x, _):
            stat = lax.cond(
                training,
                lambda x: lax.pmean(x.mean(), "data"),
                lambda x: lax.pmin(x.min(), "data"),
                x,
            )
            return x - stat, None

        return lax.scan(layer, x, None, length=2)[0]

    return step(x)
