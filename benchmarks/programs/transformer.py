"""A train step of a 24-layer transformer: batch over `data`, heads and hidden units over `model`.

The layers are unrolled in a Python loop, the hard case for tracing: about 6,500 equations. Width
128 with 8 heads and 2,048 tokens keeps a step affordable even for forced host devices on 2 cores.
The batch of 128 gives one sequence to each of 128 data rows, the most of any mesh here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.programs.program import Program, identity

Params = dict[str, Any]
Collective = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Size:
    """Architecture, batch size and sequence length."""

    layers: int = 24
    width: int = 128
    heads: int = 8
    vocabulary: int = 256
    batch: int = 128
    length: int = 16


# At most one head per device: `model` stops at 8.
_MESHES = {8: (2, 4), 64: (8, 8), 256: (32, 8), 512: (64, 8), 1024: (128, 8)}


def make_program(n_devices: int, size: Size | None = None) -> Program:
    n_data, n_model = _MESHES[n_devices]
    size = size or Size()
    specs = _param_specs(size)
    return Program(
        mesh={"data": n_data, "model": n_model},
        body=_per_device_step,
        in_specs=(specs, P("data")),
        out_specs=(P(), specs),
        unsharded=train_step,
        inputs=lambda: _make_inputs(size),
    )


def train_step(
    params: Params,
    tokens: Any,
    psum_model: Collective = identity,
    pmean_data: Collective = identity,
) -> tuple[Any, Params]:
    def loss_function(params: Params) -> Any:
        x = params["embedding"][tokens[:, :-1]]
        for layer in params["layers"]:
            x = x + _attention(layer, _layer_norm(x, layer["attention_scale"]), psum_model)
            x = x + _mlp_block(layer, _layer_norm(x, layer["mlp_scale"]), psum_model)
        logits = _layer_norm(x, params["final_scale"]) @ params["embedding"].T
        log_likelihood = jnp.take_along_axis(
            jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1
        )
        return pmean_data(-jnp.mean(log_likelihood))

    loss, grads = jax.value_and_grad(loss_function)(params)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _per_device_step(params: Params, tokens: Any) -> tuple[Any, Params]:
    return train_step(
        params,
        tokens,
        psum_model=lambda partial: lax.psum(partial, "model"),
        pmean_data=lambda mean: lax.pmean(mean, "data"),
    )


def _layer_norm(x: Any, scale: Any) -> Any:
    centered = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(centered**2, -1, keepdims=True)
    return centered * lax.rsqrt(variance + 1e-5) * scale


def _attention(layer: Params, x: Any, psum_model: Collective) -> Any:
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, layer[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bshk,bthk->bhst", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    mixed = jnp.einsum("bhst,bthk->bshk", weights, v)
    return psum_model(jnp.einsum("bshk,hkd->bsd", mixed, layer["out"]))


def _mlp_block(layer: Params, x: Any, psum_model: Collective) -> Any:
    hidden = jax.nn.gelu(x @ layer["up"] + layer["up_bias"])
    return psum_model(hidden @ layer["down"]) + layer["down_bias"]


def _param_specs(size: Size) -> Params:
    # As in Megatron: q, k, v, up by columns, out and down by rows, so each block needs one psum.
    heads = P(None, "model")
    layer = {
        "attention_scale": P(),
        "q": heads,
        "k": heads,
        "v": heads,
        "out": P("model"),
        "mlp_scale": P(),
        "up": P(None, "model"),
        "up_bias": P("model"),
        "down": P("model"),
        "down_bias": P(),
    }
    return {"embedding": P(), "layers": [layer] * size.layers, "final_scale": P()}


def _make_inputs(size: Size) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    width, hidden, head = size.width, 4 * size.width, size.width // size.heads

    def normal(*shape: int, fan_in: int) -> Any:
        return rng.standard_normal(shape, np.float32) * np.float32(fan_in**-0.5)

    def make_layer() -> Params:
        return {
            "attention_scale": 1 + normal(width, fan_in=100),
            "q": normal(width, size.heads, head, fan_in=width),
            "k": normal(width, size.heads, head, fan_in=width),
            "v": normal(width, size.heads, head, fan_in=width),
            "out": normal(size.heads, head, width, fan_in=width),
            "mlp_scale": 1 + normal(width, fan_in=100),
            "up": normal(width, hidden, fan_in=width),
            "up_bias": normal(hidden, fan_in=100),
            "down": normal(hidden, width, fan_in=hidden),
            "down_bias": normal(width, fan_in=100),
        }

    params = {
        "embedding": normal(size.vocabulary, width, fan_in=width),
        "layers": [make_layer() for _ in range(size.layers)],
        "final_scale": 1 + normal(width, fan_in=100),
    }
    tokens = rng.integers(0, size.vocabulary, (size.batch, size.length + 1), np.int32)
    return params, tokens
