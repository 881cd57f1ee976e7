"""What is to be proven: a program, a mesh, specs, and what is claimed about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardlab._jax.partitioned_program import DimAxes, InsertedCall
from shardlab.autoshard.answer import ConstraintSpec
from shardlab.autoshard.proof.flat_program import FlatProgram
from shardlab.sharding.mesh import MeshSizes
from shardlab.sharding.spec import Spec

_LIMIT_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """What is claimed besides the specs, and how long each proof may take."""

    # Those that Shardy inserts; None: the proof asks Shardy itself.
    collectives: tuple[InsertedCall, ...] | None = None
    # index of a result -> index of the argument that it replaces in the next step: it has the same
    # sharding and, as that argument is donated, the same memory
    state: Mapping[int, int] = dataclasses.field(default_factory=dict)
    # `with_sharding_constraint`s that belong to the shardings
    constraints: tuple[ConstraintSpec, ...] = ()
    memory_limit: int | None = None  # bytes per device
    topology: str | None = None  # "v5p:4x4x4": also ask the TPU compiler, with shardlab[tpu]
    compile_limit_s: float = _LIMIT_S
    run_limit_s: float = _LIMIT_S
    on_progress: Callable[[str], None] = lambda step: None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProofRequest:
    """The parsed arguments of `prove`."""

    f: Callable[..., Any]
    args: Sequence[Any]
    program: FlatProgram
    mesh: MeshSizes
    specs: tuple[Spec, ...]
    shard_bytes: tuple[int, ...]  # of each argument on one device, by the arithmetic of `layout`
    options: ProofOptions

    @property
    def planned_bytes(self) -> int:
        return sum(self.shard_bytes)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.mesh)

    @property
    def argument_axes(self) -> list[DimAxes]:
        pairs = zip(self.specs, self.program.avals, strict=True)
        return [spec_axes(spec, len(aval.shape)) for spec, aval in pairs]


def spec_axes(spec: Spec, rank: int) -> DimAxes:
    """Return the mesh axes of every dimension, also of those that the spec leaves out.

    >>> spec_axes(Spec("data"), 2)
    (('data',), ())
    """
    return (*spec.axes, *((),) * (rank - len(spec.axes)))
