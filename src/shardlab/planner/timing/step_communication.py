"""Communication of one step: the collectives of each mesh axis, by its role.

data      gradients are all-reduced once per step; with ZeRO reduce-scattered, and the parameters
          all-gathered
fsdp      parameters are all-gathered for the forward and for the backward pass, gradients
          reduce-scattered, per microbatch (JAX scaling book, training.md, 0819a7d)
tensor    2 all-gathers and 2 reduce-scatters of activations per layer, the same backward
          (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2)
expert    all-to-all of tokens to their experts and back, per layer, the same in the backward pass
          (GShard, arXiv 2006.16668)
sequence  keys and values are all-gathered per layer, and their gradients reduce-scattered
stage     activations and their gradients are sent to the next stage, per microbatch and group of
          layers (Narayanan et al. 2021, arXiv 2104.04473)

Embedding, loss and the norms' sums over a tensor axis are not counted: they are small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from shardlab.hardware.step_timer import StepCollective
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.pipeline_schedule import ONE_F_ONE_B, PipelineSchedule
from shardlab.planner.timing.expert_routing import copies_of_token
from shardlab.planner.timing.step_operations import repeats_forward
from shardlab.planner.timing.weight_bytes import WeightBytes, WeightSync
from shardlab.sharding.mesh import Mesh

# role -> its communication, and the source of the formula
COMMUNICATION_FORMULAS = {
    "data": "data: gradients all-reduced once per step, 2 x V; with ZeRO they are reduce-scattered "
    "and the parameters all-gathered, the same bytes; JAX scaling book, training.md (0819a7d, "
    "2025-02)",
    "fsdp": "fsdp: parameters all-gathered forward and backward, gradients reduce-scattered, per "
    "microbatch; JAX scaling book, training.md (0819a7d, 2025-02)",
    "tensor": "tensor: 2 all-gathers and 2 reduce-scatters of tokens x hidden per layer and pass; "
    "Korthikanti et al. 2022, arXiv 2205.05198",
    "context": "context: keys and values all-gathered forward and backward, their gradients "
    "reduce-scattered, per layer and microbatch",
    "expert": "expert: all-to-all of tokens x top_k x hidden to their experts and back, per layer "
    "and pass; between nodes one copy per node, as DeepEP does; GShard, arXiv 2006.16668",
    "stage": "stage: tokens x hidden to the next stage and their gradients back, per microbatch "
    "and group of layers; Narayanan et al. 2021, arXiv 2104.04473",
}


def training_collectives(
    arch: Architecture,
    weights: Mapping[WeightSync, WeightBytes],
    mesh: Mesh,
    workload: Workload,
    schedule: PipelineSchedule = ONE_F_ONE_B,
    exposed_share: float = 1.0,
    operand_bits: int = 16,
    expert_nodes: int = 1,
    has_wide_experts: bool = False,
) -> Iterator[StepCollective]:
    """Yield the collectives of one training step, on the pipeline stage with most layers.

    `operand_bits` are those of the operands of products: 8-bit ones are gathered after the cast.

    `expert_nodes` are the nodes that an expert group spans. Wide experts are sharded over tensor
    axes too, each as a whole: every device sends its own part of the sequence to them.

    `exposed_share` of the calls over tensor axes are waited for; the rest overlaps with the
    products before or after them, as XLA's collective matmul on TPUs and Megatron's
    `--tp-comm-overlap` do.
    """
    n_layers = _layers_of_stage(arch.layers, mesh)
    for sync, weight_bytes in weights.items():
        yield from _weight_collectives(sync, weight_bytes, n_layers, mesh, workload.n_microbatches)
    batch = workload.microbatch or workload.batch
    # Forward and backward; if a layer is recomputed, its forward collectives run again.
    n_passes = 3 if repeats_forward(workload) else 2
    n_tokens = batch * workload.sequence
    tensor_axes = mesh_axis_roles(mesh).get("tensor", ())
    for collective in _activation_collectives(
        arch,
        mesh,
        n_tokens,
        n_passes * workload.n_microbatches,
        workload.dtype.bits,
        gathered_bits=min(workload.dtype.bits, operand_bits),
        expert_nodes=expert_nodes,
        has_wide_experts=has_wide_experts,
    ):
        is_split = exposed_share < 1 and set(collective.axes) <= set(tensor_axes)
        yield from _split_exposed(collective, exposed_share) if is_split else (collective,)
    yield from _context_collectives(arch, mesh, workload, n_tokens)
    yield from _stage_collectives(arch, mesh, workload, n_tokens, schedule)


def _split_exposed(collective: StepCollective, share: float) -> Iterator[StepCollective]:
    """Yield the calls that are waited for, and those that overlap with compute."""
    n_exposed = round(collective.count * share)
    if n_exposed:
        yield replace(collective, count=n_exposed)
    if n_exposed < collective.count:
        yield replace(collective, count=collective.count - n_exposed, is_overlapped=True)


def decoding_collectives(
    arch: Architecture, mesh: Mesh, workload: Workload, *, has_wide_experts: bool = False
) -> Iterator[StepCollective]:
    """Yield the collectives of one token of every sequence of the batch."""
    yield from _activation_collectives(
        arch,
        mesh,
        workload.batch,
        1,
        workload.dtype.bits,
        is_decoding=True,
        has_wide_experts=has_wide_experts,
    )


def prefill_collectives(
    arch: Architecture, mesh: Mesh, workload: Workload, *, has_wide_experts: bool = False
) -> Iterator[StepCollective]:
    """Yield the collectives of one forward pass over all prompts of the batch."""
    yield from _activation_collectives(
        arch,
        mesh,
        workload.batch * workload.sequence,
        1,
        workload.dtype.bits,
        is_decoding=True,
        has_wide_experts=has_wide_experts,
    )


def _weight_collectives(
    sync: WeightSync, weights: WeightBytes, n_layers: int, mesh: Mesh, n_microbatches: int
) -> Iterator[StepCollective]:
    """Yield the collectives that synchronize parameters, one call per layer.

    They overlap with compute: parameters can be gathered before a layer is reached, and gradients
    reduced after it is done.
    """
    # Payloads are operands on one device: the shard of an all-gather, the full array of a
    # reduce-scatter or all-reduce.
    parameters = _divide_up(weights.by_kind["parameters"], n_layers)
    gradients = _divide_up(weights.unsharded_gradient, n_layers)
    per_microbatch = n_layers * n_microbatches
    if axes := sync.gathered:
        for direction in ("forward", "backward"):
            yield StepCollective(
                what=f"parameters, {direction}",
                axes=axes,
                op="all_gather",
                payload_bytes=parameters,
                count=per_microbatch,
                is_overlapped=True,
            )
        yield StepCollective(
            what="gradients",
            axes=axes,
            op="psum_scatter",
            payload_bytes=gradients * _n_shards(mesh, axes),
            count=per_microbatch,
            is_overlapped=True,
        )
    if axes := tuple(name for name in sync.reduced if name not in sync.zero):
        # Microbatches accumulate gradients locally, the sum is reduced once.
        yield StepCollective(
            what="gradients",
            axes=axes,
            op="psum",
            payload_bytes=gradients,
            count=n_layers,
            is_overlapped=True,
        )
    if axes := sync.zero:
        # ZeRO stage 2 has no full gradient to accumulate into, so each microbatch is reduced.
        yield StepCollective(
            what="gradients",
            axes=axes,
            op="psum_scatter",
            payload_bytes=gradients,
            count=per_microbatch if sync.zero_gradients else n_layers,
            is_overlapped=True,
        )
        yield StepCollective(
            what="updated parameters",
            axes=axes,
            op="all_gather",
            payload_bytes=_divide_up(parameters, _n_shards(mesh, axes)),
            count=n_layers,
            is_overlapped=True,
        )


def _activation_collectives(
    arch: Architecture,
    mesh: Mesh,
    n_tokens: int,
    n_passes: int,
    bits: int,
    *,
    gathered_bits: int | None = None,
    is_decoding: bool = False,
    expert_nodes: int = 1,
    has_wide_experts: bool = False,
) -> Iterator[StepCollective]:
    """Yield the collectives of activations, which the next operation needs at once."""
    roles = mesh_axis_roles(mesh)
    tensor, expert = (_used_axes(mesh, roles.get(role, ())) for role in ("tensor", "expert"))
    # Sequence parallelism: the tensor axis is not in it, its devices gather these tokens.
    n_token_shards = _n_shards(mesh, (*batch_axes(mesh), *roles.get("sequence", ())))
    # activations of a device's own tokens, not sharded over tensor axes
    array_bytes = _divide_up(n_tokens * arch.hidden * bits, 8 * n_token_shards)
    n_layers = _layers_of_stage(arch.layers, mesh)
    n_moe_layers = min(arch.layers - arch.dense_layers, n_layers) if arch.experts else 0
    if tensor:
        # Tokens that were sent to their experts are gathered there, once per expert of a token.
        n_routed = n_moe_layers if expert or has_wide_experts else 0
        n_gathered = 0 if has_wide_experts else n_routed
        if has_wide_experts and arch.shared_experts:
            n_routed = 0  # shared experts are sharded as other matrices, and need all tokens
        blocks = (
            ("activations", 2 * n_layers - n_routed, array_bytes),
            ("tokens at their experts", n_gathered, array_bytes * arch.top_k),
        )
        for payload, n_blocks, size in blocks:
            if n_blocks and is_decoding:
                # One token per sequence: there is no sequence to shard between the blocks.
                yield StepCollective(
                    what=payload,
                    axes=tensor,
                    op="psum",
                    payload_bytes=size,
                    count=n_blocks * n_passes,
                )
            elif n_blocks:
                yield StepCollective(
                    what=payload,
                    axes=tensor,
                    op="all_gather",
                    payload_bytes=_divide_up(
                        size * (gathered_bits or bits), bits * _n_shards(mesh, tensor)
                    ),
                    count=n_blocks * n_passes,
                )
                yield StepCollective(
                    what=payload,
                    axes=tensor,
                    op="psum_scatter",
                    payload_bytes=size,
                    count=n_blocks * n_passes,
                )
    expert_axes = (*expert, *tensor) if has_wide_experts else expert
    if expert_axes and n_moe_layers:
        n_copies = copies_of_token(arch, expert_nodes)
        yield StepCollective(
            what="tokens to their experts and back",
            axes=expert_axes,
            op="all_to_all",
            payload_bytes=_divide_up(round(array_bytes * n_copies), _n_shards(mesh, tensor)),
            count=2 * n_moe_layers * n_passes,
        )


def _context_collectives(
    arch: Architecture, mesh: Mesh, workload: Workload, n_tokens: int
) -> Iterator[StepCollective]:
    roles = mesh_axis_roles(mesh)
    axes = _used_axes(mesh, roles.get("sequence", ()))
    if not axes:
        return
    width = arch.kv_heads * (arch.head_dim + arch.value_dim)
    if arch.kv_lora_rank:
        width = arch.kv_lora_rank + arch.rope_head_dim
    else:  # a device of a tensor axis needs its own heads, at least one
        width //= min(arch.kv_heads, _n_shards(mesh, roles.get("tensor", ())))
    n_batch_shards = _n_shards(mesh, batch_axes(mesh))
    gathered_bytes = _divide_up(n_tokens * width * workload.dtype.bits, 8 * n_batch_shards)
    n_calls = _layers_of_stage(arch.layers, mesh) * workload.n_microbatches
    yield StepCollective(
        what="keys and values, forward and backward",
        axes=axes,
        op="all_gather",
        payload_bytes=_divide_up(gathered_bytes, _n_shards(mesh, axes)),
        count=2 * n_calls,
    )
    yield StepCollective(
        what="gradients of keys and values",
        axes=axes,
        op="psum_scatter",
        payload_bytes=gathered_bytes,
        count=n_calls,
    )


def _stage_collectives(
    arch: Architecture, mesh: Mesh, workload: Workload, n_tokens: int, schedule: PipelineSchedule
) -> Iterator[StepCollective]:
    roles = mesh_axis_roles(mesh)
    axes = _used_axes(mesh, roles.get("stage", ()))
    if not axes:
        return
    # Between blocks tensor axes shard the sequence, so each of their devices sends its own part.
    token_axes = (*batch_axes(mesh), *roles.get("sequence", ()), *roles.get("tensor", ()))
    n_bits = n_tokens * arch.hidden * workload.dtype.bits
    n_groups = schedule.for_layers(_layers_of_stage(arch.layers, mesh)).chunks
    yield StepCollective(
        what="activations between stages and their gradients",
        axes=axes,
        op="ppermute",
        payload_bytes=_divide_up(n_bits, 8 * _n_shards(mesh, token_axes)),
        count=2 * n_groups * workload.n_microbatches,
        # With several groups of layers a stage has another one to compute meanwhile; Megatron's
        # `overlap_p2p_comm` is on by default then.
        is_overlapped=n_groups > 1,
    )


def _layers_of_stage(n_layers: int, mesh: Mesh) -> int:
    """Return the layers of the fullest pipeline stage; all layers without stages."""
    n_stages = _n_shards(mesh, mesh_axis_roles(mesh).get("stage", ()))
    return max(_divide_up(n_layers, n_stages), 1)


def _used_axes(mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in axes if mesh.shape[name] > 1)


def _n_shards(mesh: Mesh, axes: Sequence[str]) -> int:
    return prod(mesh.shape[name] for name in axes)


def _divide_up(size: int, n_shards: int) -> int:
    return -(-size // n_shards)
