"""Meshes and specs of every shape; nested and partly manual shard_maps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from program import ProgramTable, f32

program = ProgramTable()

_MESHES = ["x=8", "x=2,y=4", "x=4,y=2", "x=2,y=2,z=2", "x=1,y=8", "x=1", "x=2,y=1,z=3"]
_SPECS = {
    1: [P("x"), P(None, "x"), P(("x",), None)],
    2: [P("x", "y"), P("y", "x"), P(("x", "y")), P(("y", "x")), P(None, ("y", "x"))],
    3: [P("z", ("x", "y")), P(("z", "x", "y")), P(("y", "z"), "x"), P(None, "y")],
}


def _shard_and_gather(mesh, number, spec):
    """Shard by a spec, make the shards differ, gather by the same spec."""
    names = tuple(part.split("=")[0] for part in mesh.split(","))

    def build(w):
        def body(x):
            index = lax.axis_index(names)
            return x * (index + 1.0), index * jnp.ones(x.shape, jnp.int32)

        same = w.shard_map(body, in_specs=spec, out_specs=spec, check_vma=False)
        return lambda x: same(x)[0] if number else same(x)

    return build


for _mesh in _MESHES:
    for _number, _spec in enumerate(_SPECS[_mesh.count("=")]):
        if "None" in str(_spec) and _mesh.count("=") == 3:
            continue  # an axis that the spec does not mention: replicas differ here by design
        program.add(
            f"sharded_and_gathered_{_mesh.replace(',', '_').replace('=', '')}_{_number}",
            _mesh,
            [f32(24, 48)],
            _shard_and_gather(_mesh, _number, _spec),
            grad=_number == 0,
        )


@program("x=2,y=4", f32(8, 16))
def sharded_by_rows_gathered_by_columns(w):
    return w.shard_map(
        lambda x: lax.all_to_all(x, "y", 1, 0, tiled=True),
        in_specs=P(("x", "y")),
        out_specs=P("x", "y"),
    )


@program("x=2,y=4", f32(8, 16))
def sharded_in_one_axis_order_gathered_in_the_other(w):
    return w.shard_map(
        lambda x: (x, x.T), in_specs=P(("x", "y")), out_specs=(P(("y", "x")), P(None, ("y", "x")))
    )


@program("x=2,y=4", f32())
def a_scalar(w):
    return w.shard_map(
        lambda x: (x * lax.psum(1, "x"), x[None] * lax.axis_index("y")),
        in_specs=P(),
        out_specs=(P(), P("y")),
    )


@program("x=2,y=4", f32(0, 16), f32(8, 1))
def an_empty_array_and_a_dim_of_one(w):
    def body(x, y):
        return lax.psum(x, "y"), lax.all_gather(x, "y", axis=1, tiled=True), y + x.sum()

    return w.shard_map(
        body, in_specs=(P(None, "y"), P(("x", "y"))), out_specs=(P(), P(None, "y"), P(("x", "y")))
    )


@program("x=2,y=4", f32(8, 16))
def nested_over_the_other_axis(w):
    def outer(x):
        inner = w.shard_map(
            lambda x: lax.psum(x, "y"),
            mesh=None,
            in_specs=P(None, "y"),
            out_specs=P(),
            axis_names={"y"},
        )
        return inner(jnp.sin(x)) * lax.axis_index("x") + lax.psum(x.sum(), "x")

    return w.shard_map(outer, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


@program("x=2,y=2,z=2", f32(8, 16))
def nested_three_deep(w):
    def innermost(x):
        return lax.psum(x, "z")

    def middle(x):
        deepest = w.shard_map(
            innermost, mesh=None, in_specs=P(None, "z"), out_specs=P(), axis_names={"z"}
        )
        return lax.all_gather(deepest(x), "y", axis=1, tiled=True)

    def outer(x):
        inner = w.shard_map(middle, mesh=None, in_specs=P("y"), out_specs=P("y"), axis_names={"y"})
        return inner(x) + lax.pmean(x.mean(), "x")

    return w.shard_map(outer, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


@program("x=2,y=2,z=2", f32(8, 16), grad=False)  # see test_differences
def nested_axis_index_of_both_levels(w):
    def outer(x):
        inner = w.shard_map(
            lambda x: lax.psum(x, "y") * (lax.axis_index("x") + 2 * lax.axis_index("y")),
            mesh=None,
            in_specs=P(None, "y"),
            out_specs=P(None, "y"),
            axis_names={"y"},
        )
        return inner(x)

    return w.shard_map(outer, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


@program("x=2,y=4", f32(8, 16))
def nested_in_a_scan(w):
    def outer(x):
        inner = w.shard_map(
            lambda x: lax.ppermute(x, "y", [(i, (i + 1) % 4) for i in range(4)]),
            mesh=None,
            in_specs=P(None, "y"),
            out_specs=P(None, "y"),
            axis_names={"y"},
        )
        return lax.scan(lambda c, _: (inner(c) * 0.5 + x, c.sum()), x, None, length=3)[0]

    return w.shard_map(outer, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


@program("x=2,y=4", f32(8, 16), f32(16, 12))
def partly_manual_with_a_constraint_on_the_rest(w):
    def body(x, weight):
        spec = NamedSharding(jax.sharding.get_abstract_mesh(), P(None, "y"))
        hidden = jax.lax.with_sharding_constraint(x @ weight, spec)
        return lax.psum(jnp.tanh(hidden), "x")

    return w.shard_map(body, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"})


@program("x=2,y=4", f32(8, 16))
def partly_manual_collectives(w):
    def body(x):
        gathered = lax.all_gather(x, "y", axis=1, tiled=True)
        return lax.psum_scatter(gathered * 2, "y", scatter_dimension=1, tiled=True)

    return w.shard_map(body, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"})


@program("x=2,y=4", f32(8, 16), f32(16, 12))
def two_shard_maps_in_sequence_keep_the_axis_order(w):
    first = w.shard_map(lambda x: jnp.sin(x), in_specs=P("x", "y"), out_specs=P("x", "y"))
    second = w.shard_map(
        lambda x, weight: lax.psum(x @ weight, ("x", "y")),
        in_specs=(P(None, ("y", "x")), P(("y", "x"))),
        out_specs=P(),
    )
    return lambda x, weight: second(first(x), weight)


# -------------------------------------------------------------------------------- check_vma=False


@program("x=2,y=4", f32(8, 16))
def without_vma_a_psum_is_its_own_transpose(w):
    return w.shard_map(
        lambda x: lax.psum(x * x, "y"), in_specs=P("x", "y"), out_specs=P("x"), check_vma=False
    )


@program("x=2,y=4", f32(8, 16))
def without_vma_a_replicated_input_collects_gradients(w):
    return w.shard_map(
        lambda x: jnp.sin(x) * (1 + lax.axis_index("y")),
        in_specs=P("x"),
        out_specs=P("x", "y"),
        check_vma=False,
    )


# ------------------------------------------------------------------------------------ axis types


@program("x=2,y=4", f32(8, 16), f32(16, 12), explicit=True)
def explicit_axes(w):
    mapped = w.shard_map(
        lambda x, weight: lax.psum(x @ weight, "y"),
        in_specs=(P("x", "y"), P("y")),
        out_specs=P("x"),
    )

    def fun(x, weight):
        x = jax.sharding.reshard(x, NamedSharding(w.mesh, P("x", "y")))
        weight = jax.sharding.reshard(weight, NamedSharding(w.mesh, P("y", None)))
        return mapped(x, weight)

    return fun


@program("x=2,y=4", f32(8, 16), explicit=True)
def explicit_axes_infer_the_input_specs(w):
    def fun(x):
        x = jax.sharding.reshard(x, NamedSharding(w.mesh, P("x", "y")))
        return w.shard_map(lambda x: lax.pmean(x, "x"), out_specs=P(None, "y"))(x)

    return fun
