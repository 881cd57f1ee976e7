"""The time of a step and the memory of a device for one candidate, with `shardlab.hardware`.

Which communication overlaps is assumed as in `shardlab plan --time`: parameters are gathered before
they are needed and gradients are reduced after they are ready, so both overlap with compute; of the
collectives on activations the hardware's `exposed_share` is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from shardlab._jax.partitioned_program import InsertedCall, LocalProduct, PartitionedProgram
from shardlab.autoshard.spec_choices import MeshSizes
from shardlab.errors import LabError
from shardlab.hardware.chips import Hardware
from shardlab.hardware.mesh_placement import MeshPlacement
from shardlab.hardware.operation_time import Operation, OperationTime, OperationTimer, memory_pass
from shardlab.hardware.step_time import StepCollectiveTime, StepTime
from shardlab.hardware.step_timer import StepCollective, StepTimer

# JAX's names for the collectives that the partitioner inserts.
_OPS = {
    "all_reduce": "psum",
    "all_gather": "all_gather",
    "reduce_scatter": "psum_scatter",
    "all_to_all": "all_to_all",
    "collective_permute": "ppermute",
}
_SPLIT_KINDS = ("all_reduce", "all_gather", "reduce_scatter")
_FIRST_TF32 = 3  # generation of tensor cores
_DTYPES = {"bf16": "bf16", "f16": "bf16", "f32": "bf16", "s8": "int8", "u8": "int8"}
# Beside arguments and live values: the compiler's own buffers, fragmentation.
HEADROOM = 0.1


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What a candidate costs: the step on each device, and the bytes that it holds."""

    step: StepTime
    placement: str
    memory_bytes: int

    @property
    def seconds(self) -> float:
        return self.step.expected


@dataclass(kw_only=True)
class StepCoster:
    """Times partitioned programs on one kind of hardware."""

    hardware: Hardware
    weight_shapes: frozenset[tuple[int, ...]]  # of arguments that the step updates
    timer: StepTimer = field(init=False)
    operation_timer: OperationTimer = field(init=False)
    _times: dict[Operation, OperationTime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.timer = StepTimer(hardware=self.hardware)
        self.operation_timer = OperationTimer(hardware=self.hardware)

    def cost(self, program: PartitionedProgram, mesh: MeshSizes) -> StepCost:
        """Return the time of a step of the program, and what one device holds."""
        operations = tuple(self._time_operations(program))
        placement, collective_times = self._choose_placement(program, mesh)
        n_devices = prod(size for _, size in mesh)
        flops = sum(product.flops * product.count for product in program.products)
        step = StepTime(
            flops=flops * n_devices,
            model_flops=flops * n_devices,
            peak_flops=self.operation_timer.peak_flops() * n_devices,
            operations=operations,
            collectives=collective_times,
            overlap_loss=self._overlap_loss,
        )
        return StepCost(
            step=step,
            placement=placement.description,
            memory_bytes=program.argument_bytes + program.peak_bytes,
        )

    def collective_seconds(
        self, program: PartitionedProgram, mesh: MeshSizes
    ) -> Iterator[tuple[InsertedCall, float]]:
        """Yield each collective with the seconds of all its calls, on the placement of `cost`."""
        placement = self._choose_placement(program, mesh)[0]
        for call in program.collectives:
            parts = (self.timer.time(part, placement) for part in self._step_collectives(call))
            yield call, sum(part.total_seconds for part in parts)

    def _choose_placement(
        self, program: PartitionedProgram, mesh: MeshSizes
    ) -> tuple[MeshPlacement, tuple[StepCollectiveTime, ...]]:
        busy = sum(operation.total_seconds for operation in self._time_operations(program))
        collectives = tuple(
            part for call in program.collectives for part in self._step_collectives(call)
        )
        times = self.timer.time_collectives(mesh, collectives)
        return self.timer.choose_placement(times, busy, self._overlap_loss)

    @property
    def _overlap_loss(self) -> float:
        return self.operation_timer.figure("overlap_loss", default=0.0)

    def _time_operations(self, program: PartitionedProgram) -> Iterator[OperationTime]:
        for product in program.products:
            yield self._time(_product_operation(product, self._dtype(product)))
        for item in program.memory_passes:
            yield self._time(memory_pass(item.operation, item.n_bytes))

    def _dtype(self, product: LocalProduct) -> str:
        """Return the dtype in which the matrix units compute a product."""
        if product.dtype == "f32" and self.has_tf32:
            return "tf32"
        return _DTYPES.get(product.dtype, product.dtype)

    @property
    def has_tf32(self) -> bool:
        """Whether products of float32 are computed in TF32: NVIDIA GPUs from Ampere on."""
        return (self.hardware.tensor_core_generation or 0) >= _FIRST_TF32

    def _time(self, operation: Operation) -> OperationTime:
        if operation not in self._times:
            self._times[operation] = self.operation_timer.time(operation)
        return self._times[operation]

    def _step_collectives(self, call: InsertedCall) -> Iterator[StepCollective]:
        exposed = 0.0 if self.is_of_weights(call) else 1.0
        if exposed and call.kind in _SPLIT_KINDS:
            exposed = self.operation_timer.figure("exposed_share", default=1.0)
        n_exposed = round(call.count * exposed) if call.count > 1 else (1 if exposed else 0)
        for count, is_overlapped in ((n_exposed, False), (call.count - n_exposed, True)):
            if count:
                yield StepCollective(
                    what=call.source,
                    axes=call.axes,
                    op=_OPS[call.kind],
                    payload_bytes=call.operand_bytes,
                    count=count,
                    is_overlapped=is_overlapped,
                )

    def is_of_weights(self, call: InsertedCall) -> bool:
        """Return whether a collective gathers parameters or reduces gradients, by its shape.

        In a scan over layers the array is that of one layer.
        """
        return call.shape in self.weight_shapes


def weight_shapes_of(shapes: Sequence[tuple[int, ...]]) -> frozenset[tuple[int, ...]]:
    """Return the shapes of these parameters, and of one layer of them if they are stacked."""
    return frozenset(
        part for shape in shapes for part in (shape, shape[1:], (1, *shape[1:])) if part
    )


def _product_operation(product: LocalProduct, dtype: str) -> Operation:
    return Operation(
        name=product.source,
        kind="matmul",
        flops=product.flops,
        n_bytes=product.n_bytes,
        dims=(product.rows, product.inner, product.columns),
        dtype=dtype,
        count=product.count,
    )


def usable_memory(hardware: Hardware) -> int:
    """Return the bytes of a device that a program may fill."""
    try:
        return int(hardware.figure("hbm_bytes").value * (1 - HEADROOM))
    except LabError:
        return 2**62  # unpublished: no limit
