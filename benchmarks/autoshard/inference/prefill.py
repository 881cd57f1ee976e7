"""Prefill: all positions of the prompts at once, which fills the cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.layers import attend, block_shapes, gated_mlp, rms_norm
from benchmarks.autoshard.program import BenchmarkProgram, array, stacked, tokens


def prefill(params, ids):
    def advance(x, layer):
        normed = rms_norm(x, layer["attention_norm"])
        q, k, v = (
            jnp.einsum("bsd,dhk->bshk", normed, layer["attention"][name])
            for name in ("query", "key", "value")
        )
        attended = attend(q, k, v, is_causal=True)
        x = x + jnp.einsum("bshk,hkd->bsd", attended, layer["attention"]["out"])
        return x + gated_mlp(layer["mlp"], rms_norm(x, layer["mlp_norm"])), (k, v)

    x, cache = jax.lax.scan(advance, params["embedding"][ids], params["layers"])
    return x[:, -1] @ params["head"], cache


def make_program() -> BenchmarkProgram:
    params = {
        "embedding": array(32768, 4096),
        "layers": stacked(16, block_shapes(4096, 14336, 32, n_key_heads=8)),
        "head": array(4096, 32768),
    }
    meshes = ("model=8", "data=4,model=4", "data=16,model=4")
    return BenchmarkProgram(function=prefill, args=(params, tokens(64, 2048)), meshes=meshes)
