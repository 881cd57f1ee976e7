"""Llama 3 in plain JAX over the tensors of its checkpoint: forward, loss, gradients, AdamW.

Parameters are bf16 with a master copy in f32, as adamw keeps it in a plan. Layers are stacked
inside of the step, scanned, updated and returned like this, so that the compiler sees one of them
and not 32: what is measured is what goes in.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from shardlab.planner.model import Architecture

LAYER = "model.layers.{}."
PARTS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
OPTIMIZER = optax.adamw(1e-3)


def norm(x, scale):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def attention(arch: Architecture, w, x):
    q, k, v = (x @ w[f"self_attn.{name}_proj"].T for name in "qkv")
    q = q.reshape(*x.shape[:2], arch.kv_heads, -1, arch.head_dim)  # a group for each kv head
    k, v = (item.reshape(*x.shape[:2], arch.kv_heads, arch.head_dim) for item in (k, v))
    scores = jnp.einsum("bqkgd,bpkd->bkgqp", q, k) / arch.head_dim**0.5
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e9)
    attended = jnp.einsum("bkgqp,bpkd->bqkgd", jax.nn.softmax(scores), v)
    return attended.reshape(*x.shape[:2], -1) @ w["self_attn.o_proj"].T


def layer(arch: Architecture, w, x):
    x = x + attention(arch, w, norm(x, w["input_layernorm"]))
    h = norm(x, w["post_attention_layernorm"])
    gated = jax.nn.silu(h @ w["mlp.gate_proj"].T) * (h @ w["mlp.up_proj"].T)
    return x + gated @ w["mlp.down_proj"].T


def loss(arch: Architecture, params, tokens):
    x = params["model.embed_tokens.weight"][tokens]
    layers = {part: params[part] for part in PARTS}
    x, _ = jax.lax.scan(lambda x, w: (layer(arch, w, x), None), x, layers)
    logits = norm(x, params["model.norm.weight"]) @ params["lm_head.weight"].T
    return optax.softmax_cross_entropy_with_integer_labels(
        logits[:, :-1].astype(jnp.float32), tokens[:, 1:]
    ).mean()


def step(arch: Architecture, state, tokens):
    """Return the state after one step: parameters, their master copy, what AdamW keeps."""
    params, master, (adam, *others) = state
    params, master, mu, nu = (stacked(arch, item) for item in (params, master, adam.mu, adam.nu))
    remaining = (adam._replace(mu=mu, nu=nu), *others)
    value, gradients = jax.value_and_grad(lambda p: loss(arch, p, tokens))(params)
    gradients = jax.tree.map(lambda item: item.astype(jnp.float32), gradients)
    updates, remaining = OPTIMIZER.update(gradients, remaining, master)
    master = optax.apply_updates(master, updates)
    params = jax.tree.map(lambda new, old: new.astype(old.dtype), master, params)
    return (params, master, remaining), value


def stacked(arch: Architecture, tree):
    """Return the tensors of all layers stacked on a new first axis, the others as they are."""
    layers = {
        part: jnp.stack([tree[f"{LAYER.format(n)}{part}.weight"] for n in range(arch.layers)])
        for part in PARTS
    }
    return {name: item for name, item in tree.items() if ".layers." not in name} | layers
