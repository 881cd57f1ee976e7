"""FLOPs of one step: from the model's parameters, and from attention.

>>> from shardlab.planner.models.load import load_model
>>> mixtral = load_model("mixtral-8x7b")
>>> round(active_parameters(mixtral) / 1e9, 1), round(mixtral.n_parameters / 1e9, 1)
(12.9, 46.7)

Training takes 6 FLOPs per active parameter and token, and 12 L N H per token and token of its
sequence (scores and weighted values, not halved for a causal mask): JAX scaling book,
transformers.md (0819a7d, 2025-02). If keys are wider than values, 2 H is the sum of both widths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.mesh import Mesh

# The path before the number of an expert; shared experts get every token.
_EXPERT_PATH = re.compile(r"(?:^|[./_\[\]])(?<!shared_)experts?[./_\[]+$")
# Remat policy -> how often the backward pass repeats the forward (matrix products, attention)
_RECOMPUTED = {"none": (0, 0), "selective": (0, 1), "dots": (0, 1), "full": (1, 1)}
_FORWARD_SHARE = 3  # training FLOPs / forward FLOPs: the backward pass takes twice the forward
FORMULAS = {
    "training": "compute: (6 x active parameters x tokens + 6 L N (H + H_v) x tokens x sequence) "
    "/ (devices x bf16_flops)",
    "full": "remat full, or a number: the forward pass once more, x 8/6",
    "selective": "remat selective and dots: attention's forward pass once more",
    "decoding": "compute: (2 x active parameters + 2 L N (H + H_v) x sequence) x batch "
    "/ (devices x bf16_flops)",
    "redundant": "redundant: what a tensor axis does not divide is computed by each of its devices",
    "reading": "reading: (parameters + cache on a device) / hbm_bandwidth, per token",
}


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step over all devices: of the model, and with what is computed repeatedly."""

    model_flops: float
    flops: float


@dataclass(frozen=True)
class RedundantCompute:
    """What several devices of a tensor axis compute alike, because it is not divisible.

    `parameters` are active ones, counted once for each device that repeats another's work;
    `attention_factor` is how many devices compute the same heads.
    """

    parameters: int = 0
    attention_factor: int = 1


NO_REDUNDANCY = RedundantCompute()


def redundant_compute(
    model: Model, sharded_groups: Iterable[ShardedGroup], mesh: Mesh
) -> RedundantCompute:
    """Return what a strategy left unsharded over the tensor axes."""
    arch = model.architecture
    axes = mesh_axis_roles(mesh).get("tensor", ())
    n_devices = prod(mesh.shape[name] for name in axes)
    if arch is None or n_devices == 1:
        return NO_REDUNDANCY
    n_parameters = 0
    for sharded in sharded_groups:
        if any(skipped.part == "tensor" for skipped in sharded.declined):
            unused_axes = set(axes).difference(sharded.spec.mesh_axes)
            n_replicas = prod(mesh.shape[name] for name in unused_axes)
            n_parameters += (n_replicas - 1) * _active_elements(sharded.group, arch)
    return RedundantCompute(n_parameters, n_devices if arch.heads % n_devices else 1)


def training_flops(
    model: Model,
    arch: Architecture,
    workload: Workload,
    redundant: RedundantCompute = NO_REDUNDANCY,
) -> StepFlops:
    """Return the FLOPs of a training step."""
    n_tokens = workload.batch * workload.sequence
    # 2 FLOPs forward (multiply and add), 4 backward (gradients of inputs and of weights).
    matmuls = 6.0 * active_parameters(model) * n_tokens
    head_widths = arch.head_dim + arch.value_dim
    n_attended = _attended_tokens(arch, workload.sequence)
    attention = 6.0 * arch.heads * head_widths * n_tokens * n_attended
    computed_matmuls = matmuls + 6.0 * redundant.parameters * n_tokens
    computed_attention = attention * redundant.attention_factor
    repeat_matmuls, repeat_attention = _RECOMPUTED.get(workload.remat, _RECOMPUTED["full"])
    recomputed = computed_matmuls * repeat_matmuls + computed_attention * repeat_attention
    flops = computed_matmuls + computed_attention + recomputed / _FORWARD_SHARE
    return StepFlops(matmuls + attention, flops)


def decoding_flops(
    model: Model,
    arch: Architecture,
    workload: Workload,
    redundant: RedundantCompute = NO_REDUNDANCY,
) -> StepFlops:
    """Return the FLOPs of one token of every sequence, with a full cache."""
    matmuls = 2.0 * active_parameters(model)
    widths = arch.head_dim + arch.value_dim
    if arch.kv_lora_rank:
        # Absorbed latent attention: heads attend to the latent array itself, keys and values are
        # not expanded (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
        widths = 2 * arch.kv_lora_rank + arch.rope_head_dim
    attention = 2.0 * arch.heads * widths * _attended_tokens(arch, workload.sequence)
    computed = matmuls + 2.0 * redundant.parameters + attention * redundant.attention_factor
    return StepFlops((matmuls + attention) * workload.batch, computed * workload.batch)


def _attended_tokens(arch: Architecture, sequence: int) -> int:
    """Return the tokens that one token attends to, summed over layers, not halved by a mask."""
    n_local = min(arch.window_layers, arch.layers) if arch.window < sequence else 0
    return (arch.layers - n_local) * sequence + n_local * arch.window


def is_forward_repeated(workload: Workload) -> bool:
    """Return whether the backward pass recomputes layers, and repeats their communication."""
    return _RECOMPUTED.get(workload.remat, _RECOMPUTED["full"])[0] > 0


def active_parameters(model: Model) -> int:
    """Return the parameters that one token uses: of the experts only those it is routed to."""
    arch = model.architecture
    if arch is None or not arch.experts:
        return model.n_parameters
    # Shared experts and routers are not in it: every token uses them.
    n_expert = sum(group.n_tensors * group.n_elements for group in model.groups if is_expert(group))
    return model.n_parameters - n_expert * (arch.experts - arch.top_k) // arch.experts


def _active_elements(group: TensorGroup, arch: Architecture) -> int:
    n_elements = group.n_tensors * group.n_elements
    if arch.experts and is_expert(group):
        return n_elements * arch.top_k // arch.experts
    return n_elements


def is_expert(group: TensorGroup) -> bool:
    """Return whether tensors belong to one of many experts, or to all of them stacked."""
    dim_names = group.axes or group.stacked_meanings or ()
    if not {"experts", "expert", "exp"}.isdisjoint(dim_names):
        return True
    return any(_EXPERT_PATH.search(text) for text in group.path_parts[:-1])
