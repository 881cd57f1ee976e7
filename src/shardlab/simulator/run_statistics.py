"""What a simulated run has used, for the summary line at its end."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from shardlab import _jax
from shardlab.sharding.mesh import folded_mesh_text


class RunStatistics:
    """The meshes and shard_maps since `clear`, and the outputs whose replicas differed."""

    def __init__(self) -> None:
        self._meshes: dict[tuple[tuple[str, int], ...], None] = {}
        self.n_shard_maps = 0
        self._differing: set[tuple[Hashable, str]] = set()
        # Shard_maps already warned about in the run of a script; None outside of one.
        self._warned: set[Hashable] | None = None

    def clear(self, *, warn_once: bool = False) -> None:
        """Forget everything. With `warn_once` a shard_map is warned about once until the next call.

        A script may trace the same step many times, and a few more outputs may differ in a later
        step: a counter, or a moment that started at zero. A person needs the warning once.
        """
        self._meshes.clear()
        self.n_shard_maps = 0
        self._differing.clear()
        self._warned = set() if warn_once else None

    @property
    def n_differing(self) -> int:
        """Return the number of outputs whose replicas differed in some call."""
        return len(self._differing)

    def add_difference(self, shard_map: Hashable, outputs: Iterable[str]) -> bool:
        """Add the outputs of a shard_map whose replicas differ; return whether to warn."""
        self._differing.update((shard_map, name) for name in outputs)
        if self._warned is None:
            return True
        is_new = shard_map not in self._warned
        self._warned.add(shard_map)
        return is_new

    def add_sharding(self, sharding: Any) -> None:
        mesh = getattr(sharding, "mesh", None)
        if mesh is not None and not mesh.empty:
            self._meshes[tuple(mesh.shape.items())] = None

    def add_program(self, jaxpr: Any) -> None:
        """Count the shard_maps of a program, at any depth."""
        inner, _ = _jax.open_jaxpr(jaxpr)
        for eqn in inner.eqns:
            if eqn.primitive.name == "shard_map":
                self.n_shard_maps += 1
                self._meshes[tuple(eqn.params["mesh"].shape.items())] = None
            for body in _jax.inner_jaxprs(eqn.params):
                self.add_program(body)

    @property
    def meshes(self) -> list[str]:
        """Return each mesh as text, in the order of first use."""
        return [folded_mesh_text(mesh) for mesh in self._meshes]


# One for the process: simulated mode is process-wide too.
RUN_STATISTICS = RunStatistics()
