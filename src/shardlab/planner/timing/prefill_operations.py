"""The operations of one device that read the prompts of a batch: one forward pass.

All tokens of the prompts are multiplied with the weights at once, so compute bounds the products,
other than in decoding. Only the last token of a prompt needs the output table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab.hardware.frameworks import Framework
from shardlab.hardware.operation_time import Operation, matmul
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards
from shardlab.planner.model import Architecture
from shardlab.planner.timing.step_operations import (
    StepOperations,
    forward_attention,
    layer_passes,
    tokens_per_device,
)
from shardlab.planner.timing.weight_matmuls import WeightMatmul


def prefill_operations(
    arch: Architecture,
    products: Sequence[WeightMatmul],
    shards: WorkloadShards,
    workload: Workload,
    *,
    dtype: str,
    framework: Framework,
) -> StepOperations:
    """Return the operations of the forward pass over all prompts of the batch."""
    n_tokens = tokens_per_device(shards, workload)
    layers = [
        *_products(arch, products, n_tokens, dtype),
        *forward_attention(arch, shards, workload, framework.attention_block),
        *layer_passes(arch, shards, workload, n_tokens, 1),
    ]
    n_prompts = workload.batch / shards.batch.n_shards
    head = [
        matmul(product.name, n_prompts, product.inner, product.columns, count=product.count)
        for product in products
        if product.is_head
    ]
    return StepOperations(layers=tuple(layers), head=tuple(head), update=())


def _products(
    arch: Architecture, products: Sequence[WeightMatmul], n_tokens: float, dtype: str
) -> Iterator[Operation]:
    for product in products:
        if product.is_head:
            continue
        rows = n_tokens
        if product.n_experts:
            rows = n_tokens * arch.top_k / (product.n_experts * product.n_token_shards)
        yield matmul(
            product.name,
            rows,
            product.inner,
            product.columns,
            count=product.count,
            dtype=dtype,
            weight_bits=product.weight_bits,
            group_rows=rows if product.n_experts else 0.0,
        )
