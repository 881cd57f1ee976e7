"""Labels of arrays that a program reads shard by shard, and the texts of devices and specs."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def make_mesh(kind=AxisType.Auto):
    return jax.make_mesh((2, 4), ("X", "Y"), axis_types=(kind,) * 2)


def put(value, *entries, kind=AxisType.Auto):
    return jax.device_put(value, NamedSharding(make_mesh(kind), P(*entries)))


# ---------------------------------------------------------------- reading shards changes nothing


@program
def reading_the_shards_of_a_scalar_leaves_its_sharding():
    step = put(np.float32(2))
    shards = [np.asarray(shard.data) for shard in step.addressable_shards]
    return step, len(shards), jax.jit(lambda x, s: x * s)(put(np.ones(8), "X"), step)


@program
def a_train_loop_that_saves_its_state_between_steps():
    update = jax.jit(lambda state: {"w": state["w"] * 2, "step": state["step"] + 1})
    state = {"w": put(np.ones((4, 8), np.float32), "X", "Y"), "step": put(np.int32(0))}
    for _ in range(2):
        state = update(state)
        saved = [[np.asarray(s.data) for s in leaf.addressable_shards] for leaf in state.values()]
    return state, saved


@program
def reading_the_shards_of_a_replicated_array_leaves_its_sharding():
    x = put(np.arange(6.0).reshape(2, 3))
    shards = [shard.data for shard in x.addressable_shards]
    return x, shards[3], x.addressable_data(0), x + 1


@program
def shards_of_replicated_random_keys():
    key = put(jax.random.key(0))
    shard = key.addressable_shards[1].data
    return key.sharding, shard.sharding, jax.random.key_data(key)


@program
def the_array_behind_random_keys_in_the_first_and_second_call():
    seeds = put(np.arange(32, dtype=np.uint32).reshape(4, 8), "X", "Y")
    make_keys = jax.jit(lambda seeds: jax.vmap(jax.vmap(jax.random.key))(seeds).T)
    keys = [make_keys(seeds) for _ in range(3)]
    return [(k.sharding, jax.random.key_data(k)) for k in keys]


@program
def addressable_data_of_a_replicated_array_is_the_first_copy():
    x = put(np.arange(4.0))
    return x.addressable_data(0), x.addressable_data(7), x.addressable_data(20)


@program
def shards_of_an_uncommitted_array_are_uncommitted():
    (shard,) = jnp.arange(3).addressable_shards
    return shard.data


# --------------------------------------------------------------------------------- other devices


@program
def output_sharding_on_other_devices_than_the_mesh_in_context():
    part = Mesh(np.array(jax.devices()[:4]), ("Z",))
    with jax.set_mesh(make_mesh()):
        return jax.jit(lambda x: x + 1, out_shardings=NamedSharding(part, P("Z")))(jnp.arange(4))


@program
def output_on_one_device_with_a_mesh_in_context():
    with jax.set_mesh(make_mesh()):
        device = SingleDeviceSharding(jax.devices()[3])
        return jax.jit(lambda x: x + 1, out_shardings=device)(jnp.arange(4))


@program
def scales_made_eagerly_meet_sharded_weights():
    weights = put(np.arange(32.0, dtype=np.float32).reshape(4, 8), "X", "Y")
    scale = jnp.max(jnp.abs(weights), axis=0, keepdims=True) / 127
    quantized = jnp.round(weights / scale).astype(jnp.int8)
    dequantize = jax.jit(lambda q, s: q * s)
    return scale, quantized, dequantize(quantized, scale)


# ------------------------------------------------------------------------------------------- texts


@program
def texts_of_devices():
    device = jax.devices()[3]
    return [repr(device), str(device), device.platform, device.device_kind, device.task_id]


@program
def texts_of_memories():
    device = jax.devices()[3]
    return [repr(memory) for memory in device.addressable_memories()], repr(device.default_memory())


@program
def texts_of_meshes_and_shardings():
    x = put(np.ones((4, 8)), "X")
    return [str(x.sharding), repr(x.sharding.mesh), str(x.sharding.mesh.abstract_mesh)]


@program
def types_of_concrete_arrays():
    auto, explicit = put(np.ones((4, 8)), "X"), put(np.ones((4, 8)), "X", kind=AxisType.Explicit)
    doubled = jax.jit(lambda x: x * 2)
    return [str(x.aval.sharding) for x in (auto, explicit, doubled(auto), doubled(explicit))]


@program
def specs_of_an_eager_shard_map_are_its_out_specs():
    mesh = make_mesh(AxisType.Explicit)
    x = put(np.arange(32.0).reshape(4, 8), "X", kind=AxisType.Explicit)
    outs = [
        jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("X"), out_specs=spec)(x)
        for spec in (P("X"), P("X", None))
    ]
    return [str(out.sharding.spec) for out in outs], outs[0].sharding == outs[1].sharding


@program
def specs_with_explicit_and_auto_axes():
    mesh = jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.arange(32.0).reshape(4, 8), NamedSharding(mesh, P("X", None)))
        return jax.jit(lambda x: x * 2)(x), jax.jit(lambda x: x.T)(x)


@program
def shardings_of_the_inputs_of_a_compiled_program():
    x = put(np.ones((4, 8)), "X")
    compiled = jax.jit(lambda x, y: (x * 2, y.T)).lower(x, np.ones((4, 8))).compile()
    return jax.tree.leaves(compiled.input_shardings)


# ----------------------------------------------------------------------- lowered without devices


@program
def compiled_for_devices_after_lowering_on_an_abstract_mesh():
    mesh = make_mesh()
    sharding = NamedSharding(mesh.abstract_mesh, P("X"))
    shape = jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding)
    lowered = jax.jit(lambda x: x * 2).trace(shape).lower(lowering_platforms=("cpu",))
    compiled = lowered.compile(device_assignment=tuple(mesh.devices.flat))
    return compiled(put(np.arange(8, dtype=np.float32), "X"))


@program
def compiled_without_devices_after_lowering_on_an_abstract_mesh():
    sharding = NamedSharding(make_mesh().abstract_mesh, P("X"))
    shape = jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding)
    lowered = jax.jit(lambda x: x * 2).trace(shape).lower(lowering_platforms=("cpu",))
    return lowered.compile()


@program
def compiled_for_other_devices_than_lowered_for():
    x = put(np.arange(8.0), "X")
    return jax.jit(lambda x: x * 2).lower(x).compile(device_assignment=tuple(jax.devices()[:2]))


# ------------------------------------------------------------------------------ errors, donation


@program
def shards_that_are_traced():
    sharding = jnp.arange(4).sharding
    assemble = jax.make_array_from_single_device_arrays
    return jax.jit(lambda x: assemble(x.shape, sharding, [x]))(jnp.arange(4))


@program
def shards_that_are_no_list():
    sharding = jnp.arange(4).sharding
    assemble = jax.make_array_from_single_device_arrays
    return jax.jit(lambda x: assemble(x.shape, sharding, x))(jnp.arange(4))


@program
def an_argument_that_is_no_array():
    x = {"a": np.ones(2), "b": {"c": jax.ShapeDtypeStruct((2,), np.float32)}}
    return jax.jit(lambda x: x)(x)


@program
def donated_arrays_that_device_put_reshards():
    pairs = [(("X",), (None, "X")), (("X",), ("Y",)), (("X",), ("X",)), ((), ("X",))]
    deleted = []
    for before, after in pairs:
        x = put(np.ones((4, 8)), *before)
        jax.device_put(x, NamedSharding(make_mesh(), P(*after)), donate=True)
        deleted.append(x.is_deleted())
    return deleted


@program
def nans_in_an_eager_shard_map():
    divide = jax.shard_map(lambda x: 0.0 / x, mesh=make_mesh(), in_specs=P("X"), out_specs=P("X"))
    with jax.debug_nans(True):
        return divide(jnp.ones(4)), divide(jnp.array([1.0, 1.0, 0.0, 1.0]))


@program
def nans_in_a_jitted_shard_map():
    divide = jax.shard_map(lambda x: 0.0 / x, mesh=make_mesh(), in_specs=P("X"), out_specs=P("X"))
    with jax.debug_nans(True):
        return jax.jit(divide)(jnp.array([1.0, 1.0, 0.0, 1.0]))


# ------------------------------------------------------------------------- forbidden collectives


def forbid_collectives(function):
    """Run a function with `jax.sharding.no_collectives`, which JAX 0.10 does not have."""
    forbid = getattr(jax.sharding, "no_collectives", None)
    if forbid is None:
        return "not in this JAX"
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh), forbid({"Y"}):
        return function(put(np.arange(32.0).reshape(4, 8), "X", "Y", kind=AxisType.Explicit))


@program
def a_forbidden_psum():
    body = lambda x: jax.lax.psum(x, "Y")  # noqa: E731
    return forbid_collectives(jax.shard_map(body, in_specs=P("X", "Y"), out_specs=P("X")))


@program
def an_allowed_psum_beside_a_forbidden_axis():
    body = lambda x: jax.lax.psum(x, "X")  # noqa: E731
    return forbid_collectives(jax.shard_map(body, in_specs=P("X", "Y"), out_specs=P(None, "Y")))


@program
def a_forbidden_reshard():
    return forbid_collectives(lambda x: jax.reshard(x, P("X", None)))


@program
def a_forbidden_sum():
    return forbid_collectives(lambda x: jax.jit(lambda x: x.sum(1))(x))


@program
def constant_outputs_beside_those_of_a_shard_map():
    mesh = make_mesh(AxisType.Auto)
    body = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("X"), out_specs=P("X"))
    inner = jax.jit(lambda x: (3.0, body(x), 4))
    return jax.jit(lambda x: {"a": inner(x), "b": 5.0})(np.arange(8.0))
