"""A mixture of 64 experts with dense dispatch: one-hot einsums, as in GShard."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program

_CAPACITY = 64


def expert_layer(params, x):
    """Send each token of a group to its best expert, up to the capacity."""
    gates = jax.nn.softmax((x @ params["router"]).astype(jnp.float32))
    chosen = jax.nn.one_hot(jnp.argmax(gates, -1), gates.shape[-1], dtype=jnp.int32)
    position = jnp.cumsum(chosen, axis=1) * chosen - 1
    dispatch = jax.nn.one_hot(position, _CAPACITY, dtype=x.dtype) * chosen[..., None].astype(
        x.dtype
    )
    combine = dispatch * gates[..., None].astype(x.dtype)
    inputs = jnp.einsum("gsec,gsd->egcd", dispatch, x)
    hidden = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", inputs, params["up"]))
    outputs = jnp.einsum("egcf,efd->egcd", hidden, params["down"])
    return jnp.einsum("gsec,egcd->gsd", combine, outputs)


def loss(params, x, target):
    for layer in params:
        x = x + expert_layer(layer, x)
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    layer = {
        "router": array(2048, 64),
        "up": array(64, 2048, 8192),
        "down": array(64, 8192, 2048),
    }
    x = array(128, 1024, 2048)
    return train_program(
        loss, [layer] * 2, x, x, meshes=("data=64", "data=8,expert=8", "data=4,expert=8,model=2")
    )
