"""FLOPs that a model needs for one step, whatever a program computes: the numerator of MFU.

>>> from shardlab.planner.models.load import load_model
>>> mixtral = load_model("mixtral-8x7b")
>>> round(active_parameters(mixtral) / 1e9, 1), round(mixtral.n_parameters / 1e9, 1)
(12.9, 46.7)

Training takes 6 FLOPs per active parameter and token, and 12 L N H per token and token that it
attends to (scores and weighted values): JAX scaling book, transformers.md (0819a7d, 2025-02). A
causal mask leaves half of a sequence to attend to, on average, as MaxText counts it too. If keys
are wider than values, 2 H is the sum of both widths.
"""

from __future__ import annotations

import re

from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.planner.tensor_group import TensorGroup
from shardlab.planner.timing.attended_tokens import attended_tokens, cached_tokens

# The path before the number of an expert; shared experts get every token.
_EXPERT_PATH = re.compile(r"(?:^|[./_\[\]])(?<!shared_)experts?[./_\[]+$")


def training_flops(model: Model, arch: Architecture, workload: Workload) -> float:
    """Return the FLOPs of a training step over all devices, without recomputation."""
    n_tokens = workload.batch * workload.sequence
    # 2 FLOPs forward (multiply and add), 4 backward (gradients of inputs and of weights).
    attention = sum(
        6.0 * n_layers * arch.heads * (arch.head_dim + arch.value_dim) * n_attended
        for n_layers, n_attended in attended_tokens(arch, workload.sequence)
    )
    return n_tokens * (6.0 * active_parameters(model) + attention)


def decoding_flops(model: Model, arch: Architecture, workload: Workload) -> float:
    """Return the FLOPs of one token of every sequence, with a full cache."""
    widths = latent_widths(arch) if arch.kv_lora_rank else arch.head_dim + arch.value_dim
    n_attended = sum(
        n_layers * n_cached for n_layers, n_cached in cached_tokens(arch, workload.sequence)
    )
    return workload.batch * (
        2.0 * active_parameters(model) + 2.0 * arch.heads * widths * n_attended
    )


def latent_widths(arch: Architecture) -> int:
    """Return the width of scores and values in absorbed latent attention.

    Heads attend to the latent array itself, keys and values are not expanded (DeepSeek-V2, arXiv
    2405.04434, section 2.1.2).
    """
    return 2 * arch.kv_lora_rank + arch.rope_head_dim


def active_parameters(model: Model) -> int:
    """Return the parameters that one token uses: of the experts only those it is routed to."""
    arch = model.architecture
    if arch is None or not arch.experts:
        return model.n_parameters
    # Shared experts and routers are not in it: every token uses them.
    n_expert = sum(group.n_tensors * group.n_elements for group in model.groups if is_expert(group))
    return model.n_parameters - n_expert * (arch.experts - arch.top_k) // arch.experts


def is_expert(group: TensorGroup) -> bool:
    """Return whether tensors belong to one of many experts, or to all of them stacked."""
    dim_names = group.axes or group.stacked_meanings or ()
    if not {"experts", "expert", "exp"}.isdisjoint(dim_names):
        return True
    return any(_EXPERT_PATH.search(text) for text in group.path_parts[:-1])
