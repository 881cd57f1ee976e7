"""A decoder transformer's train step in plain JAX, written as MaxText writes it.

Layers are scanned, attention is the Splash kernel, tensors that a remat policy may save have
MaxText's names, and AdamW updates donated weights. `lower_step` lowers it for a TPU topology that
this machine does not have.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import mesh_utils, topologies
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.tpu_memory.setups import MODELS, MemorySetup

BATCH_AXES = ("data", "fsdp")
WEIGHT_AXES = ("fsdp", "context")  # as MaxText and torchtitan shard weights
_DOT_NAMES = ("query_proj", "key_proj", "value_proj", "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")
_BLOCK = 512  # of the attention kernel, as in MaxText's recipes
Params = dict[str, Any]


def lower_step(setup: MemorySetup) -> Any:
    """Return the lowered train step of a setup."""
    topology = topologies.get_topology_desc(setup.topology, platform="tpu")
    sizes = {"data": 1, "fsdp": 1, "context": 1, "tensor": 1} | dict(setup.mesh)
    devices = mesh_utils.create_device_mesh(
        tuple(sizes.values()), topology.devices, allow_split_physical_axes=True
    )
    mesh = Mesh(devices, tuple(sizes))
    shapes, specs = _parameter_shapes(setup), _parameter_specs()
    params = {
        name: _abstract(shape, setup.weight_dtype, specs[name], mesh)
        for name, shape in shapes.items()
    }
    moments = {
        name: _abstract(shape, "float32", specs[name], mesh) for name, shape in shapes.items()
    }
    state = {
        "params": params,
        "mu": moments,
        "nu": moments,
        "count": _abstract((), "int32", P(), mesh),
    }
    if setup.weight_dtype != "float32":
        state["master"] = moments
    tokens = (setup.batch, setup.sequence)
    inputs = _abstract(tokens, "int32", P(BATCH_AXES, "context"), mesh)
    step = functools.partial(_train_step, setup=setup, mesh=mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
    return jitted.lower(state, inputs, inputs)


def _abstract(shape: tuple[int, ...], dtype: str, spec: P, mesh: Mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))


def _parameter_shapes(setup: MemorySetup) -> dict[str, tuple[int, ...]]:
    size = MODELS[setup.model]
    layers, hidden = setup.layers, size.hidden
    return {
        "embedding": (size.vocab, hidden),
        "query": (layers, hidden, size.heads, size.head_dim),
        "key": (layers, hidden, size.kv_heads, size.head_dim),
        "value": (layers, hidden, size.kv_heads, size.head_dim),
        "out": (layers, size.heads, size.head_dim, hidden),
        "gate": (layers, hidden, size.ffn),
        "up": (layers, hidden, size.ffn),
        "down": (layers, size.ffn, hidden),
        "attention_norm": (layers, hidden),
        "mlp_norm": (layers, hidden),
        "final_norm": (hidden,),
        "logits": (hidden, size.vocab),
    }


def _parameter_specs() -> dict[str, P]:
    return {
        "embedding": P("tensor", WEIGHT_AXES),
        "query": P(None, WEIGHT_AXES, "tensor"),
        "key": P(None, WEIGHT_AXES, "tensor"),
        "value": P(None, WEIGHT_AXES, "tensor"),
        "out": P(None, "tensor", None, WEIGHT_AXES),
        "gate": P(None, WEIGHT_AXES, "tensor"),
        "up": P(None, WEIGHT_AXES, "tensor"),
        "down": P(None, "tensor", WEIGHT_AXES),
        "attention_norm": P(),
        "mlp_norm": P(),
        "final_norm": P(),
        "logits": P(WEIGHT_AXES, "tensor"),
    }


def _train_step(
    state: Params, inputs: jax.Array, targets: jax.Array, *, setup: MemorySetup, mesh: Mesh
) -> tuple[Params, jax.Array]:
    loss = functools.partial(_loss, setup=setup, mesh=mesh)
    value, gradients = _gradients(loss, state["params"], inputs, targets, setup, mesh)
    count = state["count"] + 1
    updated: Params = {"count": count, "params": {}, "mu": {}, "nu": {}}
    masters = state.get("master", state["params"])
    if "master" in state:
        updated["master"] = {}
    for name, gradient in gradients.items():
        gradient = gradient.astype(jnp.float32)
        mu = 0.9 * state["mu"][name] + 0.1 * gradient
        nu = 0.95 * state["nu"][name] + 0.05 * gradient**2
        corrected_mu, corrected_nu = mu / (1 - 0.9**count), nu / (1 - 0.95**count)
        master = masters[name] - 3e-4 * (
            corrected_mu / (jnp.sqrt(corrected_nu) + 1e-8) + 0.1 * masters[name]
        )
        updated["mu"][name], updated["nu"][name] = mu, nu
        if "master" in state:
            updated["master"][name] = master
        updated["params"][name] = master.astype(setup.weight_dtype)
    return updated, value


def _gradients(
    loss: Any,
    params: Params,
    inputs: jax.Array,
    targets: jax.Array,
    setup: MemorySetup,
    mesh: Mesh,
) -> tuple[jax.Array, Params]:
    """Return loss and gradients, summed in f32 over the microbatches of a scan."""
    if setup.accumulation == 1:
        return jax.value_and_grad(loss)(params, inputs, targets)
    specs = _parameter_specs()

    def split(tokens: jax.Array) -> jax.Array:
        shape = (setup.batch // setup.accumulation, setup.accumulation, setup.sequence)
        spec = P(None, BATCH_AXES, "context")
        microbatches = tokens.reshape(shape).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(microbatches, NamedSharding(mesh, spec))

    def accumulate(total: Params, tokens: tuple[jax.Array, jax.Array]) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *tokens)
        summed = {name: total[name] + gradients[name].astype(jnp.float32) for name in total}
        return summed, value

    zeros = {
        name: jax.lax.with_sharding_constraint(
            jnp.zeros(leaf.shape, jnp.float32), NamedSharding(mesh, specs[name])
        )
        for name, leaf in params.items()
    }
    gradients, values = jax.lax.scan(accumulate, zeros, (split(inputs), split(targets)))
    return values.mean(), gradients


def _loss(
    params: Params, inputs: jax.Array, targets: jax.Array, *, setup: MemorySetup, mesh: Mesh
) -> jax.Array:
    constrain = functools.partial(_constrain, mesh=mesh)
    dtype = jnp.bfloat16
    stream = _stream_spec(setup)
    x = constrain(params["embedding"].astype(dtype)[inputs], stream)
    stacked = {
        name: params[name]
        for name in (
            *("query", "key", "value", "out", "gate", "up", "down"),
            *("attention_norm", "mlp_norm"),
        )
    }

    def layer(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
        return _decoder_layer(x, weights, setup=setup, mesh=mesh), None

    x, _ = jax.lax.scan(_with_remat(layer, setup.remat), x, stacked)
    x = _rms_norm(x, params["final_norm"])
    return _cross_entropy(x, params["logits"].astype(dtype), targets, setup, mesh)


def _cross_entropy(
    x: jax.Array, weights: jax.Array, targets: jax.Array, setup: MemorySetup, mesh: Mesh
) -> jax.Array:
    """Return the mean loss; in chunks along the sequence, if the setup has any."""

    def total_loss(x: jax.Array, targets: jax.Array) -> jax.Array:
        logits = jnp.einsum("bsd,dv->bsv", x, weights, preferred_element_type=jnp.float32)
        logits = _constrain(logits, P(BATCH_AXES, "context", "tensor"), mesh=mesh)
        one_hot = jax.nn.one_hot(targets, logits.shape[-1], dtype=jnp.float32)
        picked = jnp.sum(one_hot * logits, axis=-1)
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - picked)

    n_tokens = targets.shape[0] * targets.shape[1]
    if setup.loss_chunks == 1:
        return total_loss(x, targets) / n_tokens
    shape = (x.shape[0], setup.loss_chunks, -1)
    chunks = x.reshape(*shape, x.shape[-1]).swapaxes(0, 1)
    target_chunks = targets.reshape(shape).swapaxes(0, 1)

    def add_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> Any:
        return total + jax.checkpoint(total_loss)(*chunk), None

    total, _ = jax.lax.scan(add_chunk, jnp.zeros(()), (chunks, target_chunks))
    return total / n_tokens


def _with_remat(layer: Any, remat: str) -> Any:
    policies = jax.checkpoint_policies
    if remat == "none":
        return layer
    if remat == "full":
        policy = policies.nothing_saveable
    elif remat == "dots":
        policy = policies.save_only_these_names(*_DOT_NAMES)
    elif remat.startswith("save:"):
        policy = policies.save_only_these_names(*remat[5:].split("+"))
    else:
        assert remat.startswith("offload:"), remat
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=remat[8:].split("+"),
            offload_src="device",
            offload_dst="pinned_host",
        )
    return jax.checkpoint(layer, policy=policy, prevent_cse=False)


def _decoder_layer(x: jax.Array, weights: Params, *, setup: MemorySetup, mesh: Mesh) -> jax.Array:
    constrain = functools.partial(_constrain, mesh=mesh)
    w = {name: weight.astype(jnp.bfloat16) for name, weight in weights.items()}
    stream, heads = _stream_spec(setup), P(BATCH_AXES, "context", "tensor")
    x = checkpoint_name(x, "decoder_layer_input")
    h = _rms_norm(x, w["attention_norm"])
    query = constrain(jnp.einsum("bsd,dnh->bsnh", h, w["query"]), heads)
    key = constrain(jnp.einsum("bsd,dnh->bsnh", h, w["key"]), heads)
    value = constrain(jnp.einsum("bsd,dnh->bsnh", h, w["value"]), heads)
    query = checkpoint_name(_rotate(query), "query_proj")
    key, value = checkpoint_name(_rotate(key), "key_proj"), checkpoint_name(value, "value_proj")
    context = _attention(query, key, value, mesh)
    out = constrain(jnp.einsum("bsnh,nhd->bsd", context, w["out"]), stream)
    x = x + checkpoint_name(out, "out_proj")
    h = _rms_norm(x, w["mlp_norm"])
    gate = checkpoint_name(constrain(jnp.einsum("bsd,df->bsf", h, w["gate"]), heads), "mlpwi_0")
    up = checkpoint_name(constrain(jnp.einsum("bsd,df->bsf", h, w["up"]), heads), "mlpwi_1")
    down = constrain(jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w["down"]), stream)
    return x + checkpoint_name(down, "mlpwo")


def _stream_spec(setup: MemorySetup) -> P:
    """Return the spec between the blocks: sequence parallelism shards tokens over tensor too."""
    sequence = ("context", "tensor") if setup.sequence_parallel else "context"
    return P(BATCH_AXES, sequence, None)


def _constrain(x: jax.Array, spec: P, *, mesh: Mesh) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + 1e-5)
    return normed.astype(x.dtype) * scale.astype(x.dtype)


def _rotate(x: jax.Array) -> jax.Array:
    """Apply rotary position embeddings to [batch, sequence, heads, head_dim]."""
    half = x.shape[-1] // 2
    frequencies = 500_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def _attention(query: jax.Array, key: jax.Array, value: jax.Array, mesh: Mesh) -> jax.Array:
    """Return causal attention; a context axis gathers keys and values, as MaxText does."""
    heads = P(BATCH_AXES, "tensor", "context", None)
    gathered = P(BATCH_AXES, "tensor", None, None)
    n_context = mesh.shape["context"]

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        n_heads, n_queries, n_keys = query.shape[1], query.shape[2], key.shape[2]
        mask = splash_attention_mask.MultiHeadMask(
            [
                splash_attention_mask.FullMask((n_queries, n_keys))
                if n_context > 1
                else splash_attention_mask.CausalMask((n_queries, n_keys))
            ]
            * n_heads
        )
        block = min(_BLOCK, n_queries)
        sizes = splash_attention_kernel.BlockSizes(
            block_q=block,
            block_kv=block,
            block_kv_compute=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_kv_dkv_compute=block,
            block_q_dq=block,
            block_kv_dq=block,
        )
        kernel = splash_attention_kernel.make_splash_mha(
            mask=mask,
            head_shards=1,
            q_seq_shards=1,
            block_sizes=sizes,
            residual_checkpoint_name="context",
        )
        return jax.vmap(kernel)(query, key, value)

    sharded = jax.shard_map(
        attend, mesh=mesh, in_specs=(heads, gathered, gathered), out_specs=heads, check_vma=False
    )
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    query = query / query.shape[-1] ** 0.5
    return sharded(query, key, value).swapaxes(1, 2)
