"""The arithmetic of one step: FLOPs by the model's parameters, and those of attention.

>>> from shardlab.planner.models.load import load_model
>>> mixtral = load_model("mixtral-8x7b")
>>> round(active_parameters(mixtral) / 1e9, 1), round(mixtral.n_parameters / 1e9, 1)
(12.9, 46.7)

Training takes 6 FLOPs for each active parameter and token, and 12 L N H for each token and token of
its sequence (scores and what they weigh, not halved for a causal mask): JAX scaling book,
transformers.md (0819a7d, 2025-02). Where keys are wider than values, 2 H is the sum of both widths.
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

# what stands before the number of an expert in a path; shared experts take every token
_EXPERT = re.compile(r"(?:^|[./_\[\]])(?<!shared_)experts?[./_\[]+$")
# how much of the forward pass is computed again for the backward: (matrix products, attention)
_AGAIN = {"none": (0, 0), "selective": (0, 1), "dots": (0, 1), "full": (1, 1)}
FORMULAS = {
    "training": "compute: (6 x active parameters x tokens + 6 L N (H + H_v) x tokens x sequence) "
    "/ (devices x bf16_flops)",
    "full": "remat full, or a number: the forward pass once more, x 8/6",
    "selective": "remat selective and dots: attention's forward pass once more",
    "decoding": "compute: (2 x active parameters + 2 L N (H + H_v) x sequence) x batch "
    "/ (devices x bf16_flops)",
    "copies": "copies: what a tensor axis does not divide is computed by each of its devices",
    "reading": "reading: (parameters + cache on a device) / hbm_bandwidth, for each token",
}


@dataclass(frozen=True)
class Work:
    """FLOPs of one step over all devices: what the model takes, and with what is done again."""

    model_flops: float
    flops: float


@dataclass(frozen=True)
class Copies:
    """What devices of a tensor axis compute alike, since it does not divide.

    `parameters` are active ones, counted once for every device that repeats what another does;
    `attention` says how many devices compute the same heads.
    """

    parameters: int = 0
    attention: int = 1


NO_COPIES = Copies()


def copies_of(model: Model, placed: Iterable[ShardedGroup], mesh: Mesh) -> Copies:
    """Return what a strategy left whole over the tensor axes that it would have cut there."""
    arch = model.architecture
    axes = mesh_axis_roles(mesh).get("tensor", ())
    n = prod(mesh.shape[name] for name in axes)
    if arch is None or n == 1:
        return NO_COPIES
    whole = 0
    for each in placed:
        if any(one.part == "tensor" for one in each.declined):
            uncut = set(axes).difference(each.spec.mesh_axes)
            times = prod(mesh.shape[name] for name in uncut)
            whole += (times - 1) * _active(each.group, arch)
    return Copies(whole, n if arch.heads % n else 1)


def training_work(
    model: Model, arch: Architecture, workload: Workload, copies: Copies = NO_COPIES
) -> Work:
    """Return the arithmetic of a training step."""
    tokens = workload.batch * workload.sequence
    products = 6.0 * active_parameters(model) * tokens
    widths = arch.head_dim + arch.value_dim
    attention = 6.0 * arch.heads * widths * tokens * _seen(arch, workload.sequence)
    again = _AGAIN.get(workload.remat, _AGAIN["full"])
    done = products + 6.0 * copies.parameters * tokens, attention * copies.attention
    extra = (done[0] * again[0] + done[1] * again[1]) / 3
    return Work(products + attention, sum(done) + extra)


def decoding_work(
    model: Model, arch: Architecture, workload: Workload, copies: Copies = NO_COPIES
) -> Work:
    """Return the arithmetic of one token for every sequence, each with all its tokens cached."""
    products = 2.0 * active_parameters(model)
    widths = arch.head_dim + arch.value_dim
    if arch.kv_lora_rank:  # heads attend to the latent array itself, which is not grown again
        widths = 2 * arch.kv_lora_rank + arch.rope_head_dim
    attention = 2.0 * arch.heads * widths * _seen(arch, workload.sequence)
    flops = (products + attention) * workload.batch
    done = products + 2.0 * copies.parameters + attention * copies.attention
    return Work(flops, done * workload.batch)


def _seen(arch: Architecture, sequence: int) -> int:
    """Return the tokens that one token attends to, in all layers: no mask halves them."""
    local = min(arch.window_layers, arch.layers) if arch.window < sequence else 0
    return (arch.layers - local) * sequence + local * arch.window


def is_forward_repeated(workload: Workload) -> bool:
    """Return whether the backward pass computes each layer again, and so sends what it sends."""
    return _AGAIN.get(workload.remat, _AGAIN["full"])[0] > 0


def active_parameters(model: Model) -> int:
    """Return the parameters that one token meets: of the experts only those it is sent to."""
    arch = model.architecture
    if arch is None or not arch.experts:
        return model.n_parameters
    of_experts = sum(each.n_tensors * each.n_elements for each in model.groups if is_expert(each))
    return model.n_parameters - of_experts * (arch.experts - arch.top_k) // arch.experts


def _active(group: TensorGroup, arch: Architecture) -> int:
    n = group.n_tensors * group.n_elements
    return n * arch.top_k // arch.experts if arch.experts and is_expert(group) else n


def is_expert(group: TensorGroup) -> bool:
    """Return whether tensors are of one expert among many, or of all of them stacked."""
    axes = group.axes or group.stacked_meanings or ()
    if not {"experts", "expert", "exp"}.isdisjoint(axes):
        return True
    return any(_EXPERT.search(piece) for piece in group.path_parts[:-1])
