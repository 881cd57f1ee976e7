"""Sharding of one tensor: which dimension each part of a strategy shards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd, prod

from shardlab.planner.model import Architecture
from shardlab.planner.plan import SkippedSharding
from shardlab.planner.strategies.dim_meaning import dim_meanings_of
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

_TENSOR_PARALLEL = ("heads", "kv_heads", "qkv", "mlp", "vocab")
_STACKED = ("layers", "experts")  # dimensions that stack tensors
_VISION = re.compile(r"vision|visual|image", re.IGNORECASE)
_BIAS = re.compile(r"bias$|bias[./]value$")


class TensorSharder:
    """A tensor and the mesh axes assigned to its dimensions so far."""

    def __init__(
        self,
        group: TensorGroup,
        mesh: Mesh,
        architecture: Architecture | None,
        spec: Spec | None = None,
    ) -> None:
        self.group = group
        self.mesh = mesh
        self.meanings = dim_meanings_of(group)
        # A vision encoder has heads of its own, which the architecture does not describe.
        self.architecture = None if _VISION.search(group.name) else architecture
        entries = spec.axes[: len(group.shape)] if spec is not None else ()
        self.mesh_axes: list[tuple[str, ...]] = [
            *entries,
            *[()] * (len(group.shape) - len(entries)),
        ]
        self.shard_shape = [
            -(-size // self._n_shards(names))
            for size, names in zip(group.shape, self.mesh_axes, strict=True)
        ]
        self.skipped: list[SkippedSharding] = []

    @property
    def spec(self) -> Spec:
        """The spec so far, without trailing Nones."""
        n_dims = max((dim + 1 for dim, names in enumerate(self.mesh_axes) if names), default=0)
        return Spec(*self.mesh_axes[:n_dims])

    def has_meaning(self, meaning: str) -> bool:
        """Return whether one of the dimensions has this meaning."""
        return self.meanings is not None and meaning in self.meanings

    def shard_for_part(self, part: str, names: tuple[str, ...], *, pads: bool = False) -> None:
        """Shard the first dimension that this part of a strategy prefers and that is divisible.

        If no dimension is divisible by the product of all mesh axes, drop the last axis and retry;
        with `pads` the largest shard is divided, and its last part is padded.
        """
        used = {name for axes in self.mesh_axes for name in axes}
        names = tuple(name for name in names if name not in used)
        candidates = list(self._candidate_dims(part)) if names else []
        if not candidates:
            return
        # Describe the preferred dimension before anything is assigned: this is what was skipped.
        skipped = self._describe_skipped(part, names, candidates[0])
        n_assigned = 0
        if pads and not any(
            self._is_divisible(part, dim, self._n_shards(names)) for dim in candidates
        ):
            largest = max(candidates, key=lambda dim: self.shard_shape[dim])
            self._assign(largest, names)
            return
        for n_axes in range(len(names), 0, -1):
            n_shards = self._n_shards(names[:n_axes])
            divisible = (dim for dim in candidates if self._is_divisible(part, dim, n_shards))
            if (dim := next(divisible, None)) is not None:
                self._assign(dim, names[:n_axes])
                n_assigned = n_axes
                break
        if n_assigned < len(names):
            self.skipped.append(skipped)

    def _assign(self, dim: int, names: tuple[str, ...]) -> None:
        self.mesh_axes[dim] += names
        self.shard_shape[dim] = -(-self.shard_shape[dim] // self._n_shards(names))

    def _is_divisible(self, part: str, dim: int, n_shards: int) -> bool:
        if part == "pipeline":
            # Stages are programs of their own, so their numbers of layers may differ (126 over
            # 16), and the few dense layers of a mixture need not be on every stage.
            n_layers = self.architecture.layers if self.architecture else self.shard_shape[dim]
            return n_shards <= n_layers
        return self.shard_shape[dim] % n_shards == 0 and self._n_units(part, dim) % n_shards == 0

    def _n_units(self, part: str, dim: int) -> int:
        """Return the number of units that must stay on one device: heads, if their number is known.

        Tensor parallelism must not split a head, because attention is computed per head. With
        fused qkv weights each shard needs whole query heads and whole kv heads.
        """
        architecture, meanings = self.architecture, self.meanings or ()
        if part != "tensor" or architecture is None or not meanings or "head_dim" in meanings:
            return self.group.shape[dim]
        n_heads = {
            "heads": architecture.heads,
            "kv_heads": architecture.kv_heads,
            "qkv": gcd(architecture.heads, architecture.kv_heads),
        }
        return n_heads.get(meanings[dim] or "", 0) or self.group.shape[dim]

    def _describe_skipped(self, part: str, names: tuple[str, ...], dim: int) -> SkippedSharding:
        meaning = (self.meanings[dim] if self.meanings else None) or ""
        n_shards, n_units = self._n_shards(names), self._n_units(part, dim)
        is_head_limit = n_units != self.group.shape[dim] and n_units % n_shards != 0
        unit_name = "kv_heads" if meaning == "qkv" else meaning
        return SkippedSharding(
            part=part,
            mesh_axes=names,
            n_shards=n_shards,
            dim=dim,
            size=n_units if is_head_limit else self.shard_shape[dim],
            # The size of a heads dimension is heads × head_dim; it is no number of heads.
            meaning=unit_name if is_head_limit or not unit_name.endswith("heads") else "",
        )

    def _n_shards(self, names: tuple[str, ...]) -> int:
        return prod(self.mesh.shape[name] for name in names)

    def _candidate_dims(self, part: str) -> Iterator[int]:
        """Yield the dimensions that a part may shard, the preferred first."""
        if part in ("expert", "wide-expert"):
            yield from self._dims_with("experts")
        elif part == "pipeline":
            yield from self._dims_with("layers")
        elif part == "tensor":
            if self.meanings is None:
                yield from self._dims_by_size()
            else:
                yield from self._dims_with(*_TENSOR_PARALLEL)
        elif part == "fsdp":
            yield from self._fsdp_dims()
        else:  # zero: the first divisible dimension, unsharded ones first, layers last
            meanings = self.meanings or (None,) * len(self.mesh_axes)
            yield from sorted(
                range(len(meanings)),
                key=lambda dim: (meanings[dim] == "layers", bool(self.mesh_axes[dim])),
            )

    def _dims_with(self, *meanings: str) -> Iterator[int]:
        return (dim for dim, meaning in enumerate(self.meanings or ()) if meaning in meanings)

    def _dims_by_size(self) -> list[int]:
        """Return unsharded dimensions first, then by shard size; of equal sizes the last first."""
        if len(self.shard_shape) < 2:
            return []
        return sorted(
            range(len(self.shard_shape)),
            key=lambda dim: (bool(self.mesh_axes[dim]), -self.shard_shape[dim], -dim),
        )

    def _fsdp_dims(self) -> Iterator[int]:
        meanings = self.meanings or (None,) * len(self.shard_shape)
        matrix_dims = [dim for dim in self._dims_by_size() if meanings[dim] not in _STACKED]
        # Vectors stay replicated: gathering a norm scale costs a collective and saves kilobytes.
        if len(matrix_dims) < 2 or _BIAS.search(self.group.name):
            return
        yield from (dim for dim in matrix_dims if meanings[dim] == "embed")
        yield from (dim for dim in matrix_dims if meanings[dim] != "embed")
        yield from self._dims_with("experts")
