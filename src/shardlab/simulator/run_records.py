"""What a program computed on one mesh, as it was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True, kw_only=True)
class ReplicaValues:
    """One output of a shard_map on every device that should hold the same of it.

    `values` has one leading axis for each of `mesh_axes`, then the axes of the whole output; with
    no `mesh_axes` it is the output itself.
    """

    number: int
    of: int
    body: str
    source: SourceLocation
    mesh_axes: tuple[str, ...]
    values: Any  # a NumPy array

    @property
    def key(self) -> tuple[SourceLocation, str, int]:
        """Return what tells this output from others, on any mesh."""
        return self.source, self.body, self.number


@dataclass(frozen=True, kw_only=True)
class OutputLineage:
    """What went into one output of a program, read from the program itself.

    `random` holds how its random numbers were drawn: "same" where every device has the same key,
    "by_device" where the keys differ. `eps` is the rounding of its least precise float type.
    """

    has_arguments: bool = True
    is_gradient: bool = False
    random: frozenset[str] = frozenset()
    sums_ratios: tuple[
        SourceLocation, ...
    ] = ()  # psums of quotients whose denominators differ by device
    sums: tuple[
        tuple[SourceLocation, tuple[str, ...]], ...
    ] = ()  # every sum and mean, with its mesh axes
    eps: float = 0.0
    has_collectives: bool = True  # on the way to it, of any kind
    checks_vma: bool = False  # a shard_map on the way has check_vma=True
    divided_by: tuple[
        int, ...
    ] = ()  # numbers written in the program that divide a sum over devices


@dataclass(frozen=True, kw_only=True)
class OutputLeaf:
    """One array of an output or a gradient, and how far rounding alone can move it."""

    value: Any  # a NumPy array
    dtype: str
    noise: Any = 0.0  # change when arguments change by a rounding; a number or an array
    lineage: OutputLineage = field(default_factory=OutputLineage)


@dataclass(frozen=True, kw_only=True)
class RunFailure:
    """Why a program did not run, in the words that were said."""

    kind: str  # deadlock, indivisible, refused, not_simulated
    words: str
    where: str = ""
    fix: str = ""
    code: str = ""  # of our own error, where it was one
    location: SourceLocation | None = None  # of the operation that failed, where it is known


@dataclass(frozen=True, kw_only=True)
class MeshRun:
    """The outputs and gradients of a program on one mesh, by path."""

    mesh: MeshSizes
    outputs: Mapping[str, OutputLeaf] = field(default_factory=dict)
    gradients: Mapping[str, OutputLeaf] = field(default_factory=dict)
    copies: tuple[ReplicaValues, ...] = ()
    failure: RunFailure | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def mesh_text(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.mesh)

    @property
    def n_devices(self) -> int:
        n = 1
        for _, size in self.mesh:
            n *= size
        return n


@dataclass(frozen=True, kw_only=True)
class MeshRuns:
    """One program on one device, and on other meshes."""

    one: MeshRun
    many: tuple[MeshRun, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)  # NumPy arrays by path
    source: SourceLocation = UNKNOWN_LOCATION  # of the program
    notes: tuple[str, ...] = ()
    # Why it does not run on one device, where `one` is the smallest mesh that it does run on.
    not_one: RunFailure | None = None

    @property
    def reference(self) -> str:
        """Return where that ran with which all else is compared: `one device`, or a mesh."""
        return self.one.mesh_text if self.not_one else "one device"

    @property
    def compared_on(self) -> tuple[str, ...]:
        """Return the meshes, as text, whose results there are to compare with one device's."""
        if self.one.failure:
            return ()
        return tuple(run.mesh_text for run in self.many if not run.failure)
