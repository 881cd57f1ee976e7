"""Small programs for the tests of autoshard; every dimension has a size of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def mlp_loss(params, x):
    hidden = jax.nn.relu(x @ params["up"])
    return jnp.mean((hidden @ params["down"]).astype(jnp.float32) ** 2)


def mlp_step(params, x):
    value, gradients = jax.value_and_grad(mlp_loss)(params, x)
    return jax.tree.map(lambda w, g: w - g, params, gradients), value


def mlp_args(batch=8192, width=2048, hidden=6144):
    return {"up": array(width, hidden), "down": array(hidden, width)}, array(batch, width)


def layers_step(params, x):
    """A scan over layers, and momentum beside the parameters."""

    def loss(weights):
        def layer(x, w):
            return x + jax.nn.relu(x @ w["up"]) @ w["down"], None

        out, _ = jax.lax.scan(layer, x, weights)
        return jnp.mean(out.astype(jnp.float32) ** 2)

    weights, momentum = params["weights"], params["momentum"]
    value, gradients = jax.value_and_grad(loss)(weights)
    momentum = jax.tree.map(lambda m, g: m + g, momentum, gradients)
    weights = jax.tree.map(lambda w, m: w - m, weights, momentum)
    return {"weights": weights, "momentum": momentum}, value


def layers_args(layers=4, batch=4096, width=1024, hidden=3072):
    weights = {"up": array(layers, width, hidden), "down": array(layers, hidden, width)}
    return {"weights": weights, "momentum": weights}, array(batch, width)
