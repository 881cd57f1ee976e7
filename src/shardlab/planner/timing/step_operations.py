"""The operations of one device in a step: matrix products, attention, and passes over memory.

They are in three lists, because pipeline stages repeat only the first: operations of the layers of
one stage, of the output table and the loss, and the update of the weights.

Bytes of memory passes count each array that an operation reads or writes, once per fused kernel:
XLA and the kernels of Megatron fuse a norm with the residual before it, an activation function
with its product, and the softmax of attention into one kernel unless it is a flash kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardlab.hardware.frameworks import FULLY_FUSED, Framework
from shardlab.hardware.operation_time import Operation, matmul, memory_pass
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards
from shardlab.planner.model import Architecture
from shardlab.planner.timing.attended_tokens import attended_tokens
from shardlab.planner.timing.recomputation import NOTHING, Recomputation, recomputation
from shardlab.planner.timing.weight_matmuls import WeightMatmul

# Arrays [tokens, hidden] that one layer reads or writes between its products: norm (2), residual
# with the next norm (4), last residual (3). The backward pass has twice as many.
_HIDDEN_PASSES = 9
_BACKWARD_PASSES = 2
# Tokens are sorted by expert and back, and weighted: about four arrays [tokens, top_k, hidden] in
# f32 and bf16. Rows that are gathered by index reach a part of the bandwidth.
_ROUTED_PASSES = 12
# Flash attention's backward pass computes 5 products where the forward pass computes 2, because it
# repeats the scores (Dao 2023, arXiv 2307.08691, section 3.1).
_FLASH_BACKWARD = 2.5
# Bytes per score without a flash kernel: 16-bit products and softmax, written and read.
_SCORE_BYTES_FORWARD, _SCORE_BYTES_BACKWARD = 4, 6
_DROPOUT_BYTES = 5  # dropped scores written and read, and the mask
_LOGIT_PASSES = 5  # f32: product, maximum, sum, gradient, its use
_BF16_BYTES, _F32_BYTES = 2, 4
_SHARED_INPUT = ("key", "value", "up")  # of the products whose input another one has too

OPERATION_FORMULAS = {
    "all": (
        "operation: max(FLOPs / (peak x efficiency), bytes / (hbm_bandwidth x memory_efficiency)) "
        "+ operation_overhead, each by itself",
        "redundant: what a tensor axis does not divide is computed by each of its devices",
    ),
    "training": (
        "products with weights: 2 x tokens x inner x columns on one device, 3 times (forward, "
        "gradients of input and of weights); remat full, or a number: the forward pass once more",
        "attention: 2 x tokens x attended x heads x (H + H_v) forward, causal, 2.5 times that "
        "backward (Dao 2023, arXiv 2307.08691); remat dots: the forward pass once more",
        "memory passes: norms, residuals, rotary embedding, activation functions, loss, optimizer",
    ),
    "decoding": (
        "products with weights: all weights are read once per token; of experts those that some "
        "token is routed to",
        "attention: the cache is read once per token",
    ),
}


@dataclass(frozen=True, kw_only=True)
class StepOperations:
    """What one device computes: `layers` and `head` once per microbatch, `update` once."""

    layers: tuple[Operation, ...]
    head: tuple[Operation, ...]
    update: tuple[Operation, ...]


def training_operations(
    arch: Architecture,
    products: Sequence[WeightMatmul],
    shards: WorkloadShards,
    workload: Workload,
    *,
    update_bytes: int = 0,
    dtype: str = "bf16",
    repeated: Recomputation = NOTHING,
    framework: Framework = FULLY_FUSED,
) -> StepOperations:
    """Return the operations of a training step; `update_bytes` are those of the optimizer.

    `products` are those of one device, of the layers of its pipeline stage.
    """
    stage_share = layers_per_stage(arch, shards) / max(arch.layers, 1)
    n_tokens = tokens_per_device(shards, workload)
    layers = [
        *_weight_operations(arch, products, n_tokens, repeated, dtype, framework),
        *(
            replace(operation, count=operation.count * stage_share)
            for operation in (
                *_attention_operations(
                    arch, shards, workload, repeated.attention, framework.attention_block
                ),
                *layer_passes(arch, shards, workload, n_tokens, _n_passes(repeated.passes)),
            )
        ),
    ]
    head = [product for product in products if product.is_head]
    return StepOperations(
        layers=tuple(layers),
        head=tuple(_head_operations(head, n_tokens)),
        update=(memory_pass("optimizer update", update_bytes),) if update_bytes else (),
    )


def layers_per_stage(arch: Architecture, shards: WorkloadShards) -> int:
    """Return the layers of the fullest pipeline stage; all layers without stages."""
    return shards.stage.per_device(arch.layers)


def _n_passes(is_repeated: bool) -> int:
    return 1 + is_repeated + _BACKWARD_PASSES


def tokens_per_device(shards: WorkloadShards, workload: Workload) -> float:
    """Return the tokens of one microbatch that a device computes."""
    batch = workload.microbatch or workload.batch
    return batch / shards.batch.n_shards * workload.sequence / shards.sequence.n_shards


def repeats_forward(workload: Workload) -> bool:
    """Return whether the backward pass repeats the forward pass, with its communication."""
    return recomputation(workload).products


def _weight_operations(
    arch: Architecture,
    products: Sequence[WeightMatmul],
    n_tokens: float,
    repeated: Recomputation,
    dtype: str,
    framework: Framework,
) -> Iterator[Operation]:
    in_layers = [product for product in products if not product.is_head]
    for index, product in enumerate(in_layers):
        # Routing is assumed to be balanced: each expert gets as many tokens as any other.
        rows = n_tokens
        if product.n_experts:
            rows = n_tokens * arch.top_k / (product.n_experts * product.n_token_shards)
        # The gradient of a routing weight needs the output of the expert's last product.
        role = "" if product.n_experts else product.role
        n_forward = 2 if repeated.repeats(role, index) else 1
        yield from _training_products(product, rows, n_forward, dtype)
        cast_bytes = framework.expert_cast_bytes if product.n_experts else framework.cast_bytes
        if dtype != "bf16" and cast_bytes:
            yield _cast_pass(product, rows, n_forward, cast_bytes)


def _training_products(
    product: WeightMatmul, rows: float, n_forward: int, dtype: str
) -> Iterator[Operation]:
    """Yield a product with weights, and those for the gradients of its operands."""
    inner, columns = product.inner, product.columns
    for name, dims, count in (
        (product.name, (rows, inner, columns), product.count * n_forward),
        (f"{product.name}, input gradient", (rows, columns, inner), product.count),
        (f"{product.name}, weight gradient", (inner, rows, columns), product.count),
    ):
        group_rows = rows if product.n_experts else 0.0
        yield matmul(name, *dims, count=count, dtype=dtype, group_rows=group_rows)


def _cast_pass(product: WeightMatmul, rows: float, n_forward: int, cast_bytes: int) -> Operation:
    """Return the casts of a product's operands to 8 bits: its input, and its output's gradient.

    Products of one input share its cast.
    """
    is_shared = product.role in _SHARED_INPUT
    widths = product.columns + (0 if is_shared else product.inner * n_forward)
    return memory_pass("casts to 8 bits", cast_bytes * rows * widths, count=product.count)


def _attention_operations(
    arch: Architecture,
    shards: WorkloadShards,
    workload: Workload,
    is_repeated: bool,
    attention_block: int,
) -> Iterator[Operation]:
    n_tokens, n_repeated = tokens_per_device(shards, workload), int(is_repeated)
    heads = heads_per_device(arch, shards.tensor.n_shards)
    for n_layers, n_attended in attended_tokens(arch, workload.sequence):
        if workload.flash:
            flops = _flash_flops(arch, shards, workload, (n_layers, n_attended), attention_block)
            yield Operation(
                name="attention",
                kind="attention",
                flops=flops,
                head_dim=(arch.head_dim + arch.value_dim) / 2,
                count=n_layers * (1 + _FLASH_BACKWARD + n_repeated),
            )
            continue
        # Without a flash kernel all scores are computed, also those that the mask removes.
        n_forward = 1 + n_repeated
        sequence = min(workload.sequence, 2 * n_attended)
        n_products = n_layers * n_tokens / workload.sequence * heads
        for width in (arch.head_dim, arch.value_dim):
            yield matmul(
                "attention scores",
                workload.sequence,
                width,
                sequence,
                count=n_products * (n_forward + 2),
            )
        n_bytes = _SCORE_BYTES_FORWARD * n_forward + _SCORE_BYTES_BACKWARD
        if workload.dropout:
            n_bytes += _DROPOUT_BYTES * (n_forward + 1)
        yield memory_pass("softmax", n_tokens * sequence * heads * n_bytes, count=n_layers)


def forward_attention(
    arch: Architecture, shards: WorkloadShards, workload: Workload, attention_block: int
) -> Iterator[Operation]:
    """Yield the attention of one forward pass, by a flash kernel."""
    for n_layers, n_attended in attended_tokens(arch, workload.sequence):
        yield Operation(
            name="attention",
            kind="attention",
            flops=_flash_flops(arch, shards, workload, (n_layers, n_attended), attention_block),
            head_dim=(arch.head_dim + arch.value_dim) / 2,
            count=n_layers,
        )


def _flash_flops(
    arch: Architecture,
    shards: WorkloadShards,
    workload: Workload,
    attended: tuple[int, float],
    attention_block: int,
) -> float:
    """Return the FLOPs of one layer's flash kernel; `attended` is one of `attended_tokens`."""
    n_layers, n_attended = attended
    if n_layers < arch.layers:
        # A kernel computes complete tiles: a window of few tokens is as slow as a tile.
        tiled = min(n_attended + attention_block, workload.sequence / 2)
        n_attended = max(n_attended, tiled)
    heads = heads_per_device(arch, shards.tensor.n_shards)
    n_tokens = tokens_per_device(shards, workload)
    return 2.0 * n_tokens * n_attended * heads * (arch.head_dim + arch.value_dim)


def heads_per_device(arch: Architecture, n_tensor: int) -> float:
    """Return the heads that one device of a tensor axis computes; all if it does not divide."""
    return arch.heads / n_tensor if arch.heads % n_tensor == 0 else float(arch.heads)


def layer_passes(
    arch: Architecture,
    shards: WorkloadShards,
    workload: Workload,
    n_tokens: float,
    n_passes: int,
) -> Iterator[Operation]:
    """Yield what a layer reads and writes outside of its products and attention."""
    n_tensor = shards.tensor.n_shards
    n_sequence_shards = n_tensor if workload.sequence_parallel else 1
    hidden_bytes = n_tokens * arch.hidden * _BF16_BYTES / n_sequence_shards
    yield memory_pass(
        "norms and residuals", _HIDDEN_PASSES * hidden_bytes, count=arch.layers * n_passes
    )
    widths = (arch.heads + arch.kv_heads) * arch.head_dim / n_tensor
    rotary_bytes = 2 * n_tokens * widths * _BF16_BYTES
    yield memory_pass("rotary embedding", rotary_bytes, count=arch.layers * n_passes)
    n_arrays = 3 if arch.gated else 2
    n_moe = arch.layers - arch.dense_layers if arch.experts else 0
    dense_ffn = arch.dense_ffn if arch.experts and arch.dense_ffn else arch.ffn
    for name, n_layers, ffn in (
        ("activation function", arch.layers - n_moe, dense_ffn),
        ("experts' activation function", n_moe, arch.ffn * (arch.top_k + arch.shared_experts)),
    ):
        if n_layers:
            n_bytes = n_arrays * n_tokens * ffn * _BF16_BYTES / n_tensor
            yield memory_pass(name, n_bytes, count=n_layers * n_passes)
    if n_moe:
        # Each device of a tensor axis sorts the part of the sequence that it has between blocks.
        routed_bytes = n_tokens * arch.top_k * arch.hidden * _BF16_BYTES / n_sequence_shards
        yield memory_pass(
            "sorting tokens by expert", _ROUTED_PASSES * routed_bytes, count=n_moe * n_passes
        )


def _head_operations(head: Sequence[WeightMatmul], n_tokens: float) -> Iterator[Operation]:
    """Yield the logits and the loss; they are computed in 16 bits and 32, also in fp8 training."""
    for product in head:
        yield from _training_products(product, n_tokens, 1, "bf16")
        vocabulary = max(product.inner, product.columns)
        n_bytes = _LOGIT_PASSES * n_tokens * vocabulary * _F32_BYTES
        yield memory_pass("loss", n_bytes, count=product.count)
