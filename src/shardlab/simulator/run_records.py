"""Records of what a program computed on one mesh and on several. Loads no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.sharding.mesh import MeshSizes, mesh_text


@dataclass(frozen=True, kw_only=True)
class ReplicaValues:
    """One output of a shard_map on every device over which it is declared replicated.

    `values` has one leading dimension for each of `mesh_axes`, then the dimensions of the global
    output; without `mesh_axes` it is the output itself.
    """

    output_index: int
    n_outputs: int
    body: str
    source: SourceLocation
    mesh_axes: tuple[str, ...]
    values: Any  # a NumPy array

    @property
    def key(self) -> tuple[SourceLocation, str, int]:
        """Return what identifies this output on any mesh."""
        return self.source, self.body, self.output_index


@dataclass(frozen=True)
class CollectiveSite:
    """A collective of the program: what it is called, over which mesh axes, and where."""

    op: str
    mesh_axes: tuple[str, ...]
    source: SourceLocation


@dataclass(frozen=True, kw_only=True)
class OutputLineage:
    """What contributes to one output of a program, inferred from the program itself.

    `random` says how its random numbers were drawn: "same" if every device has the same key,
    "by_device" if the keys differ. `eps` is the machine epsilon of its least precise float type.
    """

    has_arguments: bool = True
    is_gradient: bool = False
    random: frozenset[str] = frozenset()
    # psums of quotients whose denominators differ between devices
    sums_ratios: tuple[SourceLocation, ...] = ()
    # every sum and mean, with its mesh axes
    sums: tuple[tuple[SourceLocation, tuple[str, ...]], ...] = ()
    eps: float = 0.0
    has_collectives: bool = True  # of any kind, on the path to this output
    collectives: tuple[CollectiveSite, ...] = ()  # those, from the output back
    has_device_index: bool = False  # lax.axis_index is on the path
    # Mesh axes over which a value that differs by device meets random numbers that do not.
    repeats_random: tuple[str, ...] = ()
    checks_vma: bool = False  # a shard_map on the path has check_vma=True
    # literal numbers of the program that divide a sum over devices
    divided_by: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OutputLeaf:
    """One array of an output or a gradient, and how far rounding alone can change it."""

    value: Any  # a NumPy array
    dtype: str
    noise: Any = 0.0  # change if arguments change by a rounding error; a number or an array
    # largest change if the random keys among the arguments change; 0 if there are none
    draw_change: float = 0.0
    lineage: OutputLineage = field(default_factory=OutputLineage)


@dataclass(frozen=True, kw_only=True)
class RunFailure:
    """Why a program did not run, with the message of the exception."""

    kind: str  # deadlock, indivisible, rejected, not_simulated, partly_used
    message: str
    where: str = ""
    fix: str = ""
    code: str = ""  # of a LabError
    location: SourceLocation | None = None  # of the operation that failed, if known


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
        return mesh_text(self.mesh)

    @property
    def n_devices(self) -> int:
        return prod(size for _, size in self.mesh)

    @property
    def is_deadlock(self) -> bool:
        return self.failure is not None and self.failure.kind == "deadlock"


@dataclass(frozen=True, kw_only=True)
class MeshRuns:
    """One program on one device, and on other meshes."""

    one: MeshRun
    many: tuple[MeshRun, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)  # NumPy arrays by path
    source: SourceLocation = UNKNOWN_LOCATION  # of the program
    notes: tuple[str, ...] = ()
    # Why it does not run on one device; `one` is then the smallest mesh on which it does.
    one_device_failure: RunFailure | None = None
    # The user's own function is the reference: `one` has its outputs.
    has_reference_function: bool = False

    @property
    def reference(self) -> str:
        """Return what all other runs are compared with: a mesh, or the user's reference."""
        if self.has_reference_function:
            return "the reference"
        return self.one.mesh_text if self.one_device_failure else "one device"

    @property
    def reference_phrase(self) -> str:
        """Return whose result the reference is: `on one device`, or `of the reference`."""
        return f"{'of' if self.has_reference_function else 'on'} {self.reference}"

    @property
    def compared_on(self) -> tuple[str, ...]:
        """Return the meshes, as text, whose results can be compared with the reference."""
        if self.one.failure:
            return ()
        return tuple(run.mesh_text for run in self.many if not run.failure)
