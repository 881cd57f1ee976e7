"""The layers that several programs have in common, as functions of their parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import array


def rms_norm(x: Any, scale: Any) -> Any:
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6).astype(x.dtype)) * scale


def gated_mlp(params: Any, x: Any) -> Any:
    return (jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]


def gated_mlp_shapes(width: int, hidden: int) -> dict[str, Any]:
    return {
        "gate": array(width, hidden),
        "up": array(width, hidden),
        "down": array(hidden, width),
    }


def attention(params: Any, x: Any, context: Any, *, is_causal: bool) -> Any:
    """Attend from `x` to `context`; query heads may be a multiple of the key heads."""
    q = jnp.einsum("bsd,dhk->bshk", x, params["query"])
    k = jnp.einsum("btd,dgk->btgk", context, params["key"])
    v = jnp.einsum("btd,dgk->btgk", context, params["value"])
    return jnp.einsum("bshk,hkd->bsd", attend(q, k, v, is_causal=is_causal), params["out"])


def attend(q: Any, k: Any, v: Any, *, is_causal: bool) -> Any:
    groups = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) if groups > 1 else x for x in (k, v))
    scores = jnp.einsum("bshk,bthk->bhst", q, k) * q.shape[-1] ** -0.5
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(v.dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v)


def attention_shapes(
    width: int, n_heads: int, head_size: int, n_key_heads: int | None = None
) -> dict[str, Any]:
    n_key_heads = n_key_heads or n_heads
    return {
        "query": array(width, n_heads, head_size),
        "key": array(width, n_key_heads, head_size),
        "value": array(width, n_key_heads, head_size),
        "out": array(n_heads, head_size, width),
    }


def block(params: Any, x: Any, *, is_causal: bool = True) -> Any:
    """Return one transformer layer with normalisation first."""
    normed = rms_norm(x, params["attention_norm"])
    x = x + attention(params["attention"], normed, normed, is_causal=is_causal)
    return x + gated_mlp(params["mlp"], rms_norm(x, params["mlp_norm"]))


def block_shapes(
    width: int, hidden: int, n_heads: int, n_key_heads: int | None = None
) -> dict[str, Any]:
    return {
        "attention": attention_shapes(width, n_heads, width // n_heads, n_key_heads),
        "mlp": gated_mlp_shapes(width, hidden),
        "attention_norm": array(width),
        "mlp_norm": array(width),
    }
