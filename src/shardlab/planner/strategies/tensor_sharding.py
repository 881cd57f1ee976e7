"""Cutting one tensor: which array axis each part of a strategy takes, so that it divides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd, prod

from shardlab.planner.tensor_group import TensorGroup
from shardlab.planner.model import Architecture
from shardlab.planner.plan import SkippedSharding
from shardlab.planner.strategies.dim_meaning import dim_meanings_of
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

_TENSOR = ("heads", "kv_heads", "qkv", "mlp", "vocab")
_LEAD = ("layers", "experts")  # axes that stack tensors, and are no axes of one
_VISION = re.compile(r"vision|visual|image", re.IGNORECASE)
_BIAS = re.compile(r"bias$|bias[./]value$")


class TensorSharder:
    """A tensor and what has been cut of it so far."""

    def __init__(
        self, group: TensorGroup, mesh: Mesh, known: Architecture | None, spec: Spec | None = None
    ) -> None:
        self.group = group
        self.mesh = mesh
        self.axes = dim_meanings_of(group)
        # An encoder of pictures has heads of its own, of which an architecture says nothing.
        self.architecture = None if _VISION.search(group.name) else known
        given = spec.axes[: len(group.shape)] if spec is not None else ()
        self.cuts: list[tuple[str, ...]] = [*given, *[()] * (len(group.shape) - len(given))]
        # what is left of each axis on one device
        self.left = [
            -(-size // self._n_parts(names))
            for size, names in zip(group.shape, self.cuts, strict=True)
        ]
        self.declined: list[SkippedSharding] = []

    @property
    def spec(self) -> Spec:
        """The spec of what has been cut, with no Nones at its end."""
        n = max((at + 1 for at, names in enumerate(self.cuts) if names), default=0)
        return Spec(*self.cuts[:n])

    def has(self, meaning: str) -> bool:
        return self.axes is not None and meaning in self.axes

    def cut(self, part: str, names: tuple[str, ...]) -> None:
        """Cut the first array axis that the part would take and that divides.

        Where no axis divides over all of the mesh axes, the last of these is given up, and so on.
        """
        used = {name for cut in self.cuts for name in cut}
        names = tuple(name for name in names if name not in used)
        wished = list(self._wished(part)) if names else []
        if not wished:
            return
        refused = self._declined(part, names, wished[0])
        for n in range(len(names), 0, -1):
            n_parts = self._n_parts(names[:n])
            found = (at for at in wished if self._divides(part, at, n_parts))
            if (at := next(found, None)) is not None:
                self.cuts[at] += names[:n]
                self.left[at] //= n_parts
                break
        else:
            n = 0
        if n < len(names):
            self.declined.append(refused)

    def _divides(self, part: str, at: int, n_parts: int) -> bool:
        return self.left[at] % n_parts == 0 and self._unit(part, at) % n_parts == 0

    def _unit(self, part: str, at: int) -> int:
        """Return what a part must not cut through: whole heads, where it is known how many."""
        known, axes = self.architecture, self.axes or ()
        if part != "tensor" or known is None or not axes or "head_dim" in axes:
            return self.group.shape[at]
        heads = {
            "heads": known.heads,
            "kv_heads": known.kv_heads,
            "qkv": gcd(known.heads, known.kv_heads),
        }
        return heads.get(axes[at] or "", 0) or self.group.shape[at]

    def _declined(self, part: str, names: tuple[str, ...], at: int) -> SkippedSharding:
        meaning = (self.axes[at] if self.axes else None) or ""
        n_parts, unit = self._n_parts(names), self._unit(part, at)
        is_unit = unit != self.group.shape[at] and unit % n_parts != 0
        size = unit if is_unit else self.left[at]
        named = "kv_heads" if meaning == "qkv" else meaning
        word = named if is_unit or not named.endswith("heads") else ""
        return SkippedSharding(
            part=part, mesh_axes=names, n_parts=n_parts, array_axis=at, size=size, meaning=word
        )

    def _n_parts(self, names: tuple[str, ...]) -> int:
        return prod(self.mesh.shape[name] for name in names)

    def _wished(self, part: str) -> Iterator[int]:
        """Yield the array axes that a part would take, the likeliest first."""
        if part == "expert":
            yield from self._with("experts")
        elif part == "pipeline":
            yield from self._with("layers")
        elif part == "tensor":
            yield from self._by_size() if self.axes is None else self._with(*_TENSOR)
        elif part == "fsdp":
            yield from self._for_fsdp()
        else:  # zero: the first that divides, best one that is whole
            axes = self.axes or (None,) * len(self.cuts)
            yield from sorted(
                range(len(axes)), key=lambda at: (axes[at] == "layers", bool(self.cuts[at]))
            )

    def _with(self, *meanings: str) -> Iterator[int]:
        return (at for at, meaning in enumerate(self.axes or ()) if meaning in meanings)

    def _by_size(self) -> list[int]:
        """Axes from the largest piece to the smallest, whole ones first, of equal ones the last."""
        if len(self.left) < 2:
            return []
        return sorted(
            range(len(self.left)), key=lambda at: (bool(self.cuts[at]), -self.left[at], -at)
        )

    def _for_fsdp(self) -> Iterator[int]:
        axes = self.axes or (None,) * len(self.left)
        core = [at for at in self._by_size() if axes[at] not in _LEAD]
        if len(core) < 2 or _BIAS.search(self.group.name):
            return
        yield from (at for at in core if axes[at] == "embed")
        yield from (at for at in core if axes[at] != "embed")
        yield from self._with("experts")
