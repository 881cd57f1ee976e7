"""Devices, meshes, and every way to put arrays on them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from side_by_side.registry import Programs

PROGRAMS = program = Programs()
AUTO = (AxisType.Auto,)


def mesh_2x4(types=AUTO * 2):
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=types)


def put(spec, shape=(8, 12), mesh=None):
    values = jnp.arange(float(np.prod(shape))).reshape(shape)
    return jax.device_put(values, NamedSharding(mesh or mesh_2x4(), spec))


# ------------------------------------------------------------------------------------- devices


@program
def device_counts():
    return [
        len(jax.devices()),
        len(jax.devices("cpu")),
        len(jax.local_devices()),
        len(jax.local_devices(backend="cpu")),
        jax.device_count(),
        jax.local_device_count(),
        jax.process_count(),
        jax.process_index(),
        jax.default_backend(),
        [d.id for d in jax.devices()],
        [d.process_index for d in jax.devices()],
        [d.platform for d in jax.devices()],
        isinstance(jax.devices()[0], jax.Device),
        jax.devices()[0] == jax.devices()[0],
        len(set(jax.devices())),
        jax.devices()[0].client.platform,
        [m.kind for m in jax.devices()[0].addressable_memories()],
    ]


@program
def unknown_platform():
    return jax.devices("tpu")


@program
def mesh_constructors():
    devices = jax.devices()
    return [
        jax.make_mesh((8,), ("x",)),
        jax.make_mesh((2, 4), ("x", "y"), axis_types=AUTO * 2),
        jax.make_mesh((2, 2), ("x", "y"), devices=devices[:4]),
        jax.make_mesh((4,), ("x",)),
        Mesh(np.array(devices).reshape(4, 2), ("x", "y")),
        Mesh(devices, ("x",)),
        Mesh(np.array(devices)[::-1].reshape(2, 4), ("x", "y")),
        Mesh(devices[:4], ("x",)),
        Mesh(mesh_utils.create_device_mesh((4, 2)), ("x", "y")),
        Mesh(mesh_utils.create_device_mesh((2, 2), devices[2:6]), ("x", "y")),
    ]


@program
def mesh_that_is_too_large():
    return jax.make_mesh((16,), ("x",))


@program
def device_mesh_that_does_not_fit():
    return mesh_utils.create_device_mesh((3, 3))


@program
def mesh_equality():
    first, second = mesh_2x4(), mesh_2x4()
    return [first == second, first is second, hash(first) == hash(second), first.local_mesh]


# ------------------------------------------------------------------------------------- device_put


def _put_program(spec, shape=(8, 12)):
    return lambda: put(spec, shape)


PROGRAMS.update(
    {
        f"put_{name}": _put_program(spec)
        for name, spec in {
            "replicated": P(),
            "rows": P("data"),
            "columns": P(None, "model"),
            "both": P("data", "model"),
            "swapped": P("model", "data"),
            "tuple": P(("data", "model")),
            "tuple_swapped": P(("model", "data")),
            "long": P("data", None),
        }.items()
    }
)


@program
def put_indivisible():
    return put(P("model"), (6, 3))


@program
def put_unknown_axis():
    return put(P("modle"))


@program
def put_spec_too_long():
    return put(P("data", None, "model"))


@program
def put_permuted_devices():
    mesh = Mesh(np.array(jax.devices())[[3, 1, 0, 2, 7, 6, 5, 4]].reshape(2, 4), ("a", "b"))
    return put(P("a", "b"), mesh=mesh)


@program
def put_submesh():
    return put(P("x"), mesh=Mesh(jax.devices()[:4], ("x",)))


@program
def put_on_a_device():
    return jax.device_put(jnp.arange(3.0), jax.devices()[5])


@program
def put_single_device_sharding():
    return jax.device_put(np.arange(3), SingleDeviceSharding(jax.devices()[2]))


@program
def put_without_target():
    return jax.device_put(np.arange(3.0)), jax.device_put(2), jax.device_put(1.5)


@program
def put_numpy_dtypes():
    sharding = NamedSharding(mesh_2x4(), P("data"))
    kinds = [np.int64, np.float64, np.int8, np.bool_, np.complex64, jnp.bfloat16]
    return [jax.device_put(np.arange(4).astype(kind), sharding) for kind in kinds]


@program
def put_tree_one_sharding():
    tree = {"w": np.ones((8, 4)), "b": [np.arange(8), jnp.arange(2.0)]}
    return jax.device_put(tree, NamedSharding(mesh_2x4(), P("data")))


@program
def put_tree_of_shardings():
    mesh = mesh_2x4()
    tree = {"w": np.arange(32.0).reshape(8, 4), "b": np.arange(8)}
    specs = {"w": NamedSharding(mesh, P(None, "model")), "b": NamedSharding(mesh, P())}
    return jax.device_put(tree, specs)


@program
def put_tree_prefix():
    mesh = mesh_2x4()
    tree = {"w": [np.arange(4), np.arange(8)], "b": np.arange(8)}
    specs = {"w": NamedSharding(mesh, P("model")), "b": NamedSharding(mesh, P())}
    return jax.device_put(tree, specs)


@program
def put_spec_under_set_mesh():
    with jax.set_mesh(mesh_2x4()):
        return jax.device_put(np.arange(8.0), P("data"))


@program
def put_spec_without_mesh():
    return jax.device_put(np.arange(8.0), P("data"))


@program
def put_on_another_mesh():
    x = put(P("data", "model"))
    y = jax.device_put(x, NamedSharding(mesh_2x4(), P("model")))
    reversed_mesh = Mesh(np.array(jax.devices())[::-1], ("x",))
    return x, y, jax.device_put(y, NamedSharding(reversed_mesh, P(None))), jax.device_put(x)


@program
def put_on_fewer_devices_and_back():
    x = put(P("data"))
    y = jax.device_put(x, jax.devices()[1])
    return y, jax.device_put(y, x.sharding)


@program
def put_donates():
    x = put(P("data"))
    y = jax.device_put(x, NamedSharding(mesh_2x4(), P("model")), donate=True)
    return y, x.is_deleted()


@program
def put_may_alias():
    x = put(P("data"))
    y = jax.device_put(x, x.sharding, may_alias=True)
    z = jax.device_put(x, x.sharding, may_alias=False)
    return y, z, y is x, z is x


@program
def put_keys():
    keys = jax.random.split(jax.random.key(0), 8)
    return jax.device_put(keys, NamedSharding(mesh_2x4(), P("data")))


@program
def put_scalar():
    return jax.device_put(3.0, NamedSharding(mesh_2x4(), P()))


@program
def put_in_host_memory():
    x = put(P("data"))
    host = x.sharding.with_memory_kind("pinned_host")
    y = jax.device_put(x, host)
    return y, jax.device_put(y, x.sharding)


@program
def put_inside_jit():
    sharding = NamedSharding(mesh_2x4(), P(None, "model"))
    return jax.jit(lambda x: jax.device_put(x + 1, sharding))(put(P("data")))


@program
def deleted_array():
    x = put(P("data"))
    x.delete()
    return x + 1


@program
def deleted_array_value():
    x = put(P("data"))
    x.delete()
    return np.asarray(x)


# ------------------------------------------------------------------------------- making arrays


@program
def arrays_made_on_a_sharding():
    s = NamedSharding(mesh_2x4(), P("data"))
    return [
        jnp.zeros((4, 3), device=s),
        jnp.ones(8, dtype=jnp.int32, device=s),
        jnp.full((4,), 2.5, device=s),
        jnp.arange(8, device=s),
        jnp.array([1, 2], device=s),
        jnp.asarray(np.arange(4), device=s),
        jnp.zeros_like(jnp.ones(4), device=s),
        jnp.empty((2, 2), device=s),
        jnp.eye(4, device=s),
        jnp.linspace(0, 1, 4, device=s),
        jnp.zeros(3, device=jax.devices()[4]),
    ]


@program
def from_callback():
    rows = np.arange(96.0).reshape(8, 12)
    s = NamedSharding(mesh_2x4(), P("data", "model"))
    return jax.make_array_from_callback((8, 12), s, lambda index: rows[index])


@program
def from_callback_replicated():
    s = NamedSharding(mesh_2x4(), P())
    return jax.make_array_from_callback((4,), s, lambda index: np.arange(4, dtype=np.int32)[index])


@program
def from_callback_of_wrong_shape():
    s = NamedSharding(mesh_2x4(), P("data"))
    return jax.make_array_from_callback((4,), s, lambda index: np.arange(3))


@program
def from_callback_of_jax_arrays():
    s = NamedSharding(mesh_2x4(), P("model"))
    return jax.make_array_from_callback((8,), s, lambda index: jnp.arange(8.0)[index])


@program
def from_process_local_data():
    s = NamedSharding(mesh_2x4(), P("data"))
    return jax.make_array_from_process_local_data(s, np.arange(16.0).reshape(8, 2))


@program
def from_process_local_data_with_shape():
    s = NamedSharding(mesh_2x4(), P("data"))
    return jax.make_array_from_process_local_data(s, np.arange(8), (8,))


@program
def from_single_device_arrays():
    s = NamedSharding(mesh_2x4(), P("data", "model"))
    full_array = np.arange(32.0).reshape(4, 8)
    shards = [
        jax.device_put(full_array[index], device)
        for device, index in s.addressable_devices_indices_map(full_array.shape).items()
    ]
    return jax.make_array_from_single_device_arrays(full_array.shape, s, shards)


@program
def from_too_few_single_device_arrays():
    s = NamedSharding(mesh_2x4(), P("data", "model"))
    shards = [jax.device_put(jnp.ones((2, 2)), jax.devices()[0])]
    return jax.make_array_from_single_device_arrays((4, 8), s, shards)


@program
def from_single_device_arrays_of_wrong_shape():
    s = NamedSharding(mesh_2x4(), P("data", "model"))
    shards = [jax.device_put(jnp.ones((2, 3)), d) for d in jax.devices()]
    return jax.make_array_from_single_device_arrays((4, 8), s, shards)
