"""Programs that JAX rejects only when it compiles them, so that the simulation must reject them."""

from __future__ import annotations

from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from program import ProgramTable, f32

program = ProgramTable()


@program("x=8", f32(16), rejected="sources and destinations must be unique")
def ppermute_with_two_messages_to_one_device(w):
    return w.shard_map(
        lambda x: lax.ppermute(x, "x", [(0, 1), (2, 1)]), in_specs=P("x"), out_specs=P("x")
    )


@program("x=8", f32(16), rejected="index out of range")
def ppermute_to_a_device_that_does_not_exist(w):
    return w.shard_map(
        lambda x: lax.ppermute(x, "x", [(i, i + 1) for i in range(8)]),
        in_specs=P("x"),
        out_specs=P("x"),
    )


@program("x=2,y=4", f32(8, 16), rejected="manual")
def constraint_on_a_manual_axis(w):
    def body(x):
        return lax.with_sharding_constraint(x, NamedSharding(w.mesh, P("x")))

    return w.shard_map(body, in_specs=P("x"), out_specs=P("x"), check_vma=False)
