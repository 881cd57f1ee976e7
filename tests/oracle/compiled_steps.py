"""Collectives and memory of lookups, heads and a train step on 8 host devices, as JSON.

Run by test_compiled.py in its own process, because JAX fixes the number of devices at start-up.
"""

from __future__ import annotations

import json
import os
import re
from math import prod

# Nothing is executed, so the machine code need not be optimized.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # XLA logs when it must replicate

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MESH = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
OPS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf"= \(?f32\[([\d,]*)\][^=]*? ({OPS})(?:-start)?\(")


def struct(shape, spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))


def collectives(compiled):
    """Return the collectives of floats: [kind, elements of the result]."""
    return [
        [op, prod(map(int, shape.split(",")))]
        for shape, op in COLLECTIVE.findall(compiled.as_text())
    ]


def lookup(spec, vocab, batch, sequence, embed=64):
    """Return the collectives of a lookup whose batch is sharded over fsdp, and the sizes."""
    out = NamedSharding(MESH, P("fsdp", None, None))
    tokens = struct((batch, sequence), P("fsdp"), jnp.int32)
    take = jax.jit(lambda table, ids: jnp.take(table, ids, axis=0), out_shardings=out)
    compiled = take.lower(struct((vocab, embed), spec), tokens).compile()
    own = batch * sequence * embed // 4
    return {"collectives": collectives(compiled), "own": own, "table": vocab * embed}


def lookup_gradient(spec, vocab, batch, sequence, embed=64):
    """Return the collectives of a lookup's backward pass."""
    tokens = struct((batch, sequence), P("fsdp"), jnp.int32)
    rows = struct((batch, sequence, embed), P("fsdp", None, None))

    def gradient(table, ids, row_gradients):
        return jax.vjp(lambda table: jnp.take(table, ids, axis=0), table)[1](row_gradients)[0]

    step = jax.jit(gradient, out_shardings=NamedSharding(MESH, spec))
    compiled = step.lower(struct((vocab, embed), spec), tokens, rows).compile()
    own = batch * sequence * embed // 4
    return {"collectives": collectives(compiled), "own": own, "table": vocab * embed}


def heads(kv_heads, spec):
    """Return the collectives of attention with 16 query heads sharded over all 8 devices."""
    both, size = ("fsdp", "tensor"), 32

    def attend(x, wq, wk, wv, wo):
        q = (x @ wq).reshape(2, 64, kv_heads, 16 // kv_heads, size)
        k, v = ((x @ w).reshape(2, 64, kv_heads, size) for w in (wk, wv))
        weights = jax.nn.softmax(jnp.einsum("bskgd,btkd->bkgst", q, k), -1)
        return jnp.einsum("bkgst,btkd->bskgd", weights, v).reshape(2, 64, 16 * size) @ wo

    keys = struct((256, kv_heads * size), spec)
    arrays = [struct((2, 64, 256), P()), struct((256, 16 * size), P(None, both)), keys, keys]
    arrays.append(struct((16 * size, 256), P(both)))
    step = jax.jit(attend, out_shardings=NamedSharding(MESH, P()))
    return [op for op, _ in collectives(step.lower(*arrays).compile())]


def train_step(remat, layers=8, hidden=128, ffn=344, n_heads=4, kv=2, size=32, vocab=512):
    """Return the bytes of temporaries of a Llama's gradients, batch 8 of 128 tokens in f32."""

    def norm(x, scale):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def layer(x, w):
        b, s, _ = x.shape
        y = norm(x, w["n1"])
        q = (y @ w["q"]).reshape(b, s, kv, n_heads // kv, size)
        k, v = ((y @ w[name]).reshape(b, s, kv, size) for name in "kv")
        weights = jax.nn.softmax(jnp.einsum("bskgd,btkd->bkgst", q, k) / size**0.5, -1)
        x = x + jnp.einsum("bkgst,btkd->bskgd", weights, v).reshape(b, s, -1) @ w["o"]
        y = norm(x, w["n2"])
        return x + (jax.nn.silu(y @ w["g"]) * (y @ w["u"])) @ w["d"]

    if remat == "full":
        layer = jax.checkpoint(layer)

    def loss(w, ids):
        x, _ = jax.lax.scan(lambda x, weights: (layer(x, weights), None), w["e"][ids], w["l"])
        logits = norm(x, w["n"]) @ w["h"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1).mean()

    inner = {"n1": (), "n2": (), "q": (n_heads * size,), "k": (kv * size,), "v": (kv * size,)}
    inner |= {"g": (ffn,), "u": (ffn,)}
    shapes = {name: (layers, hidden, *rest) for name, rest in inner.items()}
    shapes |= {"o": (layers, n_heads * size, hidden), "d": (layers, ffn, hidden)}
    outer = {"e": (vocab, hidden), "h": (hidden, vocab), "n": (hidden,)}
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in outer.items()}
    weights["l"] = {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, shape in shapes.items()}
    ids = jax.ShapeDtypeStruct((8, 128), jnp.int32)
    compiled = jax.jit(jax.grad(loss)).lower(weights, ids).compile()
    return compiled.memory_analysis().temp_size_in_bytes


FEW, MANY = (8192, 16, 64), (512, 64, 256)  # vocabulary, batch, sequence
SPECS = {
    "vocab/tensor": P("tensor", None),
    "vocab/tensor embed/fsdp": P("tensor", "fsdp"),
    "vocab/fsdp": P("fsdp", None),
    "vocab/both": P(("fsdp", "tensor"), None),
}
if __name__ == "__main__":
    both = ("fsdp", "tensor")
    results = {
        "few": {name: lookup(spec, *FEW) for name, spec in SPECS.items()},
        "few, backward": {name: lookup_gradient(spec, *FEW) for name, spec in SPECS.items()},
        "many": {name: lookup(spec, *MANY) for name, spec in SPECS.items()},
        "heads": {
            "8 sharded": heads(8, P(None, both)),
            "4 sharded": heads(4, P(None, both)),
            "4 replicated": heads(4, P()),
        },
        "temporaries": {remat: train_step(remat) for remat in ("none", "full")},
    }
    print(json.dumps(results))
