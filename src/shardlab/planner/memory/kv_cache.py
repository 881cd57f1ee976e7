"""The cache of keys and values that inference keeps for every token.

>>> from shardlab.planner.models.load import load_model
>>> token_bytes(load_model("llama3-70b").architecture, Workload(1, 1, cache_dtype="int8"))
163840
>>> token_bytes(load_model("deepseek-v3").architecture, Workload(1, 1))  # a latent array
70272
"""

from __future__ import annotations

from shardlab.planner.memory.batch_shards import Shares, shares_of
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.planner.plan import MemoryItem
from shardlab.sharding.mesh import Mesh


def cache_items(model: Model, mesh: Mesh, workload: Workload) -> tuple[MemoryItem, ...]:
    """Return what one device keeps, with the formula; nothing where the measures are unknown.

    Layers that look back over a window keep no more tokens than that.
    """
    if (arch := model.architecture) is None:
        return ()
    shares = shares_of(mesh)
    sequences = shares.batch.of(workload.batch)
    tokens = shares.sequence.of(workload.sequence)
    layers = shares.stage.of(arch.layers)
    width, words = _width(arch, shares)
    n_tokens, told = _tokens(arch, layers, tokens)
    n_bytes = sequences * workload.cache_dtype.n_bytes(n_tokens * width)
    formula = (
        f"{told} × {sequences:,} sequences × {words} × "
        f"{workload.cache_dtype.bits / 8:g} bytes ({workload.cache_dtype.short}); "
        f"sequences: {workload.batch:,}{shares.batch.over}, "
        f"tokens: {workload.sequence:,}{shares.sequence.over}"
    )
    if shares.stage.parts > 1:
        formula += f", layers: {arch.layers}{shares.stage.over}"
    return (
        MemoryItem(
            kind="kv_cache",
            name="keys and values of all tokens",
            bytes_per_device=n_bytes,
            formula=formula,
        ),
    )


def _tokens(arch: Architecture, layers: int, tokens: int) -> tuple[int, str]:
    """Return the tokens in all layers of a device, and the words for them."""
    local = layers * arch.window_layers // arch.layers if arch.window < tokens else 0
    if not local:
        return layers * tokens, f"{layers} layers × {tokens:,} tokens"
    words = f"({layers - local} layers × {tokens:,} tokens + {local} × {arch.window:,})"
    return (layers - local) * tokens + local * arch.window, words


def token_bytes(arch: Architecture, workload: Workload) -> int:
    """Return the bytes of one token in all layers, whole: 2 L K H, or the latent array's."""
    width, _ = _width(arch, shares_of(Mesh()))
    return workload.cache_dtype.n_bytes(arch.layers * width)


def _width(arch: Architecture, shares: Shares) -> tuple[int, str]:
    """Return the elements of a token in one layer on one device, and the words for them.

    A device holds whole heads: beyond one head each, more devices hold copies. The latent array of
    multi-head latent attention is shared by all heads, so that every device needs all of it.
    """
    if arch.kv_lora_rank:
        latent = arch.kv_lora_rank + arch.rope_head_dim
        return latent, f"({arch.kv_lora_rank} + {arch.rope_head_dim}) of the latent array"
    parts = min(shares.tensor.parts, arch.kv_heads)
    heads = -(-arch.kv_heads // parts)
    by = shares.tensor.over if parts == shares.tensor.parts else f" / {parts}"
    copies = shares.tensor.parts // parts
    told = f", {copies} copies of each" if copies > 1 else ""
    widths = f"2 × {arch.head_dim}"
    if arch.value_dim != arch.head_dim:
        widths = f"({arch.head_dim} + {arch.value_dim})"
    return (
        heads * (arch.head_dim + arch.value_dim),
        f"{widths} × {heads} heads ({arch.kv_heads}{by}{told})",
    )
