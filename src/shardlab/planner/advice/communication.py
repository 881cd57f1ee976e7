"""Traffic: what the devices send one another in a step, by the roles of mesh axes.

data      gradients summed, once a step; under ZeRO reduce-scattered, and the parameters gathered
fsdp      parameters gathered for the forward and for the backward pass, gradients reduce-scattered,
          for each microbatch (JAX scaling book, training.md, 0819a7d)
tensor    2 all-gathers and 2 reduce-scatters of activations per layer, the same backward
          (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2)
expert    tokens to their experts and back, per layer, the same in the backward pass (GShard, arXiv
          2006.16668)
sequence  keys and values gathered per layer, and their gradients reduce-scattered

Embedding, loss and the norms' sums over a tensor axis are not counted: they are small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from shardlab.hardware.step_timer import StepCollective
from shardlab.planner.advice.step_flops import is_forward_repeated
from shardlab.planner.advice.weight_bytes import Sync, Weight
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.sharding.mesh import Mesh


def training_exchanges(
    arch: Architecture, held: Mapping[Sync, Weight], mesh: Mesh, workload: Workload
) -> Iterator[StepCollective]:
    """Yield what one training step sends."""
    for sync, each in held.items():
        yield from _weights(sync, each, max(arch.layers, 1), mesh, workload.n_microbatches)
    batch = workload.microbatch or workload.batch
    # forward and backward, and where a layer is computed again its forward exchanges too
    passes = 3 if is_forward_repeated(workload) else 2
    tokens = batch * workload.sequence
    yield from _activations(
        arch, mesh, tokens, passes, workload.n_microbatches, workload.dtype.bits
    )
    yield from _context(arch, mesh, workload, tokens)


def decoding_exchanges(
    arch: Architecture, mesh: Mesh, workload: Workload
) -> Iterator[StepCollective]:
    """Yield what is sent for one token of every sequence of the batch."""
    yield from _activations(arch, mesh, workload.batch, 1, 1, workload.dtype.bits)


def _weights(
    sync: Sync, held: Weight, layers: int, mesh: Mesh, microbatches: int
) -> Iterator[StepCollective]:
    """Yield what keeps parameters the same; one call for each layer, which compute can hide.

    Parameters are gathered before a layer is reached, gradients summed after it is done.
    """
    parameters = _part(held.by_kind["parameters"], layers)
    gradients = _part(held.whole_gradient, layers)
    often = layers * microbatches
    if axes := sync.gathered:
        parts = _size(mesh, axes)
        yield StepCollective(
            what="parameters, forward",
            axes=axes,
            op="all_gather",
            payload_bytes=parameters,
            count=often,
            hides=True,
        )
        yield StepCollective(
            what="parameters, backward",
            axes=axes,
            op="all_gather",
            payload_bytes=parameters,
            count=often,
            hides=True,
        )
        yield StepCollective(
            what="gradients",
            axes=axes,
            op="psum_scatter",
            payload_bytes=gradients * parts,
            count=often,
            hides=True,
        )
    if axes := tuple(name for name in sync.reduced if name not in sync.zero):
        yield StepCollective(
            what="gradients",
            axes=axes,
            op="psum",
            payload_bytes=gradients,
            count=layers,
            hides=True,
        )
    if axes := sync.zero:
        count = often if sync.zero_gradients else layers
        updated = _part(parameters, _size(mesh, axes))
        yield StepCollective(
            what="gradients",
            axes=axes,
            op="psum_scatter",
            payload_bytes=gradients,
            count=count,
            hides=True,
        )
        yield StepCollective(
            what="updated parameters",
            axes=axes,
            op="all_gather",
            payload_bytes=updated,
            count=layers,
            hides=True,
        )


def _activations(
    arch: Architecture, mesh: Mesh, tokens: int, passes: int, microbatches: int, bits: int
) -> Iterator[StepCollective]:
    roles = mesh_axis_roles(mesh)
    tensor, expert = (_cutting(mesh, roles.get(role, ())) for role in ("tensor", "expert"))
    spread = _size(mesh, (*batch_axes(mesh), *roles.get("sequence", ())))
    array = _part(
        tokens * arch.hidden * bits, 8 * spread
    )  # of a device's tokens, not cut by tensor
    mixtures = arch.layers - arch.dense_layers if arch.experts else 0
    often = passes * microbatches
    if tensor:
        parts = _size(mesh, tensor)
        # tokens that have gone to their experts are gathered there, once for each of their experts
        routed = mixtures if expert else 0
        for n, size in ((2 * arch.layers - routed, array), (routed, array * arch.top_k)):
            if n:
                words = "activations" if size == array else "tokens at their experts"
                yield StepCollective(
                    what=words,
                    axes=tensor,
                    op="all_gather",
                    payload_bytes=_part(size, parts),
                    count=n * often,
                )
                yield StepCollective(
                    what=words, axes=tensor, op="psum_scatter", payload_bytes=size, count=n * often
                )
    if expert and mixtures:
        size = _part(array * arch.top_k, _size(mesh, tensor))
        words = "tokens to their experts and back"
        yield StepCollective(
            what=words, axes=expert, op="all_to_all", payload_bytes=size, count=2 * mixtures * often
        )


def _context(
    arch: Architecture, mesh: Mesh, workload: Workload, tokens: int
) -> Iterator[StepCollective]:
    roles = mesh_axis_roles(mesh)
    axes = _cutting(mesh, roles.get("sequence", ()))
    if not axes:
        return
    per_token = arch.kv_heads * (arch.head_dim + arch.value_dim)
    if arch.kv_lora_rank:
        per_token = arch.kv_lora_rank + arch.rope_head_dim
    else:
        per_token //= min(arch.kv_heads, _size(mesh, roles.get("tensor", ())))
    here = _part(tokens * per_token * workload.dtype.bits, 8 * _size(mesh, batch_axes(mesh)))
    often = arch.layers * workload.n_microbatches
    part = _part(here, _size(mesh, axes))
    yield StepCollective(
        what="keys and values, forward and backward",
        axes=axes,
        op="all_gather",
        payload_bytes=part,
        count=2 * often,
    )
    yield StepCollective(
        what="gradients of keys and values",
        axes=axes,
        op="psum_scatter",
        payload_bytes=here,
        count=often,
    )


def _cutting(mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in axes if mesh.shape[name] > 1)


def _size(mesh: Mesh, axes: Sequence[str]) -> int:
    return prod(mesh.shape[name] for name in axes)


def _part(size: int, parts: int) -> int:
    return -(-size // parts)
