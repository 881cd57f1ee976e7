"""Attributes and conversions of sharded arrays."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placement import mesh_2x4, put
from side_by_side.registry import Programs

PROGRAMS = program = Programs()


@program
def conversions():
    x = put(P("data", "model"))
    total = x.sum()
    return [
        np.asarray(x),
        float(total),
        int(total),
        bool(total > 0),
        f"{total:.2f}",
        str(x),
        repr(x),
        repr(total),
        len(x),
        x.tolist()[0],
        x.item(5),
        np.sum(x),
        [float(row.sum()) for row in x],
        x.nbytes,
        x.itemsize,
        isinstance(x, jax.Array),
        isinstance(x, np.ndarray),
        x.is_fully_addressable,
        x.is_fully_replicated,
        sorted(d.id for d in x.devices()),
        jax.tree.map(lambda a: a.sharding, {"x": x}),
        x.sharding.shard_shape(x.shape),
        str(x.aval),
        str(jax.typeof(x)),
        len(x.global_shards),
        x.addressable_data(0),
        x.device,
        x.format.sharding,
        x.on_device_size_in_bytes(),
    ]


@program
def copies():
    x = put(P("data"))
    return [copy.copy(x), copy.deepcopy(x), x.copy(), jnp.array(x), jnp.asarray(x), jnp.copy(x)]


@program
def pickle_round_trip():
    return pickle.loads(pickle.dumps(put(P("data"))))


@program
def iteration_over_rows():
    return list(put(P("data"), (4, 2))), list(put(P(), (4, 2)))


@program
def shard_data_is_an_array():
    x = put(P("data"))
    first, last = x.addressable_shards[0], x.addressable_shards[-1]
    return [first.data, last.data, last.data + 1, first.device, last.device, repr(last.index)]


@program
def block_until_ready():
    x = put(P("data"))
    jax.block_until_ready({"x": x})
    jax.effects_barrier()
    return x.block_until_ready(), x.is_ready()


@program
def sharding_equivalence():
    x = put(P("data", None))
    equivalent = NamedSharding(mesh_2x4(), P("data"))
    return [
        x.sharding == equivalent,
        x.sharding.is_equivalent_to(equivalent, 2),
        x.sharding.num_devices,
    ]


@program
def shape_dtype_struct():
    s = NamedSharding(mesh_2x4(), P("data"))
    struct = jax.ShapeDtypeStruct((4, 2), jnp.float32, sharding=s)
    out = jax.eval_shape(lambda x: x * 2, struct)
    return struct.sharding, out.shape, str(out.dtype)


@program
def device_get():
    return jax.device_get({"x": put(P("data")), "y": 2})


@program
def default_device():
    with jax.default_device(jax.devices()[3]):
        return jnp.ones(2), jnp.arange(3) * 2


@program
def old_device_put_sharded():
    if not hasattr(jax, "device_put_replicated"):
        return None
    return jax.device_put_replicated(jnp.arange(3.0), jax.devices()[:2])
