"""Arrays in a tree that are not parameters: optimizer states, batch statistics, counters.

A train state contains the arrays of its optimizer, and so does a checkpoint. They have no gradient
and no optimizer states of their own, and a training plan must not count them twice.

>>> paths = ("opt_state/0/mu/up/kernel", "optimizer/step", "layers/0/up")
>>> [is_optimizer_path(path) for path in paths]
[True, True, False]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardlab._text.units import bytes_text
from shardlab.errors import InvalidModel
from shardlab.planner.memory.dtype_policy import is_float
from shardlab.planner.model import Model
from shardlab.planner.tensor_group import Tensor

# names in Flax, NNX, MaxText, t5x and others
_OPTIMIZER = re.compile(
    r"(?:^|/)(?:opt_states?|optimizer|optimizer_states?|optim|optim_states?|param_states)(?:/|$)"
)
_BATCH_STATS = re.compile(r"(?:^|/)batch_stats/")
# Variable collections of linen. A module may have such a name too, so they count only at the root
# or beside `params`.
_COLLECTION = re.compile(r"(?P<parent>.*?)(?:cache|intermediates)/")


def is_optimizer_path(path: str) -> bool:
    """Return whether an array belongs to an optimizer, by its path."""
    return _OPTIMIZER.search(path) is not None


def mark_untrained(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors, with optimizer states and arrays that no optimizer updates marked."""
    tensors = list(tensors)
    constant_paths = _find_constant_paths(tensors)
    is_state = [tensor.is_optimizer_state or is_optimizer_path(tensor.path) for tensor in tensors]
    if all(is_state):
        # A model that lies in a folder called "optimizer": only the types count then.
        is_state = [tensor.is_optimizer_state for tensor in tensors]
    marked_tensors = []
    for tensor, is_optimizer_state in zip(tensors, is_state, strict=True):
        if is_optimizer_state:
            tensor = replace(tensor, is_trained=False, is_optimizer_state=True)
        elif tensor.path in constant_paths:
            tensor = replace(tensor, is_trained=False)
        marked_tensors.append(tensor)
    return marked_tensors


def drop_optimizer_states(model: Model) -> Model:
    """Return the model without the arrays of an optimizer, with a note that says so."""
    states = [group for group in model.groups if group.is_optimizer_state]
    if not states:
        return model
    groups = tuple(group for group in model.groups if not group.is_optimizer_state)
    if not groups:
        raise InvalidModel(
            f"{model.name} has optimizer states but no model.",
            where=f"such as {states[0].name!r:.200}",
            fix="give the model itself; optimizer= adds the optimizer states to the plan.",
        )
    n_tensors = sum(group.n_tensors for group in states)
    n_bytes = sum(group.n_tensors * group.dtype.n_bytes(group.n_elements) for group in states)
    note = (
        f"{n_tensors:,} optimizer arrays in the model, such as {states[0].name:.120}, total "
        f"{bytes_text(n_bytes)}, are left out: the states of the requested optimizer are counted "
        "instead."
    )
    return replace(model, groups=groups, notes=(*model.notes, note))


def _find_constant_paths(tensors: Sequence[Tensor]) -> set[str]:
    """Return the paths that no optimizer updates: statistics, caches, flags, the step number."""
    collection_parents = {"", *(tensor.path.rpartition("params/")[0] for tensor in tensors)}
    batch_norms = _find_batch_norms(tensors)
    paths = set()
    for tensor in tensors:
        parent, _, name = tensor.path.rpartition("/")
        collection = _COLLECTION.match(tensor.path)
        if (
            tensor.dtype.name == "bool"  # masks
            or (not tensor.shape and not is_float(tensor.dtype))
            or _BATCH_STATS.search(tensor.path)
            or (parent in batch_norms and name in ("mean", "var"))
            or (collection is not None and collection["parent"] in collection_parents)
        ):
            paths.add(tensor.path)
    return paths


def _find_batch_norms(tensors: Iterable[Tensor]) -> set[str]:
    """Return the paths of batch norms: modules with mean and var besides a scale or a bias."""
    names_by_parent: dict[str, set[str]] = {}
    for tensor in tensors:
        parent, _, name = tensor.path.rpartition("/")
        if name in ("mean", "var", "scale", "bias"):
            names_by_parent.setdefault(parent, set()).add(name)
    return {
        parent
        for parent, names in names_by_parent.items()
        if names >= {"mean", "var"} and len(names) > 2
    }
