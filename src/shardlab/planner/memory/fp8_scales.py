"""Scales of fp8 weights: fp8 checkpoints have one per block of 128 × 128 weights.

Scales are not parameters, an optimizer does not update them. If the weights are stored in a wider
dtype, the scales are multiplied into them and no longer exist.
"""

from __future__ import annotations

import re
from dataclasses import replace

from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.model import Model
from shardlab.planner.tensor_group import TensorGroup

# DeepSeek-V3 and compressed-tensors checkpoints name them like this.
_SCALE = re.compile(r"weight_scale(_inv)?$|_scale_inv$|[./]input_scale$")


def is_scale(group: TensorGroup) -> bool:
    """Return whether tensors hold scales of quantized weights, by their name."""
    return _SCALE.search(group.path_parts[-1]) is not None


def without_scales(model: Model, policy: DtypePolicy) -> Model:
    """Return the model without scales if the policy stores weights in 16 bits or more.

    Returns the same object if there is nothing to remove.
    """
    # None: weights stay in fp8 and need their scales.
    if policy.parameters is None or policy.parameters.bits < 16:
        return model
    scales = [group for group in model.groups if is_scale(group)]
    if not scales:
        return model
    n_tensors = sum(group.n_tensors for group in scales)
    note = (
        f"{n_tensors:,} tensors of fp8 block scales are multiplied into their weights, which the "
        f"policy stores in {policy.parameters.short}, and take no memory."
    )
    weights = tuple(group for group in model.groups if not is_scale(group))
    return replace(model, groups=weights, notes=(*model.notes, note))
