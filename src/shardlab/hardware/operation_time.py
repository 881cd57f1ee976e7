"""The time of an operation on one device: a matrix product, an attention kernel, a memory pass.

>>> from shardlab.hardware.chips import parse_hardware
>>> timer = OperationTimer(hardware=parse_hardware("tpu-v5p"))
>>> wide, narrow = (matmul("mlp", 8192, 4096, width) for width in (14336, 128))
>>> timer.time(wide).bound, timer.time(narrow).bound
('compute', 'memory')

Every operation has its own roofline: the longer of its FLOPs at the rate that programs reach and
its bytes at the bandwidth that they reach, plus the time to start it. A matrix product whose local
width is small is therefore slow without a rule of its own, because it reads its other operand for
few FLOPs; and one that does not fill the tiles of the matrix unit computes the padding too.

Which fraction of the peak programs reach is calibrated on published runs (chips.toml,
docs/planner-accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, Literal

from shardlab.hardware.chips import Figure, Hardware
from shardlab.hardware.collective_time import flops_figure
from shardlab.hardware.frameworks import Framework

OperationKind = Literal["matmul", "attention", "memory"]
_RATES = {"matmul": "matmul_efficiency", "attention": "attention_efficiency"}
# Kernels with the instructions of the third generation of tensor cores (mma.sync) reach this share
# of the fourth's peak: Luo et al. 2024, arXiv 2402.13499, section 4.
_OLD_INSTRUCTIONS = 0.63
_USUAL_HEAD = 128  # attention efficiencies are those of heads of this width


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Equal operations of one device; FLOPs and bytes are those of one execution.

    `dims` are the rows, the contracted dimension and the columns of a matrix product.
    """

    name: str
    kind: OperationKind
    flops: float = 0.0
    n_bytes: float = 0.0
    dims: tuple[float, ...] = ()
    dtype: str = "bf16"
    head_dim: float = 0.0  # of an attention kernel
    count: float = 1.0  # executions
    # of one of many products with the weights of different experts: its rows; 0 for others
    group_rows: float = 0.0


def matmul(
    name: str,
    rows: float,
    inner: float,
    columns: float,
    *,
    count: float = 1.0,
    dtype: str = "bf16",
    weight_bits: int = 16,
    group_rows: float = 0.0,
) -> Operation:
    """Return a product [rows, inner] x [inner, columns] of 16-bit activations with weights."""
    return Operation(
        name=name,
        kind="matmul",
        flops=2.0 * rows * inner * columns,
        n_bytes=2.0 * rows * (inner + columns) + inner * columns * weight_bits / 8,
        dims=(rows, inner, columns),
        dtype=dtype,
        count=count,
        group_rows=group_rows,
    )


def memory_pass(name: str, n_bytes: float, *, count: float = 1.0) -> Operation:
    """Return an operation that is bound by memory: norms, activation functions, updates."""
    return Operation(name=name, kind="memory", n_bytes=n_bytes, count=count)


@dataclass(frozen=True, kw_only=True)
class OperationTime:
    """The time of equal operations: `seconds` is that of one."""

    name: str
    count: float
    seconds: float
    flops: float
    bound: Literal["compute", "memory"]

    @property
    def total_seconds(self) -> float:
        return self.seconds * self.count

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OperationTime:
        return cls(**data)


@dataclass(kw_only=True)
class OperationTimer:
    """Times operations on one device; `used` collects the figures it needed.

    `compute_efficiency` replaces the calibrated fractions of the peak FLOP/s, if it is set.
    """

    hardware: Hardware
    compute_efficiency: float | None = None
    framework: Framework | None = None
    used: dict[str, Figure] = field(default_factory=dict)
    # what `_kind_flops` returned: a search times hundreds of thousands of operations
    _flops_by_kind: dict[tuple[object, ...], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def time(self, operation: Operation) -> OperationTime:
        """Return the time of an operation by its roofline."""
        compute = 0.0
        if operation.flops:
            compute = operation.flops / self._reached_flops(operation)
        memory = operation.n_bytes / self.memory_bandwidth if operation.n_bytes else 0.0
        if operation.kind == "memory" and self.framework is not None:
            memory *= self.framework.passes
        return OperationTime(
            name=operation.name,
            count=operation.count,
            seconds=max(compute, memory) + self._start_seconds,
            flops=operation.flops,
            bound="compute" if compute >= memory else "memory",
        )

    @cached_property
    def memory_bandwidth(self) -> float:
        """The bandwidth of the device's memory that programs reach."""
        bandwidth = self.figure("hbm_bandwidth", needed_for="needed for memory traffic")
        return bandwidth * self.figure("memory_efficiency", default=1.0)

    def peak_flops(self, dtype: str = "bf16") -> float:
        """Return the peak FLOP/s for a dtype; bf16's if there is no figure for it.

        TF32, in which NVIDIA GPUs compute products of float32 by default, has half the rate of
        bf16 on all generations that have it.
        """
        if dtype == "tf32":
            return self.peak_flops() / 2
        name = flops_figure(dtype)
        if name not in self.hardware.figures:
            name = "bf16_flops"
        return self.figure(name, needed_for=f"needed for FLOPs in {dtype}")

    def figure(self, name: str, *, default: float | None = None, needed_for: str = "") -> float:
        """Return a figure of the hardware; without a default a missing one is an error."""
        if default is not None and name not in self.hardware.figures:
            return default
        figure = self.hardware.figure(name, needed_for=needed_for)
        self.used[name] = figure
        return figure.value

    @cached_property
    def _start_seconds(self) -> float:
        return self.figure("operation_overhead", default=0.0)

    def _reached_flops(self, operation: Operation) -> float:
        rows = operation.group_rows
        key = operation.kind, operation.dtype, operation.head_dim, rows > 0
        if (reached := self._flops_by_kind.get(key)) is None:
            reached = self._flops_by_kind[key] = self._kind_flops(operation)
        if self.compute_efficiency is not None:
            return reached
        if rows:
            # Groups begin anywhere in a tile, which is computed for both of its groups.
            tile = 0 if self.framework is None else self.framework.expert_tile
            reached *= rows / (rows + tile)
        # Narrow operands are padded to the tiles of the matrix unit.
        tile_size = self.hardware.matmul_tile
        for size in operation.dims:
            reached *= size / (ceil(size / tile_size) * tile_size)
        return reached

    def _kind_flops(self, operation: Operation) -> float:
        """Return the FLOP/s that an operation of its kind and dtype reaches, whatever its sizes."""
        peak = self.peak_flops(operation.dtype)
        if self.compute_efficiency is not None:
            return peak * self.compute_efficiency
        reached = peak * self.figure(_RATES[operation.kind], default=1.0)
        if operation.kind == "attention":
            reached *= self._attention_factor(operation.head_dim)
        elif self.framework is not None:
            reached *= self.framework.compute
        if operation.dtype not in ("bf16", "tf32"):
            reached *= self.figure("narrow_efficiency", default=1.0)
        if operation.group_rows:
            reached *= self.figure("expert_efficiency", default=1.0)
        return reached

    def _attention_factor(self, head_dim: float) -> float:
        """Return what this attention kernel reaches of the chip's rate for heads of 128."""
        width = self.hardware.softmax_width
        factor = _head_factor(head_dim, width) if head_dim else 1.0
        if self.framework is None:
            return factor
        factor *= self.framework.attention
        written_for = self.framework.attention_generation
        if written_for and written_for < (self.hardware.tensor_core_generation or 0):
            factor *= _OLD_INSTRUCTIONS
        return factor


def _head_factor(head_dim: float, softmax_width: int) -> float:
    """Return the rate of an attention kernel relative to that of heads of the usual width.

    Exponentials are computed by a slow unit: on H100 256 times slower than FLOPs (Shah et al. 2024,
    arXiv 2407.08608, section 3.1), so the softmax takes half as long as the products of a head of
    128. A narrow head has as many scores and fewer products.

    >>> [round(_head_factor(width, 64), 2) for width in (64, 128, 256)]
    [0.75, 1.0, 1.2]
    """
    return head_dim / (head_dim + softmax_width) * (1 + softmax_width / _USUAL_HEAD)
