"""The operations of one device that generate one token of every sequence, with a full cache.

Decoding reads all weights for few tokens, so memory bounds its products. Of a mixture's experts
only those are read that some token of the batch is routed to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardlab.hardware.operation_time import Operation, matmul, memory_pass
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards
from shardlab.planner.model import Architecture
from shardlab.planner.timing.attended_tokens import cached_tokens
from shardlab.planner.timing.step_flops import latent_widths
from shardlab.planner.timing.step_operations import StepOperations, heads_per_device
from shardlab.planner.timing.weight_matmuls import WeightMatmul

_BF16_BYTES, _F32_BYTES = 2, 4
_MERGED_ROLES = {"query": "qkv", "key": "qkv", "value": "qkv", "gate": "gate_up", "up": "gate_up"}
_HIDDEN_PASSES = 9  # as in a training layer's forward pass


def decoding_operations(
    arch: Architecture,
    products: Sequence[WeightMatmul],
    shards: WorkloadShards,
    workload: Workload,
    cache_bytes: int,
) -> StepOperations:
    """Return the operations of one token of every sequence of the batch."""
    n_tokens = workload.batch / shards.batch.n_shards
    n_layers = max(arch.layers, 1)
    layers = [
        *_weight_reads(arch, products, n_tokens),
        Operation(
            name="attention over the cache",
            kind="attention",
            flops=_cache_flops(arch, shards, workload, n_tokens) / n_layers,
            n_bytes=cache_bytes / n_layers,
            count=n_layers,
        ),
        memory_pass(
            "norms and residuals",
            _HIDDEN_PASSES * n_tokens * arch.hidden * _BF16_BYTES,
            count=n_layers,
        ),
    ]
    head = [
        _read_product(product, n_tokens, product.count) for product in products if product.is_head
    ]
    return StepOperations(layers=tuple(layers), head=tuple(head), update=())


def _weight_reads(
    arch: Architecture, products: Sequence[WeightMatmul], n_tokens: float
) -> Iterator[Operation]:
    for product in merge_products(products):
        if product.is_head:
            continue
        rows, count = n_tokens, float(product.count)
        if product.n_experts:
            # Tokens of all devices of the expert axis reach the experts of this one.
            n_experts = product.n_experts * product.n_token_shards
            share = touched_share(arch, n_tokens * arch.experts / n_experts)
            count *= share
            rows = n_tokens * arch.top_k / (n_experts * share)
        yield _read_product(product, rows, count)


def merge_products(products: Sequence[WeightMatmul]) -> Iterator[WeightMatmul]:
    """Yield the products with those of one input as one, as serving engines compute them.

    vLLM's `QKVParallelLinear` and `MergedColumnParallelLinear`: the same bytes in fewer kernels.
    """
    merged: dict[tuple[object, ...], WeightMatmul] = {}
    for position, product in enumerate(products):
        group = _MERGED_ROLES.get(product.role)
        key = (group, product.count, product.n_experts) if group else (position,)
        first = merged.get(key)
        # A torch weight is [out, in], so the widths that differ may be either dimension.
        if first is None:
            merged[key] = product
            continue
        name = f"{first.name}+{product.name}"
        if first.columns == product.columns:
            merged[key] = replace(first, name=name, inner=first.inner + product.inner)
        else:
            merged[key] = replace(first, name=name, columns=first.columns + product.columns)
    yield from merged.values()


def _read_product(product: WeightMatmul, rows: float, count: float) -> Operation:
    return matmul(
        product.name,
        rows,
        product.inner,
        product.columns,
        count=count,
        weight_bits=product.weight_bits,
    )


def _cache_flops(
    arch: Architecture, shards: WorkloadShards, workload: Workload, n_tokens: float
) -> float:
    """Return the FLOPs of attention in all layers."""
    widths = latent_widths(arch) if arch.kv_lora_rank else arch.head_dim + arch.value_dim
    heads = heads_per_device(arch, shards.tensor.n_shards)
    n_attended = sum(
        n_layers * n_cached for n_layers, n_cached in cached_tokens(arch, workload.sequence)
    )
    return 2.0 * n_tokens * heads * widths * n_attended / shards.sequence.n_shards


def touched_share(arch: Architecture, n_tokens: float) -> float:
    """Return the expected share of the experts that at least one of the tokens is routed to.

    >>> mixture = Architecture(layers=1, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=8,
    ...     experts=256, top_k=8)
    >>> [round(touched_share(mixture, n), 3) for n in (1, 16, 256)]
    [0.031, 0.398, 1.0]
    """
    return 1 - float((1 - arch.top_k / arch.experts) ** n_tokens)
