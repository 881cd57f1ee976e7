"""Functions of every kind that the judge must be able to export. Loaded as a submission."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def call_shard_map(mesh, body, in_specs, out_specs, *args, **options):
    sharded = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    return sharded(*args)


def total(x, mesh):
    (a, *_) = mesh.axis_names
    return call_shard_map(mesh, lambda x: lax.psum(x.sum(), a), P(a), P(), x)


def extremes(x, mesh):
    (a, *_) = mesh.axis_names
    return call_shard_map(
        mesh, lambda x: (lax.pmax(x.max(), a), lax.pmin(x.min(), a)), P(a), P(), x
    )


def all_gather_rows(x, mesh):
    (a, *_) = mesh.axis_names
    body = partial(lax.all_gather, axis_name=a, tiled=True)
    return call_shard_map(mesh, body, P(a), P(), x, check_vma=False)


def reduce_scatter_rows(x, w, mesh):
    (a, *_) = mesh.axis_names
    body = lambda x, w: lax.psum_scatter(x @ w, a, tiled=True)  # noqa: E731
    return call_shard_map(mesh, body, (P(None, a), P(a)), P(a), x, w)


def all_to_all_rows(x, mesh):
    (a, *_) = mesh.axis_names
    body = lambda x: lax.all_to_all(x, a, 1, 0, tiled=True)  # noqa: E731
    return call_shard_map(mesh, body, P(a), P(None, a), x)


def roll_rows(x, mesh):
    (a, *_) = mesh.axis_names

    def body(x):
        n = lax.axis_size(a)
        pairs = [(i, (i + 1) % n) for i in range(n)]
        return lax.fori_loop(0, 3, lambda _, x: lax.ppermute(x, a, pairs), x)

    return call_shard_map(mesh, body, P(a), P(a), x)


def bfloat16_sum(x, mesh):
    (a, *_) = mesh.axis_names
    return call_shard_map(mesh, lambda x: lax.psum(x.astype(jnp.bfloat16).sum(0), a), P(a), P(), x)


def unused_sum(x, mesh):
    (a, *_) = mesh.axis_names

    def body(x):
        lax.psum(x, a)
        return x

    return call_shard_map(mesh, body, P(a), P(a), x)


def global_index(n, mesh):
    (a, *_) = mesh.axis_names

    def body():
        k = n // lax.axis_size(a)
        return lax.axis_index(a) * k + jnp.arange(k)

    return call_shard_map(mesh, body, (), P(a))


def gradient(x, w, mesh):
    (a, *_) = mesh.axis_names

    def loss(w, x):
        return call_shard_map(
            mesh, lambda w, x: lax.pmean(jnp.mean((x @ w) ** 2), a), (P(), P(a)), P(), w, x
        )

    return jax.value_and_grad(loss)(w, x)


def gradient_inside(x, w, mesh):
    (a, *_) = mesh.axis_names

    def body(w, x):
        return jax.value_and_grad(lambda w: lax.pmean(jnp.mean((x @ w) ** 2), a))(w)

    return call_shard_map(mesh, body, (P(), P(a)), P(), w, x)


def contraction(x, w, mesh):
    (a, *_) = mesh.axis_names
    x = jax.device_put(x, NamedSharding(mesh, P(None, a)))
    w = jax.device_put(w, NamedSharding(mesh, P(a)))
    return lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P()))


def contraction_and_folded_scalar(x, w, mesh):
    """Calls a small psum that the compiler folds away, beside a large one that it inserts."""
    (a, *_) = mesh.axis_names
    zero = call_shard_map(mesh, lambda w: lax.psum(w[0, 0].astype(int), a) * 0, P(a), P(), w)
    return contraction(x, w, mesh) + zero


def contraction_and_folded_int8(x, w, mesh):
    """Calls a folded psum of as many elements as the inserted one, with a quarter of the bytes."""
    (a, *_) = mesh.axis_names
    body = lambda x: lax.psum(x[:, :3].astype(jnp.int8), a) * 0  # noqa: E731
    return contraction(x, w, mesh) + call_shard_map(mesh, body, P(), P(), x, check_vma=False)


def roll_until(x, mesh, step=1):
    """Calls a ppermute in a loop whose length depends on the values, or which counts down."""
    (a, *_) = mesh.axis_names

    def body(x):
        n = lax.axis_size(a)
        pairs = [(i, (i + 1) % n) for i in range(n)]
        end = 3 if step < 0 else lax.pmax(x.max(), a).astype(int) // 30

        def step_once(state):
            return state[0] + step, lax.ppermute(state[1], a, pairs)

        return lax.while_loop(lambda state: state[0] < end, step_once, (0, x))[1]

    return call_shard_map(mesh, body, P(a), P(a), x)


def roll_forever(x, mesh):
    return roll_until(x, mesh, step=-1)


def sharded_double(x, mesh):
    (a, *_) = mesh.axis_names
    double = jax.jit(lambda x: 2 * x, out_shardings=NamedSharding(mesh, P(a)))
    return double(x)


def device_put_result(x, spec, mesh):
    return jax.device_put(x, NamedSharding(mesh, spec))


def device_put_on_explicit_axes(x, spec, mesh):
    explicit = jax.make_mesh(mesh.axis_sizes, mesh.axis_names)
    return jax.device_put(x, NamedSharding(explicit, spec))


def set_mesh_context(x, mesh):
    (a, *_) = mesh.axis_names
    with jax.set_mesh(mesh):
        return jax.shard_map(lambda x: lax.psum(x, a), in_specs=P(a), out_specs=P())(x)


@partial(jax.jit, static_argnames="mesh")
def jitted_total(x, mesh):
    return total(x, mesh)


def dropout(key, x, mesh):
    (a, *_) = mesh.axis_names

    def body(key, x):
        return x * jax.random.bernoulli(jax.random.fold_in(key, lax.axis_index(a)), 0.5, x.shape)

    return call_shard_map(mesh, body, (P(), P(a)), P(a), key, x)


def linear(x, mesh):
    (a, *_) = mesh.axis_names
    graph, state = nnx.split(nnx.Linear(x.shape[1], 3, rngs=nnx.Rngs(0)))
    body = lambda state, x: nnx.merge(graph, state)(x)  # noqa: E731
    return call_shard_map(mesh, body, (P(), P(a)), P(a), state, x)


def parameters(seed):
    return nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(seed)))


def nested_containers(x, mesh):
    return {"x": x, "pair": (x, [x + 1])}


@partial(jax.tree_util.register_dataclass, data_fields=["first"], meta_fields=["name"])
@dataclass
class Named:
    first: jax.Array
    name: str = "any"


class Pair(NamedTuple):
    first: jax.Array
    second: Named


def class_instances(x, mesh):
    return Pair(x, Named(x + 1))


def constant(x, mesh):
    return 3.5


def random_key(seed):
    return jax.random.key(seed)


def total_on_all_devices(x):
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    return total(x, mesh)


def differing_replicas(x, mesh):
    (a, *_) = mesh.axis_names
    return call_shard_map(mesh, lambda x: x.sum(), P(a), P(), x, check_vma=False)


def differing_replicas_inside(x, mesh):
    return differing_replicas(x, mesh) * 0 + jnp.sum(x)
