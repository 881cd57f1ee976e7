"""Scales of fp8 blocks: a checkpoint in fp8 keeps one number for each block of 128 x 128 weights.

They are no parameters: nobody trains them. Where the weights are held in a wider dtype, the scales
are multiplied into them and are gone.
"""

from __future__ import annotations

import re
from dataclasses import replace

from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.model import Model
from shardlab.planner.tensor_group import TensorGroup

_SCALE = re.compile(r"weight_scale(_inv)?$|_scale_inv$|[./]input_scale$")


def is_scale(group: TensorGroup) -> bool:
    """Tell by its name whether a tensor holds scales of quantised weights."""
    return _SCALE.search(group.path_parts[-1]) is not None


def without_scales(model: Model, policy: DtypePolicy) -> Model:
    """Return the model as the policy holds it: without scales where weights have 16 bits or more.

    The model is the same one where there is nothing to leave out.
    """
    if policy.parameters is None or policy.parameters.bits < 16:
        return model
    scales = [group for group in model.groups if is_scale(group)]
    if not scales:
        return model
    n = sum(group.n_tensors for group in scales)
    note = (
        f"{n:,} tensors of fp8 block scales are multiplied into their weights, which the policy "
        f"holds in {policy.parameters.short}, and take no memory."
    )
    kept = tuple(group for group in model.groups if not is_scale(group))
    return replace(model, groups=kept, notes=(*model.notes, note))
