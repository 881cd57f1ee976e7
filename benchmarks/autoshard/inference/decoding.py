"""One step of decoding: one token for each of 256 sequences, with a cache of 4096 positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.inference.cache import decode_layer
from benchmarks.autoshard.layers import block_shapes
from benchmarks.autoshard.program import BenchmarkProgram, array, stacked, tokens


def decode_step(caches, params, ids, position):
    def advance(x, layer):
        weights, cache = layer
        return decode_layer(weights, x, cache, position)

    x, caches = jax.lax.scan(advance, params["embedding"][ids], (params["layers"], caches))
    return caches, jnp.argmax(x @ params["head"], -1)


def make_program() -> BenchmarkProgram:
    params = {
        "embedding": array(32768, 4096),
        "layers": stacked(16, block_shapes(4096, 14336, 32, n_key_heads=8)),
        "head": array(4096, 32768),
    }
    caches = stacked(16, {name: array(256, 4096, 8, 128) for name in ("key", "value")})
    args = (caches, params, tokens(256), tokens())
    meshes = ("model=8", "data=4,model=4", "data=16,model=4")
    return BenchmarkProgram(function=decode_step, args=args, meshes=meshes)
