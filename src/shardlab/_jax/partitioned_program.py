"""What Shardy's passes make of a program: its collectives, local operations and memory, as records.

Plain data, so that whoever judges a candidate needs neither JAX nor MLIR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"
]
DimAxes = tuple[tuple[str, ...], ...]  # the mesh axes of each dimension, major axis first


@dataclass(frozen=True, kw_only=True)
class InsertedCall:
    """A collective that the partitioner inserts; bytes are those of one device and one execution.

    `group_size` is smaller than the product of the axis sizes if an axis is used only in part.
    `count` is how often a step executes it: trip counts of the loops around it, multiplied.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    group_size: int
    operand_bytes: int
    result_bytes: int
    dtype: str
    shape: tuple[int, ...]  # of the full array
    source: str  # file:line of the user's program; empty if unknown
    name_stack: str  # JAX's, such as jit(step)/transpose(jvp())/dot_general
    count: int
    operand_shape: tuple[int, ...] = ()  # on one device
    result_shape: tuple[int, ...] = ()

    @property
    def is_backward(self) -> bool:
        return "transpose(" in self.name_stack


@dataclass(frozen=True, kw_only=True)
class LocalProduct:
    """A matrix product or convolution with the shapes of one device."""

    batch: int
    rows: int
    inner: int
    columns: int
    dtype: str
    n_bytes: int  # operands and result
    source: str
    count: int

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.inner * self.columns


@dataclass(frozen=True, kw_only=True)
class MemoryPass:
    """Bytes of one device that operations other than products read and write in a step."""

    source: str
    operation: str
    n_bytes: float


@dataclass(frozen=True, kw_only=True)
class PartitionedProgram:
    """One candidate: the program as it would run on each device.

    `peak_bytes` is what is alive at once beside the arguments, in program order: activations,
    temporaries and results, except results that reuse the memory of a donated argument.
    """

    collectives: tuple[InsertedCall, ...]
    products: tuple[LocalProduct, ...]
    memory_passes: tuple[MemoryPass, ...]
    argument_axes: tuple[DimAxes, ...]
    result_axes: tuple[DimAxes | None, ...]  # None: an axis is used only in part
    argument_bytes: int
    result_bytes: int
    peak_bytes: int
    has_unknown_trip_count: bool = False  # of a loop that counts as one execution
