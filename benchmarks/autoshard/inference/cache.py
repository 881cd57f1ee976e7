"""One layer of decoding with a key-value cache, for the programs that decode."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.layers import gated_mlp, rms_norm


def decode_layer(params, x, cache, position):
    """Return the output for one token of each sequence, and the updated cache."""
    normed = rms_norm(x, params["attention_norm"])
    attention = params["attention"]
    q = jnp.einsum("bd,dhk->bhk", normed, attention["query"])
    updated = {
        name: jax.lax.dynamic_update_slice_in_dim(
            cache[name],
            jnp.einsum("bd,dgk->bgk", normed, attention[name])[:, None],
            position,
            axis=1,
        )
        for name in ("key", "value")
    }
    groups = q.shape[1] // updated["key"].shape[2]
    k, v = (jnp.repeat(updated[name], groups, axis=2) for name in ("key", "value"))
    scores = jnp.einsum("bhk,bthk->bht", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    seen = jnp.arange(scores.shape[-1]) <= position
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30)).astype(x.dtype)
    attended = jnp.einsum("bht,bthk->bhk", weights, v)
    x = x + jnp.einsum("bhk,hkd->bd", attended, attention["out"])
    return x + gated_mlp(params["mlp"], rms_norm(x, params["mlp_norm"])), updated
