"""Strategies: names such as fsdp+tensor for the specs that everybody means by them.

A strategy goes by the meaning of array axes and the sizes of the mesh; what it stands for is
printed as rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardlab.errors import UnknownChoice
from shardlab.layouts.mesh import Mesh
from shardlab.layouts.spec import Spec
from shardlab.plans.family import Family
from shardlab.plans.matching import Placed
from shardlab.plans.meaning import meaning_of
from shardlab.plans.model import Model

# what a strategy cuts -> the names that its mesh axis goes by, the first that the mesh has
AXIS_NAMES = {
    "fsdp": ("fsdp", "data"),
    "tensor": ("tensor", "model", "tp"),
    "expert": ("expert", "ep"),
    "data": ("data", "dp", "fsdp"),
}
# part of a strategy -> logical axis names that it cuts, in order of preference
_CUTS = {
    "tensor": ("heads", "kv_heads", "mlp", "vocab"),
    "expert": ("experts",),
    "fsdp": ("embed",),
}


@dataclass(frozen=True)
class Strategy:
    """The parts of a strategy, and from which ZeRO stage on states are cut over the data axis."""

    name: str
    parts: tuple[str, ...]
    zero: int = 0  # 1: optimizer, 2: and gradients, 3: and parameters


def parse_strategy(name: str) -> Strategy:
    """Return the strategy of a name such as `fsdp+tensor` or `zero1`."""
    parts = [part for part in name.split("+") if part not in ("data-parallel", "dp")]
    zero = max((int(part[4:]) for part in parts if part.startswith("zero")), default=0)
    kept = tuple(
        "fsdp" if part == "zero3" else part for part in parts if part not in ("zero1", "zero2")
    )
    if unknown := [part for part in kept if part not in _CUTS]:
        raise UnknownChoice(f"There is no strategy {unknown[0]!r:.80}.", fix="fsdp, tensor, ...")
    return Strategy(name, kept, zero)


def place(model: Model, strategy: Strategy, mesh: Mesh) -> Iterator[Placed]:
    """Yield every family of the model with the spec that the strategy gives it."""
    for family in model.families:
        yield Placed(family, spec_of(family, strategy, mesh), f"strategy {strategy.name}")


def spec_of(family: Family, strategy: Strategy, mesh: Mesh) -> Spec:
    """Return the spec of one tensor: each part cuts the first axis of its meaning that divides."""
    axes = family.axes or meaning_of(family.name, family.shape) or ()
    cuts: list[str | None] = [None] * len(family.shape)
    for part in strategy.parts:
        name = next((each for each in AXIS_NAMES[part] if each in mesh.shape), None)
        if name is None:
            continue
        for at, (meaning, size) in enumerate(zip(axes, family.shape, strict=True) if axes else ()):
            if meaning in _CUTS[part] and cuts[at] is None and size % mesh.shape[name] == 0:
                cuts[at] = name
                break
    while cuts and cuts[-1] is None:
        cuts.pop()
    return Spec(*cuts)
