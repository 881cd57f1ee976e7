"""Programs of section `pod-scale`: one train step as a shard_map and as a jit, for any mesh.

Their arguments are the same on every mesh and divisible over 256 x 256 devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def _layer(x, kernels):
    up, down = kernels
    return x + lax.psum(jax.nn.gelu(x @ up) @ down, "model"), None


def _loss(params, x, y):
    out, _ = lax.scan(_layer, x, params)
    return lax.pmean(jnp.mean((out - y) ** 2), "data")


def _body(params, x, y):
    value, gradients = jax.value_and_grad(_loss)(params, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.01 * g, params, gradients)


_KERNELS = (P(None, None, "model"), P(None, "model", None))

shard_map_step = jax.shard_map(
    _body, in_specs=(_KERNELS, P("data"), P("data")), out_specs=(P(), _KERNELS)
)
shard_map_step_args = (("f32[2,64,1024]", "f32[2,1024,64]"), "f32[1024,64]", "f32[1024,64]")


def _constrain(x, *spec):
    return lax.with_sharding_constraint(x, P(*spec))


def _global_loss(params, x, y):
    up, down = params
    hidden = jax.nn.gelu(_constrain(x, "data", None) @ _constrain(up, None, "model"))
    out = _constrain(hidden, "data", "model") @ _constrain(down, "model", None)
    return jnp.mean((_constrain(out, "data", None) - y) ** 2)


@jax.jit
def jit_step(params, x, y):
    value, gradients = jax.value_and_grad(_global_loss)(params, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.01 * g, params, gradients)


jit_step_args = (("f32[4096,16384]", "f32[16384,4096]"), "f32[65536,4096]", "f32[65536,4096]")
