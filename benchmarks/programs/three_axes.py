"""A script: three train steps of a transformer over data, pipe and model, every loop unrolled.

Run as a file. Microbatches, stages and layers are Python loops, as tutorials write them, so almost
all of its time goes into tracing and compiling: the second step compiles again, because the
optimizer's states then have the shardings that the compiler chose.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

FEATURES, HIDDEN, HEADS = 64, 256, 4
LAYERS_PER_STAGE, MICROBATCHES, BATCH, LENGTH = 2, 4, 64, 32
STAGES = 2

SHAPES = {
    "query": (FEATURES, HEADS, FEATURES // HEADS),
    "key": (FEATURES, HEADS, FEATURES // HEADS),
    "value": (FEATURES, HEADS, FEATURES // HEADS),
    "project": (HEADS, FEATURES // HEADS, FEATURES),
    "up": (FEATURES, HIDDEN),
    "down": (HIDDEN, FEATURES),
}
SPECS = {
    "query": P("pipe", None, None, "model"),
    "key": P("pipe", None, None, "model"),
    "value": P("pipe", None, None, "model"),
    "project": P("pipe", None, "model"),
    "up": P("pipe", None, None, "model"),
    "down": P("pipe", None, "model"),
}


def normalize(x: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def apply_layer(params: dict[str, Any], x: Any) -> Any:
    y = normalize(x)
    query, key, value = (
        jnp.einsum("bsd,dhk->bshk", y, params[name]) for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", query, key) / 4.0, -1)
    heads = jnp.einsum("bhst,bthk->bshk", weights, value)
    x = x + lax.psum(jnp.einsum("bshk,hkd->bsd", heads, params["project"]), "model")
    return x + lax.psum(jax.nn.gelu(normalize(x) @ params["up"]) @ params["down"], "model")


def apply_stage(params: dict[str, Any], x: Any) -> Any:
    for i in range(LAYERS_PER_STAGE):
        x = apply_layer({name: array[0, i] for name, array in params.items()}, x)
    return x


def run_pipeline(params: dict[str, Any], x: Any) -> Any:
    stage = lax.axis_index("pipe")
    microbatches = x.reshape(MICROBATCHES, -1, *x.shape[1:])
    state, outs = jnp.zeros_like(microbatches[0]), []
    for t in range(MICROBATCHES + STAGES - 1):
        first = microbatches[min(t, MICROBATCHES - 1)]
        y = apply_stage(params, jnp.where(stage == 0, first, state))
        if t >= STAGES - 1:
            outs.append(y)
        state = lax.ppermute(y, "pipe", [(i, i + 1) for i in range(STAGES - 1)])
    is_last = stage == STAGES - 1
    return lax.psum(jnp.where(is_last, jnp.stack(outs).reshape(x.shape), 0), "pipe")


def loss_function(params: dict[str, Any], x: Any, y: Any) -> Any:
    return lax.pmean(jnp.mean((run_pipeline(params, x) - y) ** 2), "data")


def main() -> None:
    names = ("data", "pipe", "model")
    mesh = jax.make_mesh((2, STAGES, 2), names, axis_types=(AxisType.Auto,) * 3)
    rng = np.random.default_rng(0)
    params = {}
    for name, shape in SHAPES.items():
        values = 0.1 * rng.standard_normal((STAGES, LAYERS_PER_STAGE, *shape), np.float32)
        params[name] = jax.device_put(values, NamedSharding(mesh, SPECS[name]))
    optimizer = optax.adam(1e-3)
    state = optimizer.init(params)
    gradients_of = jax.shard_map(
        jax.value_and_grad(loss_function),
        mesh=mesh,
        in_specs=(SPECS, P("data"), P("data")),
        out_specs=(P(), SPECS),
    )

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = gradients_of(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    x = rng.standard_normal((BATCH, LENGTH, FEATURES), np.float32)
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    for i in range(3):
        params, state, loss = step(params, state, x, x * 0.5)
        print(i, float(loss), flush=True)


if __name__ == "__main__":
    main()
