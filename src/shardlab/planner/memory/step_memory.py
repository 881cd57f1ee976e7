"""Peak memory of a training step: the one model behind `plan` and `advise`.

Not everything is stored at the same time. A step has three moments at which memory may peak:

- at the loss: what remat saved, the logits in f32, and the logits' gradient; no gradients of
  weights yet
- in the backward pass: what remat saved, gradients, one recomputed layer, gathered weights
- at the update: gradients and optimizer states, even those that are offloaded to the host

Parameters are stored at each of them. The terms were read from XLA's buffer assignments for TPUs
(benchmarks/data/tpu_memory.json, split "fit"), PyTorch's from its cross-entropy; the errors on
steps that were not used are in docs/planner-accuracy.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from shardlab.planner.memory.activations import (
    TokenMemory,
    count_token_memory,
    logits_text,
    recomputed_text,
    saved_item,
)
from shardlab.planner.memory.gathered_weights import GatheredWeights
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards
from shardlab.planner.model import Architecture
from shardlab.planner.plan import MemoryItem

Moment = Literal["loss", "backward", "update"]


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """What the software of a run stores besides the tensors of the formulas."""

    logit_bytes: int  # per logit at the loss
    sharded_logit_bytes: int  # the same with a vocabulary that is sharded over tensor axes
    # Autodiff without remat also saves the f32 steps of norms, rotary embeddings and SiLU.
    unfused_saves: float
    has_compute_copies: bool  # wider parameters are converted once, before the loop over layers
    gathered_layers: int = 2  # one is computed while the next is gathered
    selective_saves: str = ""  # names of what remat "selective" saves; all but scores if empty
    # With pipeline stages fsdp gathers the weights of a stage once per step, and reduces its
    # gradients once: both are stored unsharded meanwhile.
    keeps_stage_gathered: bool = False
    gradient_sum_ratio: int = 1  # bytes of an unsharded gradient per byte of the gathered weight


XLA = MemoryProfile(
    # f32 logits and their bf16 gradient; sharded, also a copy of that in another layout.
    logit_bytes=6,
    sharded_logit_bytes=8,
    unfused_saves=2.05,
    has_compute_copies=True,
)
# bf16 logits, their f32 copy, log-softmax, its f32 gradient, and the bf16 gradient. Its selective
# checkpointing saves every second product and attention, as the time of a step assumes
# (`recomputation`; pytorch/torchtitan b5bcd76, distributed/activation_checkpoint.py).
PYTORCH = MemoryProfile(
    logit_bytes=16,
    sharded_logit_bytes=16,
    unfused_saves=1.0,
    has_compute_copies=False,
    selective_saves="query_proj+value_proj+mlpwi_0+context",
    # torchtitan does not reshard after the forward pass if there are stages, and a schedule reduces
    # gradients after the last microbatch; FSDP2 sums them in f32 (`reduce_dtype`).
    keeps_stage_gathered=True,
    gradient_sum_ratio=2,
)
# Megatron's cross-entropy overwrites the f32 logits with their gradient.
MEGATRON = MemoryProfile(
    logit_bytes=8, sharded_logit_bytes=8, unfused_saves=1.0, has_compute_copies=False
)
_PROFILES = {"torchtitan": PYTORCH, "megatron": MEGATRON, "megatron-2022": MEGATRON}


def memory_profile(framework: str | None) -> MemoryProfile:
    """Return the profile of a framework; XLA's, if it is unknown."""
    return _PROFILES.get(framework or "", XLA)


def with_selective_saves(workload: Workload, profile: MemoryProfile) -> Workload:
    """Return the workload with the arrays that the software saves under remat "selective"."""
    if workload.remat != "selective" or not profile.selective_saves:
        return workload
    return replace(workload, remat=profile.selective_saves)


@dataclass(frozen=True, kw_only=True)
class StepWeights:
    """Bytes of one device that depend on how weights are sharded."""

    parameters: int
    gradients: int
    optimizer: int
    compute_copies: int  # of parameters that are wider than the dtype they are multiplied in
    gathered: GatheredWeights


@dataclass(frozen=True, kw_only=True)
class StepPeak:
    """Where memory peaks, and what it needs besides parameters and gradients of the device."""

    moment: Moment
    activations: int
    optimizer: int


def find_peak(
    tokens: TokenMemory,
    weights: StepWeights,
    workload: Workload,
    shards: WorkloadShards,
    profile: MemoryProfile,
) -> StepPeak:
    """Return the peak of a training step.

    `activations` counts what is stored beyond one gradient per parameter, so that parameters,
    gradients, optimizer and activations add up to the peak at each of the three moments.
    """
    resident = 0 if workload.offload_optimizer else weights.optimizer
    moments: dict[Moment, int] = {
        "loss": resident + _loss_bytes(tokens, weights, workload, shards, profile),
        "backward": resident
        + weights.gradients
        + _backward_bytes(tokens, weights, workload, profile),
        "update": weights.optimizer + weights.gradients,
    }
    moment = max(moments, key=lambda name: moments[name])
    # Without the update: its excess belongs to the optimizer, see below.
    largest = max(moments["loss"], moments["backward"])
    activations = max(largest - resident - weights.gradients, 0)
    return StepPeak(
        moment=moment,
        activations=activations,
        optimizer=moments[moment] - activations - weights.gradients,
    )


def _loss_bytes(
    tokens: TokenMemory,
    weights: StepWeights,
    workload: Workload,
    shards: WorkloadShards,
    profile: MemoryProfile,
) -> int:
    is_sharded = shards.tensor.n_shards > 1
    logit_bytes = profile.sharded_logit_bytes if is_sharded else profile.logit_bytes
    # Gradients of earlier microbatches are summed in buffers that exist all the time.
    accumulated = weights.gradients if workload.n_microbatches > 1 else 0
    saved = _saved_bytes(tokens.saved_at_loss, workload, profile)
    return (
        saved
        + accumulated
        + _copies(weights, profile)
        + weights.gathered.table
        + logit_bytes * tokens.logits
        + _stage_bytes(tokens, weights, profile)
    )


def _backward_bytes(
    tokens: TokenMemory, weights: StepWeights, workload: Workload, profile: MemoryProfile
) -> int:
    gathered = _gathered_layers(tokens.has_experts, profile) * weights.gathered.layer
    return (
        _saved_bytes(tokens.saved, workload, profile)
        + _copies(weights, profile)
        + tokens.recomputed
        # The gradient of an activation needs a buffer besides the activation itself.
        + tokens.largest
        + (_stage_bytes(tokens, weights, profile) or gathered)
    )


def _stage_bytes(tokens: TokenMemory, weights: StepWeights, profile: MemoryProfile) -> int:
    """Return the gathered weights of a pipeline stage, with the sums of their gradients."""
    if not profile.keeps_stage_gathered:
        return 0
    n_bytes = tokens.stage_layers * weights.gathered.layer
    return n_bytes * (1 + profile.gradient_sum_ratio)


def _gathered_layers(has_experts: bool, profile: MemoryProfile) -> int:
    # All experts of a layer together are too large to be prefetched as well.
    return 1 if has_experts else profile.gathered_layers


def _saved_bytes(saved: int, workload: Workload, profile: MemoryProfile) -> int:
    is_unfused = workload.remat in ("none", "selective")
    return int(saved * profile.unfused_saves) if is_unfused else saved


def _copies(weights: StepWeights, profile: MemoryProfile) -> int:
    return weights.compute_copies if profile.has_compute_copies else 0


def step_memory_items(
    arch: Architecture,
    shards: WorkloadShards,
    workload: Workload,
    weights: StepWeights,
    profile: MemoryProfile,
) -> tuple[MemoryItem, ...]:
    """Return the peak as items with formulas; they add up to `find_peak`."""
    policy, workload = workload.remat, with_selective_saves(workload, profile)
    tokens = count_token_memory(arch, shards, workload)
    peak = find_peak(tokens, weights, workload, shards, profile)
    saved = saved_item(arch, shards, workload, policy)
    is_loss = _loss_bytes(tokens, weights, workload, shards, profile) > (
        weights.gradients + _backward_bytes(tokens, weights, workload, profile)
    )
    n_saved = min(saved.bytes_per_device, peak.activations)
    rest = peak.activations - n_saved
    items = [
        MemoryItem(
            kind="activations",
            name=saved.name,
            bytes_per_device=n_saved,
            formula=saved.formula,
        )
    ]
    explain = _loss_item if is_loss else _backward_item
    items.append(explain(arch, shards, workload, weights, profile, rest))
    if workload.offload_optimizer:
        items.append(
            MemoryItem(
                kind="optimizer",
                name="optimizer states copied from the host for the update",
                bytes_per_device=peak.optimizer,
                formula=f"{weights.optimizer:,} bytes of states, less the activations that are "
                "free by then",
            )
        )
    return tuple(items)


def _loss_item(
    arch: Architecture,
    shards: WorkloadShards,
    workload: Workload,
    weights: StepWeights,
    profile: MemoryProfile,
    n_bytes: int,
) -> MemoryItem:
    is_sharded = shards.tensor.n_shards > 1
    logit_bytes = profile.sharded_logit_bytes if is_sharded else profile.logit_bytes
    later = 0 if workload.n_microbatches > 1 else weights.gradients
    formula = f"{logit_bytes} bytes × {logits_text(arch, shards, workload)}"
    formula += _extra_text("the gathered output table", weights.gathered.table)
    formula += _extra_text("weights in the dtype of activations", _copies(weights, profile))
    if workload.remat in ("none", "selective") and profile.unfused_saves > 1:
        formula += f"; saved activations × {profile.unfused_saves:g} for unfused steps"
    if later:
        formula += f"; less gradients of {later:,} bytes, which are not stored yet"
    return MemoryItem(
        kind="activations", name="at the loss: logits", bytes_per_device=n_bytes, formula=formula
    )


def _backward_item(
    arch: Architecture,
    shards: WorkloadShards,
    workload: Workload,
    weights: StepWeights,
    profile: MemoryProfile,
    n_bytes: int,
) -> MemoryItem:
    n_layers = _gathered_layers(bool(arch.experts), profile)
    gathered = n_layers * weights.gathered.layer
    stage = _stage_bytes(count_token_memory(arch, shards, workload), weights, profile)
    recomputed = recomputed_text(arch, shards, workload)
    formula = f"recomputed: {recomputed}" if recomputed else "nothing is recomputed"
    formula += "; one gradient of the largest tensor"
    if stage:
        formula += _extra_text("gathered weights of the stage, and their summed gradients", stage)
    else:
        formula += _extra_text(f"gathered weights of layers at once ({n_layers})", gathered)
    formula += _extra_text("weights in the dtype of activations", _copies(weights, profile))
    if workload.remat in ("none", "selective") and profile.unfused_saves > 1:
        formula += f"; saved activations × {profile.unfused_saves:g} for unfused steps"
    return MemoryItem(
        kind="activations",
        name="in the backward pass: one layer",
        bytes_per_device=n_bytes,
        formula=formula,
    )


def _extra_text(name: str, n_bytes: int) -> str:
    return f"; {name}: {n_bytes:,} bytes" if n_bytes else ""


def gathered_item(gathered: GatheredWeights) -> tuple[MemoryItem, ...]:
    """Return the gathered weights alone, for inference and models of unknown architecture."""
    if not (n_bytes := max(gathered.layer, gathered.table)):
        return ()
    text = gathered.layer_text if gathered.layer >= gathered.table else gathered.table_text
    return (
        MemoryItem(
            kind="activations",
            name="gathered weights (peak)",
            bytes_per_device=n_bytes,
            formula=text,
        ),
    )
