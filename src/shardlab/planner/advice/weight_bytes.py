"""Weights: the bytes that a device holds of a model's tensors, and what must be exchanged of them.

The same arithmetic as the plan's rows (`held_by`), summed: a search over thousands of meshes keeps
what it has counted, by family and by the parts that its axes are cut in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardlab.planner.advice.step_flops import is_expert
from shardlab.planner.memory.device_bytes import held_by
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.memory.gathered_weights import gathered_bytes
from shardlab.planner.plan import KINDS, Kind
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts
from shardlab.sharding.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Sync:
    """How tensors alike must be kept the same over the mesh axes that cut the batch.

    `gathered` axes cut the parameter itself, `reduced` ones hold copies of it, and of those `zero`
    cut the optimizer's arrays (and with `zero_gradients` the gradient).
    """

    gathered: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    zero_gradients: bool = False


@dataclass
class Weight:
    """Bytes on one device of tensors alike: by kind, and of the gradient before ZeRO cuts it."""

    by_kind: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    whole_gradient: int = 0

    def add(self, other: Weight) -> None:
        for kind, n_bytes in other.by_kind.items():
            self.by_kind[kind] += n_bytes
        self.whole_gradient += other.whole_gradient


@dataclass(kw_only=True)
class Scales:
    """Weighs placed tensors, and remembers."""

    optimizer: str
    policy: DtypePolicy
    gathers: bool = False  # count the weights gathered for one layer, as plans of a workload do
    _seen: dict[object, tuple[TensorGroup, Weight]] = field(default_factory=dict)
    _gathered: tuple[Sequence[ShardedGroup], int] | None = None  # of the placement weighed last

    def weigh(
        self, placed: Sequence[ShardedGroup], mesh: Mesh, zero: int = 2
    ) -> dict[Sync, Weight]:
        """Return the bytes on one device, apart for tensors that are exchanged in other ways.

        Tensors placed for ZeRO stage 2 are weighed for a lower stage by leaving out what it leaves
        whole: gradients below stage 2, the optimizer's arrays below stage 1.
        """
        batch = _batch_axes(mesh)
        experts = mesh_axis_roles(mesh).get("expert", ())
        cuts: dict[Spec | None, tuple[int, ...]] = {None: ()}
        found: dict[Sync, Weight] = {}
        for each in placed:
            specs = (
                each.spec,
                each.gradient_spec if zero > 1 else None,
                each.state_spec if zero else None,
            )
            for spec in specs:
                if spec not in cuts:
                    cuts[spec] = shard_counts(spec, mesh)
            sync = _sync(each.group, specs, batch, experts)
            key = (id(each.group), *(cuts[spec] for spec in specs))
            if key not in self._seen:
                stage = replace(each, gradient_spec=specs[1], state_spec=specs[2])
                # with the family itself: as long as it is here, nothing else has its id
                self._seen[key] = each.group, self._count(stage, mesh)
            found.setdefault(sync, Weight()).add(self._seen[key][1])
        if self.gathers and found:
            one = next(iter(found.values()))
            one.by_kind["activations"] += self._gathered_of(placed, mesh)
        return found

    def _gathered_of(self, placed: Sequence[ShardedGroup], mesh: Mesh) -> int:
        """Return what is gathered at one time, which is the same for every ZeRO stage below 3."""
        if self._gathered is None or self._gathered[0] is not placed:
            self._gathered = placed, gathered_bytes(placed, mesh, self.policy)
        return self._gathered[1]

    def _count(self, placed: ShardedGroup, mesh: Mesh) -> Weight:
        held = Weight()
        for each in held_by(placed, mesh, self.optimizer, self.policy):
            held.by_kind[each.kind] += each.bytes_per_device
        held.whole_gradient = held.by_kind["gradients"]
        if placed.gradient_spec is not None:
            as_parameter = ShardedGroup(group=placed.group, spec=placed.spec, rule=placed.rule)
            held.whole_gradient = sum(
                each.bytes_per_device
                for each in held_by(as_parameter, mesh, self.optimizer, self.policy)
                if each.kind == "gradients"
            )
        return held


def _batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes over which devices see other tokens: the batch's, and the sequence's."""
    names = {*batch_axes(mesh), *mesh_axis_roles(mesh).get("sequence", ())}
    return tuple(name for name in mesh.axis_names if name in names and mesh.shape[name] > 1)


def _sync(
    group: TensorGroup,
    specs: tuple[Spec, Spec | None, Spec | None],
    batch: tuple[str, ...],
    experts: tuple[str, ...],
) -> Sync:
    """An expert's tokens come to the device that has it: over that axis there is nothing to sum."""
    parameter, gradient, state = specs
    cut = parameter.mesh_axes
    reduced = tuple(name for name in batch if name not in cut)
    states = state.mesh_axes if state is not None else ()
    at_home = experts if experts and is_expert(group) else ()
    return Sync(
        gathered=tuple(name for name in batch if name in cut and name not in at_home),
        reduced=reduced,
        zero=tuple(name for name in reduced if name in states),
        zero_gradients=gradient is not None,
    )
