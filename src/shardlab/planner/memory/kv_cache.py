"""KV cache memory: the keys and values that inference stores for each token.

>>> from shardlab.planner.models.load import load_model
>>> int8 = Workload(batch=1, sequence=1, cache_dtype="int8")
>>> kv_bytes_per_token(load_model("llama3-70b").architecture, int8)
163840
>>> bf16 = Workload(batch=1, sequence=1)
>>> kv_bytes_per_token(load_model("deepseek-v3").architecture, bf16)  # a latent array
70272
"""

from __future__ import annotations

from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards, workload_shards
from shardlab.planner.model import Architecture, Model
from shardlab.planner.plan import MemoryItem
from shardlab.sharding.mesh import Mesh


def kv_cache_items(model: Model, mesh: Mesh, workload: Workload) -> tuple[MemoryItem, ...]:
    """Return the cache of one device with its formula; empty if the architecture is unknown.

    Sliding-window layers cache no more tokens than their window.
    """
    if (arch := model.architecture) is None:
        return ()
    shards = workload_shards(mesh)
    n_sequences = shards.batch.per_device(workload.batch)
    n_tokens = shards.sequence.per_device(workload.sequence)
    n_layers = shards.stage.per_device(arch.layers)
    width, width_formula = _width_per_token(arch, shards)
    n_cached, cached_formula = _cached_tokens(arch, n_layers, n_tokens)
    # Rounded to bytes per sequence: an int4 cache packs two elements into one.
    n_bytes = n_sequences * workload.cache_dtype.n_bytes(n_cached * width)
    formula = (
        f"{cached_formula} × {n_sequences:,} sequences × {width_formula} × "
        f"{workload.cache_dtype.bits / 8:g} bytes ({workload.cache_dtype.short}); "
        f"sequences: {workload.batch:,}{shards.batch.divisor_text}, "
        f"tokens: {workload.sequence:,}{shards.sequence.divisor_text}"
    )
    if shards.stage.n_shards > 1:
        formula += f", layers: {arch.layers}{shards.stage.divisor_text}"
    return (
        MemoryItem(
            kind="kv_cache",
            name="keys and values of all tokens",
            bytes_per_device=n_bytes,
            formula=formula,
        ),
    )


def _cached_tokens(arch: Architecture, n_layers: int, n_tokens: int) -> tuple[int, str]:
    """Return the cached tokens summed over a device's layers, and the formula."""
    # A stage is assumed to have its proportional share of the sliding-window layers.
    n_local = n_layers * arch.window_layers // arch.layers if arch.window < n_tokens else 0
    if not n_local:
        return n_layers * n_tokens, f"{n_layers} layers × {n_tokens:,} tokens"
    n_global = n_layers - n_local
    formula = f"({n_global} layers × {n_tokens:,} tokens + {n_local} × {arch.window:,})"
    return n_global * n_tokens + n_local * arch.window, formula


def kv_bytes_per_token(arch: Architecture, workload: Workload) -> int:
    """Return the bytes of one token over all layers, unsharded: 2 L K H, or the latent array's."""
    width, _ = _width_per_token(arch, workload_shards(Mesh()))
    return workload.cache_dtype.n_bytes(arch.layers * width)


def _width_per_token(arch: Architecture, shards: WorkloadShards) -> tuple[int, str]:
    """Return the cached elements of a token in one layer on one device, and the formula.

    A head is never split: with more devices than kv heads, several devices hold replicas of one.
    """
    if arch.kv_lora_rank:
        # The latent array of multi-head latent attention is shared by all heads, so it is
        # replicated over the tensor axis.
        latent = arch.kv_lora_rank + arch.rope_head_dim
        return latent, f"({arch.kv_lora_rank} + {arch.rope_head_dim}) of the latent array"
    # Rounded up: with 40 heads on 16 devices the fullest has 3.
    n_shards = min(shards.tensor.n_shards, arch.kv_heads)
    n_heads = -(-arch.kv_heads // n_shards)
    is_sharded_by_all = n_shards == shards.tensor.n_shards
    divisor = shards.tensor.divisor_text if is_sharded_by_all else f" / {n_shards}"
    n_replicas = shards.tensor.n_shards // n_shards
    replicas = f", {n_replicas} replicas of each" if n_replicas > 1 else ""
    widths = f"2 × {arch.head_dim}"
    if arch.value_dim != arch.head_dim:
        widths = f"({arch.head_dim} + {arch.value_dim})"
    return (
        n_heads * (arch.head_dim + arch.value_dim),
        f"{widths} × {n_heads} heads ({arch.kv_heads}{divisor}{replicas})",
    )
