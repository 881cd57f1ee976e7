"""Unreduced arrays: each device holds a partial sum, and a reshard adds them up."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, auto_axes, reshard
from jax.sharding import PartitionSpec as P

from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def unreduced(function):
    """Add a program that runs with a mesh of Explicit axes set."""

    def run():
        with jax.set_mesh(jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)):
            return function()

    run.__name__ = function.__name__
    return program(run)


def operands(dtype=np.float32):
    x = jax.device_put(np.arange(32, dtype=dtype).reshape(4, 8), P("X", "Y"))
    y = jax.device_put(np.arange(16, dtype=dtype).reshape(8, 2), P("Y", None))
    return x, y


@jax.jit
def multiply(x, y):
    return jnp.einsum("ab,bc->ac", x, y, out_sharding=P("X", None, unreduced={"Y"}))


def shards(array):
    return [(shard.device.id, np.asarray(shard.data)) for shard in array.addressable_shards]


@unreduced
def products_of_shards():
    out = multiply(*operands())
    return str(out.sharding.spec), str(out.aval), shards(out)


@unreduced
def the_values_have_no_index():
    return [shard.index for shard in multiply(*operands()).addressable_shards]


@unreduced
def added_up_by_a_reshard():
    out = multiply(*operands())
    return reshard(out, P("X", None)), reshard(out, P(None, "X"))


@unreduced
def added_to_themselves_in_a_jit():
    return shards(jax.jit(lambda z: z + z)(multiply(*operands())))


@unreduced
def added_to_themselves_eagerly():
    out = multiply(*operands())
    return shards(out + out), reshard(out + out, P("X", None))


@unreduced
def integers():
    out = multiply(*operands(np.int32))
    return shards(out), reshard(out, P("X", None))


@unreduced
def sums_over_a_sharded_dimension():
    x, _ = operands()
    out = jax.jit(lambda x: jnp.einsum("ab->a", x, out_sharding=P("X", unreduced={"Y"})))(x)
    return shards(out), reshard(out, P("X"))


@unreduced
def sums_over_both_mesh_axes():
    x, _ = operands()
    out = jax.jit(lambda x: jnp.einsum("ab->", x, out_sharding=P(unreduced={"X", "Y"})))(x)
    return shards(out), reshard(out, P())


@unreduced
def a_replicated_array_made_unreduced():
    x = jax.device_put(np.arange(6.0).reshape(2, 3), P())
    return shards(reshard(x, P(None, None, unreduced={"Y"})))


@unreduced
def a_scalar_made_unreduced():
    x = jnp.array(3.0)
    before = [np.asarray(shard.data) for shard in x.addressable_shards]
    out = reshard(x, P(unreduced={"X"}))
    return before, shards(out), reshard(out, P())


@unreduced
def out_of_a_shard_map():
    x, _ = operands()
    body = lambda x: jax.lax.pcast(x.sum(1), "Y", to="unreduced")  # noqa: E731
    mapped = jax.shard_map(body, in_specs=P("X", "Y"), out_specs=P("X", unreduced={"Y"}))
    return shards(jax.jit(mapped)(x)), reshard(jax.jit(mapped)(x), P("X"))


@unreduced
def assembled_from_shards():
    out = multiply(*operands())
    parts = [shard.data for shard in out.addressable_shards]
    again = jax.make_array_from_single_device_arrays(out.shape, out.sharding, parts)
    return shards(again), reshard(again, P("X", None))


@unreduced
def placed_again():
    out = multiply(*operands())
    return shards(jax.device_put(out, out.sharding))


@unreduced
def a_numpy_array_placed_unreduced():
    mesh = jax.sharding.get_mesh()
    return jax.device_put(np.ones((2, 2)), NamedSharding(mesh, P(None, unreduced={"X"})))


@unreduced
def multiplied_by_a_number():
    return multiply(*operands()) * 2


@unreduced
def the_gradient_through_an_unreduced_product():
    x, y = operands()

    def loss(x, y):
        return reshard(multiply(x, y), P("X", None)).sum()

    return jax.jit(jax.grad(loss))(x, y)


@unreduced
def sums_inside_auto_axes():
    x, y = operands()
    product = auto_axes(lambda x, y: x @ y, out_sharding=P(None, None, unreduced={"Y"}))
    shifted_sum = auto_axes(lambda x: (2 * x.T - 1).sum(1), out_sharding=P(unreduced={"X"}))
    total = auto_axes(lambda x: x.sum((0, 1)), out_sharding=P(unreduced={"X", "Y"}))
    outs = jax.jit(product)(x, y), jax.jit(shifted_sum)(x), jax.jit(total)(x)
    return [shards(out) for out in outs]


@unreduced
def counts_and_segment_sums():
    segments = jax.device_put(np.array([0, 0, 1, 1, 1, 2, 2, 3]), P("Y"))
    values = jax.device_put(np.arange(8, dtype=np.int32), P("Y"))
    rows = jax.device_put(np.arange(16, dtype=np.int32).reshape(8, 2), P("Y", None))

    @jax.jit
    def count(segments):
        return jnp.bincount(segments, length=4, out_sharding=P(unreduced={"Y"}))

    @jax.jit
    def add_up(values, segments):
        return jax.ops.segment_sum(
            values, segments, num_segments=4, out_sharding=P(unreduced={"Y"})
        )

    outs = count(segments), add_up(values, segments), add_up(rows, segments)
    return [(str(out.sharding.spec), shards(out), reshard(out, P())) for out in outs]


@unreduced
def placed_again_with_another_spelling_of_its_spec():
    return shards(jax.device_put(multiply(*operands()), P("X", unreduced={"Y"})))


@unreduced
def compiled_for_another_number_of_devices():
    mesh = jax.sharding.get_abstract_mesh()
    x = jax.ShapeDtypeStruct((4, 8), np.float32, sharding=NamedSharding(mesh, P("X", "Y")))
    lowered = jax.jit(lambda x: x * 2).trace(x).lower(lowering_platforms=("cpu",))
    return str(lowered.compile(device_assignment=tuple(jax.devices()[:2])))


# From JAX 0.12 an unreduced value may be a maximum or minimum whose terms are on devices.
kinds = getattr(jax.sharding, "UnreducedKind", None)


def extreme(x, reduce, kind, *names):
    spec = P(*(() if len(names) == 2 else (None,)), unreduced=set(names), unreduced_kind=kind)
    dims = (0, 1) if len(names) == 2 else (0,)
    return jax.jit(lambda x: reduce(x, axes=dims, out_sharding=spec))(x)


if kinds is not None:

    @unreduced
    def maxima_and_minima_of_shards():
        x = jax.device_put(np.arange(32, dtype=np.float32).reshape(4, 8) - 9, P("X", None))
        y = jax.device_put(np.arange(32, dtype=np.int32).reshape(4, 8) - 9, P("X", "Y"))
        outs = (
            extreme(x, lax.reduce_max, kinds.max, "X"),
            extreme(x, lax.reduce_min, kinds.min, "X"),
            extreme(y, lax.reduce_max, kinds.max, "X", "Y"),
        )
        return [(shards(out), reshard(out, P())) for out in outs]

    @unreduced
    def a_maximum_over_devices_in_a_shard_map():
        x = jax.device_put(np.arange(32, dtype=np.float32).reshape(4, 8) - 9, P("X", None))
        out = extreme(x, lax.reduce_max, kinds.max, "X")
        return jax.jit(jax.shard_map(lambda x: lax.pmax(x, "X"), out_specs=P()))(out)

    @unreduced
    def an_array_placed_as_an_unreduced_maximum():
        x = jnp.arange(4)
        return jax.device_put(x, P(unreduced={"X"}, unreduced_kind=kinds.max))
