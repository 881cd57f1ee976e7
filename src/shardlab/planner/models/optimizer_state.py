"""What a tree holds beside parameters: an optimizer's own arrays, statistics, counters.

A train state has its optimizer's arrays in it, a checkpoint too. They have no gradient and no
moments of their own, and a plan for training does not hold them twice.

>>> [is_optimizer_path(path) for path in ("opt_state/0/mu/up/kernel", "optimizer/step", "layers/0/up")]
[True, True, False]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardlab._text.units import bytes_text
from shardlab.errors import InvalidModel
from shardlab.planner.tensor_group import Tensor
from shardlab.planner.memory.dtype_policy import is_float
from shardlab.planner.model import Model

# as Flax, NNX, MaxText, t5x and others call the place
_STATES = re.compile(
    r"(?:^|/)(?:opt_states?|optimizer|optimizer_states?|optim|optim_states?|param_states)(?:/|$)"
)
_STATISTICS = re.compile(r"(?:^|/)batch_stats/")
# collections of linen, whose names a module may have too: these stand first, or beside `params`
_COLLECTION = re.compile(r"(?P<above>.*?)(?:cache|intermediates)/")


def is_optimizer_path(path: str) -> bool:
    """Tell by its path whether an array is an optimizer's own."""
    return _STATES.search(path) is not None


def mark_untrained(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors, those marked that are an optimizer's own or that no optimizer changes."""
    tensors = list(tensors)
    fixed = _fixed(tensors)
    by_path = [each.is_optimizer_state or is_optimizer_path(each.path) for each in tensors]
    if all(by_path):  # a model that somebody called an optimizer, unless its types say so too
        by_path = [each.is_optimizer_state for each in tensors]
    return [
        replace(each, is_trained=False, is_optimizer_state=True)
        if state
        else (replace(each, is_trained=False) if each.path in fixed else each)
        for each, state in zip(tensors, by_path, strict=True)
    ]


def drop_optimizer_states(model: Model) -> Model:
    """Return the model without an optimizer's own arrays, and a note that says so."""
    states = [group for group in model.groups if group.is_optimizer_state]
    if not states:
        return model
    kept = tuple(group for group in model.groups if not group.is_optimizer_state)
    if not kept:
        raise InvalidModel(
            f"{model.name} holds an optimizer's arrays and no model.",
            where=f"such as {states[0].name!r:.200}",
            fix="the model that it is for; optimizer= plans an optimizer's arrays.",
        )
    n = sum(group.n_tensors for group in states)
    n_bytes = sum(each.n_tensors * each.dtype.n_bytes(each.n_elements) for each in states)
    note = (
        f"{n:,} arrays of an optimizer that stand in the model, such as {states[0].name:.120}, "
        f"{bytes_text(n_bytes)} in all, are left out: those of the optimizer that was asked for "
        "are counted."
    )
    return replace(model, groups=kept, notes=(*model.notes, note))


def _fixed(tensors: Sequence[Tensor]) -> set[str]:
    """Return the paths that no optimizer changes: statistics, caches, flags, a step's number."""
    beside = {"", *(each.path.rpartition("params/")[0] for each in tensors)}
    norms = _norms(tensors)
    found = set()
    for each in tensors:
        above, _, name = each.path.rpartition("/")
        collection = _COLLECTION.match(each.path)
        if (
            each.dtype.name == "bool"
            or (not each.shape and not is_float(each.dtype))
            or _STATISTICS.search(each.path)
            or (above in norms and name in ("mean", "var"))
            or (collection is not None and collection["above"] in beside)
        ):
            found.add(each.path)
    return found


def _norms(tensors: Iterable[Tensor]) -> set[str]:
    """Return the paths of batch norms: a mean and a variance beside a scale or a bias."""
    names: dict[str, set[str]] = {}
    for each in tensors:
        above, _, name = each.path.rpartition("/")
        if name in ("mean", "var", "scale", "bias"):
            names.setdefault(above, set()).add(name)
    return {above for above, held in names.items() if held >= {"mean", "var"} and len(held) > 2}
