"""autoshard takes what people pass: static arguments, Equinox and NNX modules, donating jits."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from autoshard_programs import array, mlp_args, mlp_step
from flax import nnx

import shardlab
from shardlab.autoshard.arguments import bind_constants, find_state
from shardlab.tracing.stage import argument_names


def names_of(f, args):
    return [name for name, _ in argument_names(f, args)]


def test_a_jit_of_arrays_stays_as_it_is_with_its_donations():
    jitted = jax.jit(mlp_step, donate_argnums=0)
    args = mlp_args()
    assert bind_constants(jitted, args) == (jitted, args)


def test_static_arguments_become_constants():
    @functools.partial(jax.jit, static_argnums=2, static_argnames="scale")
    def repeat(w, x, n, scale=1.0):
        for _ in range(n):
            x = scale * (x @ w)
        return x

    args = (array(8, 8), array(4, 8), 3)
    f, bound = bind_constants(repeat, args)
    assert names_of(f, bound) == ["w", "x"]
    assert f.__name__ == "repeat"
    assert jax.eval_shape(f, *bound).shape == (4, 8)
    answer = shardlab.autoshard(repeat, *args, mesh="data=2", budget=3600, prove=False)
    assert [argument.name for argument in answer.arguments] == ["w", "x"]


def test_the_functions_of_an_equinox_module_become_constants():
    @eqx.filter_jit
    def step(model, x):
        gradients = eqx.filter_grad(lambda model: jnp.sum(jax.vmap(model)(x)))(model)
        return eqx.apply_updates(model, gradients)

    model = eqx.nn.MLP(8, 8, 24, 1, key=jax.random.key(0))
    f, args = bind_constants(step, (model, array(4, 8, dtype=jnp.float32)))
    assert names_of(f, args) == [
        "model.layers[0].weight",
        "model.layers[0].bias",
        "model.layers[1].weight",
        "model.layers[1].bias",
        "x",
    ]
    assert find_state(f, args) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_what_an_nnx_step_changes_in_place_comes_back_as_state():
    def step(model, x):
        gradients = nnx.grad(lambda model: jnp.sum(model(x)))(model)
        state = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda w, g: w - g, state, nnx.state(gradients)))
        return jnp.sum(x)

    model = nnx.Linear(8, 24, rngs=nnx.Rngs(0))
    f, args = bind_constants(step, (model, array(4, 8, dtype=jnp.float32)))
    n_leaves = len(jax.tree.leaves(model))
    assert find_state(f, args) == {index: index for index in range(n_leaves)}
    assert len(jax.tree.leaves(jax.eval_shape(f, *args))) == n_leaves + 1
