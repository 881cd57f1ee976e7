"""Complete models in the style of the Flax, Optax, Equinox and Orbax documentation."""

import functools
import tempfile

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placement import mesh_2x4
from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def batch(n=8, mesh=None):
    x = np.linspace(-1, 1, n * 4, dtype=np.float32).reshape(n, 4)
    y = np.sin(x[:, :2] * 3)
    return jax.device_put((x, y), NamedSharding(mesh or mesh_2x4(), P("data")))


# ------------------------------------------------------------------------------------------ NNX


class Mlp(nnx.Module):
    def __init__(self, rngs, axes=(None, "model")):
        first = nnx.with_partitioning(nnx.initializers.lecun_normal(), axes)
        second = nnx.with_partitioning(nnx.initializers.lecun_normal(), axes[::-1])
        self.first = nnx.Linear(4, 8, kernel_init=first, rngs=rngs)
        self.second = nnx.Linear(8, 2, kernel_init=second, use_bias=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return self.second(self.dropout(jax.nn.relu(self.first(x))))


@nnx.jit
def create_sharded():
    model = Mlp(nnx.Rngs(0))
    state = nnx.state(model)
    nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model


def values(tree):
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(tree, nnx.Param)))


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


@program
def nnx_created_sharded():
    with jax.set_mesh(mesh_2x4()):
        return values(create_sharded())


@program
def nnx_created_eagerly():
    with jax.set_mesh(mesh_2x4()):
        return values(Mlp(nnx.Rngs(0)))


@program
def nnx_training_loop():
    with jax.set_mesh(mesh_2x4()):
        model = create_sharded()
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        losses = [train_step(model, optimizer, *batch()) for _ in range(3)]
        moments = jax.tree.leaves(nnx.to_pure_dict(nnx.state(optimizer, nnx.optimizer.OptState)))
        return losses, values(model), moments


@program
def nnx_split_and_merge():
    with jax.set_mesh(mesh_2x4()):
        graph, state = nnx.split(create_sharded())
        state = jax.tree.map(lambda x: x, state)
        model = nnx.merge(graph, state)
        model.eval()
        return jax.jit(lambda x: model(x))(batch()[0]), values(model)


@program
def nnx_data_parallel():
    mesh = mesh_2x4()
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    state = nnx.state((model, optimizer))
    nnx.update((model, optimizer), jax.device_put(state, NamedSharding(mesh, P())))
    return [train_step(model, optimizer, *batch()) for _ in range(2)], values(model)


@program
def nnx_shard_map():
    mesh = mesh_2x4()
    model = nnx.Linear(4, 8, rngs=nnx.Rngs(0))

    @nnx.shard_map(mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    def forward(model, x):
        return model(x)

    return forward(model, batch()[0])


@program
def nnx_explicit():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with jax.set_mesh(mesh):
        model = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
        x = jax.device_put(np.ones((8, 4), np.float32), P("data"))
        y = model(x)
        return y, str(jax.typeof(y))


@program
def nnx_vmapped_layers():
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def create(rngs):
        return nnx.Linear(4, 4, rngs=rngs)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def forward(x, layer):
        return jax.nn.relu(layer(x))

    return forward(batch()[0], create(nnx.Rngs(0)))


# ---------------------------------------------------------------------------------------- Linen


@program
def linen_with_partitioning():
    class Dense(nn.Module):
        @nn.compact
        def __call__(self, x):
            init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
            return nn.Dense(8, kernel_init=init)(x)

    mesh, (x, _) = mesh_2x4(), batch()
    model = Dense()
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    shardings = nn.get_sharding(shapes, mesh)
    params = jax.jit(model.init, out_shardings=shardings)(jax.random.key(0), x)
    return jax.tree.leaves(params), jax.jit(model.apply)(params, x)


# ---------------------------------------------------------------------------------------- Optax


@program
def optax_with_sharded_parameters():
    mesh = mesh_2x4()
    specs = {"w": P(None, "model"), "v": P("model"), "b": P()}
    params = {
        "w": jnp.linspace(-1, 1, 32).reshape(4, 8),
        "v": jnp.linspace(-1, 1, 16).reshape(8, 2),
        "b": jnp.zeros(2),
    }
    params = jax.device_put(params, jax.tree.map(lambda s: NamedSharding(mesh, s), specs))
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    state = jax.jit(transform.init)(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, y):
        def loss(p):
            return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] + p["b"] - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    for _ in range(3):
        params, state, value = step(params, state, *batch())
    return params, jax.tree.leaves(state), value


# -------------------------------------------------------------------------------------- Equinox


@program
def equinox_training():
    mesh = mesh_2x4()
    replicated, sharded = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    model = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    model, state = eqx.filter_shard((model, state), replicated)

    @eqx.filter_jit(donate="all")
    def step(model, state, x, y):
        model, state = eqx.filter_shard((model, state), replicated)
        x, y = eqx.filter_shard((x, y), sharded)

        def loss(m):
            return jnp.mean((jax.vmap(m)(x) - y) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state)
        return *eqx.filter_shard((eqx.apply_updates(model, updates), state), replicated), value

    values = []
    for _ in range(3):
        model, state, value = step(model, state, *batch())
        values.append(value)
    return values, jax.tree.leaves(eqx.filter(model, eqx.is_array))


# ---------------------------------------------------------------------------------------- Orbax


@program
def orbax_saved_and_restored():
    mesh = mesh_2x4()
    tree = {
        "w": jax.device_put(np.arange(32.0).reshape(4, 8), NamedSharding(mesh, P("data", "model"))),
        "b": jax.device_put(np.arange(8), NamedSharding(mesh, P("model"))),
        "step": 3,
    }
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as saver:
        saver.save(f"{folder}/a", tree)
        saver.wait_until_finished()
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
        moved = dict(like)
        moved["w"] = jax.ShapeDtypeStruct(
            (4, 8), jnp.float32, sharding=NamedSharding(mesh, P("model"))
        )
        return saver.restore(f"{folder}/a", like), saver.restore(f"{folder}/a", moved)
