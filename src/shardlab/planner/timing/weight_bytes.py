"""Weight memory in a search: bytes per device, grouped by how the weights are synchronized.

The same arithmetic as the rows of a plan (`device_arrays`), summed. A search over thousands of
meshes caches the counts by group and shard counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardlab.planner.memory.device_bytes import compute_copy_bytes, device_arrays
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.memory.gathered_weights import GatheredWeights, gather_weights
from shardlab.planner.memory.optimizer import Optimizer
from shardlab.planner.memory.step_memory import StepWeights
from shardlab.planner.plan import KINDS, Kind
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.tensor_group import TensorGroup
from shardlab.planner.timing.step_flops import is_expert
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts
from shardlab.sharding.spec import Spec

_BF16 = parse_dtype("bf16")


@dataclass(frozen=True, kw_only=True)
class WeightSync:
    """How weights are synchronized over the mesh axes whose devices see different tokens.

    `gathered` axes shard the parameter itself, `reduced` ones replicate it, and of those `zero`
    axes shard the optimizer states (and with `zero_gradients` the gradient).
    """

    gathered: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    zero_gradients: bool = False


@dataclass
class WeightBytes:
    """Bytes per device by kind, and of the gradient before ZeRO shards it."""

    by_kind: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    unsharded_gradient: int = 0
    compute_copies: int = 0  # see `StepWeights`

    def accumulate(self, addition: WeightBytes) -> None:
        for kind, n_bytes in addition.by_kind.items():
            self.by_kind[kind] += n_bytes
        self.unsharded_gradient += addition.unsharded_gradient
        self.compute_copies += addition.compute_copies


@dataclass(kw_only=True)
class WeightCounter:
    """Counts the bytes of sharded tensors, with a cache."""

    optimizer: Optimizer
    policy: DtypePolicy
    dtype: Dtype = _BF16  # in which weights are multiplied
    _cache: dict[object, tuple[TensorGroup, WeightBytes]] = field(default_factory=dict)
    # of the placement that was counted last
    _gathered: tuple[Sequence[ShardedGroup], GatheredWeights] | None = None

    def count_bytes(
        self, sharded_groups: Sequence[ShardedGroup], mesh: Mesh, zero: int = 2
    ) -> dict[WeightSync, WeightBytes]:
        """Return the bytes per device, by how the tensors are synchronized.

        Tensors placed for ZeRO stage 2 are counted for a lower stage by leaving out what it does
        not shard: gradients below stage 2, the optimizer states below stage 1.
        """
        token_axes = _token_axes(mesh)
        expert_axes = mesh_axis_roles(mesh).get("expert", ())
        counts_by_spec: dict[Spec | None, tuple[int, ...]] = {None: ()}
        totals: dict[WeightSync, WeightBytes] = {}
        for sharded in sharded_groups:
            specs = (
                sharded.spec,
                sharded.gradient_spec if zero > 1 else None,
                sharded.state_spec if zero else None,
            )
            for spec in specs:
                if spec not in counts_by_spec:
                    counts_by_spec[spec] = shard_counts(spec, mesh)
            # Shard counts, not specs: meshes that divide alike share an entry.
            sync = _weight_sync(sharded.group, specs, token_axes, expert_axes)
            key = (id(sharded.group), *(counts_by_spec[spec] for spec in specs))
            if key not in self._cache:
                stage = replace(sharded, gradient_spec=specs[1], state_spec=specs[2])
                # Cached together with the group: while it is alive, no other has its id.
                self._cache[key] = sharded.group, self._count_group(stage, mesh)
            totals.setdefault(sync, WeightBytes()).accumulate(self._cache[key][1])
        return totals

    def step_weights(
        self,
        sharded_groups: Sequence[ShardedGroup],
        mesh: Mesh,
        counted: Mapping[WeightSync, WeightBytes],
    ) -> StepWeights:
        """Return the sums of `count_bytes`, with the weights that a step gathers."""
        # The gathered weights are equal for each ZeRO stage below 3.
        if self._gathered is None or self._gathered[0] is not sharded_groups:
            gathered = gather_weights(sharded_groups, mesh, self.policy, self.dtype)
            self._gathered = sharded_groups, gathered
        sums = {kind: sum(group.by_kind[kind] for group in counted.values()) for kind in KINDS}
        return StepWeights(
            parameters=sums["parameters"],
            gradients=sums["gradients"],
            optimizer=sums["optimizer"],
            compute_copies=sum(group.compute_copies for group in counted.values()),
            gathered=self._gathered[1],
        )

    def _count_group(self, sharded: ShardedGroup, mesh: Mesh) -> WeightBytes:
        weights = WeightBytes()
        arrays = tuple(device_arrays(sharded, mesh, self.optimizer, self.policy))
        for array in arrays:
            weights.by_kind[array.kind] += array.bytes_per_device
        weights.compute_copies = compute_copy_bytes(arrays, self.dtype)
        weights.unsharded_gradient = weights.by_kind["gradients"]
        # A gradient has its parameter's spec before ZeRO reduce-scatters it: the size of that
        # collective.
        if sharded.gradient_spec is not None:
            like_parameter = ShardedGroup(group=sharded.group, spec=sharded.spec, rule=sharded.rule)
            weights.unsharded_gradient = sum(
                array.bytes_per_device
                for array in device_arrays(like_parameter, mesh, self.optimizer, self.policy)
                if array.kind == "gradients"
            )
        return weights


def _token_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the axes whose devices see different tokens: of the batch and the sequence."""
    names = {*batch_axes(mesh), *mesh_axis_roles(mesh).get("sequence", ())}
    return tuple(name for name in mesh.axis_names if name in names and mesh.shape[name] > 1)


def _weight_sync(
    group: TensorGroup,
    specs: tuple[Spec, Spec | None, Spec | None],
    token_axes: tuple[str, ...],
    expert_axes: tuple[str, ...],
) -> WeightSync:
    parameter, gradient, state = specs
    sharding_axes = parameter.mesh_axes
    reduced = tuple(name for name in token_axes if name not in sharding_axes)
    state_axes = state.mesh_axes if state is not None else ()
    # The tokens of an expert are sent to its device: over that axis there is nothing to gather.
    own_axes = expert_axes if expert_axes and is_expert(group) else ()
    return WeightSync(
        gathered=tuple(
            name for name in token_axes if name in sharding_axes and name not in own_axes
        ),
        reduced=reduced,
        zero=tuple(name for name in reduced if name in state_axes),
        zero_gradients=gradient is not None,
    )
