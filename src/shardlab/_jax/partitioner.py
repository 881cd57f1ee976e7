"""Asks JAX's own partitioner how a program's arrays are sharded, without compiling for devices.

JAX itself lowers a jit for the virtual devices, so everything that JAX checks there is checked,
with JAX's own errors. The shardings that the compiler chooses between the user's annotations come
from Shardy's propagation passes, which jaxlib contains: the same passes that XLA runs.

Compared with the compiler on 8 host devices, 70 of 72 programs of
`tests/oracle/side_by_side/propagation.py` and all 108 eager ones get the same shardings. XLA
rewrites a few operations before it propagates (top_k, dynamic_slice at constant positions); for
these the result may be less sharded than the compiler's. This never raises: a sharding that cannot
be inferred counts as replicated.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import (
    core,  # tokens, memory spaces
    dtypes,  # extended dtypes (random keys)
    op_shardings,  # whether two shardings of XLA are equal
    pjit,  # _resolve_and_lower: lowers any jit with all checks
    sharding_impls,  # UnspecifiedValue, shardings of random keys
)
from jax._src.interpreters import mlir, pxla  # MeshComputation and MeshExecutable
from jax._src.layout import Layout  # of the arguments of a MeshExecutable
from jax._src.lib.mlir import ir, passmanager  # runs Shardy's passes
from jax._src.lib.mlir.dialects import sdy  # Shardy's attributes
from jax._src.sharding_impls import GSPMDSharding  # the form in which XLA returns shardings
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardlab._jax.sharding_inspection import call_key, inspection_callbacks, inspection_calls

_original_lower = pjit._resolve_and_lower
_thread_state = threading.local()


def is_lowering() -> bool:
    """Return whether this thread lowers for devices, so that a shard_map must stay one."""
    return getattr(_thread_state, "is_lowering", False)


@contextlib.contextmanager
def _mark_lowering() -> Iterator[None]:
    before = is_lowering()
    _thread_state.is_lowering = True
    try:
        yield
    finally:
        _thread_state.is_lowering = before


def lower_for_devices(args: Any, **params: Any) -> Any:
    """Lower a jit for its virtual devices, with all of JAX's own checks."""
    with _mark_lowering():
        return _original_lower(args, **params)


class ProgramPlacement:
    """The shardings of the inputs and outputs of a lowered program.

    This follows `UnloadedMeshExecutable.from_hlo` of JAX, with Shardy's propagation in place of the
    shardings that the compiled executable reports.
    """

    def __init__(self, computation: Any, devices: Any) -> None:
        compile_args = computation.compile_args
        # Ordered effects add token arguments and results in front, which no aval describes.
        n_tokens = len(compile_args["ordered_effects"])
        requested_in, requested_out = (
            [pxla.maybe_concretize_mesh(s, devices) for s in compile_args[key]]
            for key in ("in_shardings", "out_shardings")
        )
        in_attrs, out_attrs = _propagate_shardings(computation, devices)
        in_avals, out_avals = compile_args["global_in_avals"], compile_args["global_out_avals"]
        ins = _resolve_shardings(requested_in, in_avals, in_attrs[n_tokens:], devices)
        ins = pxla.maybe_recover_user_shardings(requested_in, ins, in_avals, in_avals)
        outs = _resolve_shardings(requested_out, out_avals, out_attrs[n_tokens:], devices)
        outs = pxla.maybe_recover_user_shardings(
            ins,
            outs,
            in_avals,
            out_avals,
            compile_args.get("intermediate_shardings"),
            compile_args.get("context_mesh"),
        )
        self.ins: list[Any] = list(pxla.finalize_shardings(ins, devices))
        self.outs: list[Any] = list(pxla.finalize_shardings(outs, devices))
        self.in_layouts, self.out_layouts = _default_layouts(in_avals), _default_layouts(out_avals)
        self.committed: bool = compile_args["committed"]
        # The hosts that have devices of the program, in order.
        self.hosts: tuple[int, ...] = tuple(sorted(devices.process_indices))
        self.devices = devices
        effects = ("ordered_effects", "unordered_effects", "mut")
        self._has_effects = any(compile_args[key] for key in effects)
        self._makes_keys = any(map(_is_key_type, out_avals))
        self._calls: set[Any] = set()

    def is_repeated_call(self, in_shardings: tuple[Any, ...]) -> bool:
        """Return whether JAX labels the random keys of a call as it does those of a second call.

        JAX dispatches the second call in C++, and before JAX 0.12 that gives the uint32 array
        behind keys the sharding of the keys as it is, `P("x")`, where the first call gives it one
        of its own, `P("x", None)`.
        """
        if not self._makes_keys or self._has_effects or jax.__version_info__ >= (0, 12):
            return False
        is_repeated = in_shardings in self._calls
        self._calls.add(in_shardings)
        return is_repeated


def _is_key_type(aval: Any) -> bool:
    return hasattr(aval, "dtype") and dtypes.issubdtype(aval.dtype, dtypes.extended)


def compile_devices(computation: Any, device_assignment: Any) -> Any:
    """Return the devices to compile for, with the checks of `MeshComputation.compile`.

    A program that was lowered for an abstract mesh gets its devices only here.
    """
    lowered_for, requested = computation._device_list, pxla._create_device_list(device_assignment)
    if requested is None and lowered_for is None:
        raise RuntimeError(
            "device_assignment cannot be `None` during compilation. Please pass a tuple of devices "
            "to `.compile(device_assignment=)`"
        )
    if requested is not None and lowered_for is not None and requested != lowered_for:
        raise ValueError(
            "device_assignment passed to `.compile` must match the device_assignment calculated "
            "from array shardings and out_shardings. Got device ids passed to compile "
            f"{[d.id for d in requested]} on platform {requested[0].platform.upper()} and devices "
            f"ids calculated from array shardings and out_shardings {[d.id for d in lowered_for]} "
            f"on platform {lowered_for[0].platform.upper()}"
        )
    devices = lowered_for if requested is None else requested
    n_lowered = computation.compile_args["num_devices"]
    if len(devices) != n_lowered and jax.__version_info__ >= (0, 12):
        raise RuntimeError(
            f"Length of device_assignment ({len(devices)}) passed to `.compile()` must be equal to "
            f"the number of devices the jitted function was lowered with ({n_lowered})."
        )
    return devices


def find_placement(computation: Any, devices: Any) -> ProgramPlacement:
    """Return the placement on these devices, computed once for each lowered program."""
    placements = computation.__dict__.setdefault("_shardlab_placements", {})
    if devices not in placements:
        placements[devices] = ProgramPlacement(computation, devices)
    placement: ProgramPlacement = placements[devices]
    return placement


def make_executable(
    computation: Any, placement: ProgramPlacement, run: Callable[..., Any], executable: Any
) -> Any:
    """Return what JAX accepts as a compiled program; calling it calls `run`.

    `executable` takes the place of XLA's own executable in queries such as memory_analysis().
    """
    compile_args = computation.compile_args
    return pxla.MeshExecutable(
        executable,
        lambda: run,
        compile_args["global_in_avals"],
        compile_args["global_out_avals"],
        placement.ins,
        placement.outs,
        compile_args["kept_var_idx"],
        placement.in_layouts,
        [None] * len(placement.ins),
        placement.out_layouts,
        compile_args["mut"],
        compile_args["all_args_info"],
    )


def _default_layouts(avals: Sequence[Any]) -> list[Any]:
    """Return the layout that every array has on a CPU: row-major."""
    return [Layout(tuple(range(getattr(aval, "ndim", 0))), ()) for aval in avals]


# ------------------------------------------------------------------------------------- propagation

# The mesh axes with their sizes, and the axes of each dimension.
AxisSharding = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, ...], ...]]


def _propagate_shardings(
    computation: Any, devices: Any
) -> tuple[list[AxisSharding | None], list[AxisSharding | None]]:
    """Return Shardy's sharding of each argument and result; None if it has none."""
    module = computation.stablehlo()
    with module.context:
        operation = module.operation.clone()
        if len(devices) > 1:
            pipeline = passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)")
            try:
                replace_ops_as_xla_does(operation)
                pipeline.run(operation)
            except ir.MLIRError:
                # Shardy does not know some operation: only the user's annotations count then.
                operation = module.operation.clone()
        meshes = {}
        for op in operation.regions[0].blocks[0].operations:
            if isinstance(op, sdy.MeshOp):
                meshes[ir.StringAttr(op.sym_name).value] = sdy.MeshAttr(op.mesh)
            elif getattr(op, "name", None) is not None and str(op.name) == '"main"':
                main = op
        n_args, n_results = len(main.type.inputs), len(main.type.results)
        callbacks = inspection_callbacks(computation.compile_args["keepalive"])
        for call in inspection_calls(operation) if callbacks else ():
            callbacks[call_key(call)](_inspected_sharding(call.operands[0], meshes, devices))
        return (
            _read_shardings(main.attributes, "arg_attrs", n_args, meshes),
            _read_shardings(main.attributes, "res_attrs", n_results, meshes),
        )


def replace_ops_as_xla_does(operation: Any) -> None:
    """Replace operations that XLA rewrites before it propagates: the shardings depend on it.

    - Elementwise chlo operations (erf and others), which Shardy does not know and XLA expands.
      Before JAX 0.12 XLA replicated them. Only shardings are read from this copy, so any
      elementwise operation will do.
    - A broadcast that only adds dimensions of size 1, which XLA converts to a reshape. Shardy
      propagates through reshapes before products, and through broadcasts after them. A scan stores
      the rows of a stacked result with such a broadcast: without this, what a forward scan
      saves for the backward one can get the sharding of the gradient instead of its own.
    """
    for region in operation.regions:
        for block in region.blocks:
            for op in list(block.operations):
                replace_ops_as_xla_does(op.operation)
                name = op.operation.name
                if name.startswith("chlo.") and _is_elementwise_op(op):
                    if jax.__version_info__ >= (0, 12):
                        _replace_with_adds(op)
                elif name == "stablehlo.broadcast_in_dim" and _only_adds_unit_dims(op):
                    _replace_with_reshape(op)


def _only_adds_unit_dims(op: Any) -> bool:
    operand, result = (ir.RankedTensorType(v.type) for v in (op.operands[0], op.results[0]))
    dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    return math.prod(operand.shape) == math.prod(result.shape) and dims == sorted(dims)


def _replace_with_reshape(op: Any) -> None:
    reshape = ir.Operation.create(
        "stablehlo.reshape",
        results=[op.results[0].type],
        operands=[op.operands[0]],
        ip=ir.InsertionPoint(op),
        loc=op.location,
    )
    op.results[0].replace_all_uses_with(reshape.result)
    op.operation.erase()


def _is_elementwise_op(op: Any) -> bool:
    value_types = [value.type for value in (*op.operands, *op.results)]
    shapes = {tuple(ir.RankedTensorType(value_type).shape) for value_type in value_types}
    return len(shapes) == 1 and len(op.operands) > 0


def _replace_with_adds(op: Any) -> None:
    """Replace `op` by the sum of its operands, converted to the result type."""
    insertion_point = ir.InsertionPoint(op)
    for result in op.results:
        total = None
        for operand in op.operands:
            term = ir.Operation.create(
                "stablehlo.convert",
                results=[result.type],
                operands=[operand],
                ip=insertion_point,
                loc=op.location,
            ).result
            total = term if total is None else _add_op(total, term, insertion_point, op.location)
        result.replace_all_uses_with(total)
    op.operation.erase()


def _add_op(lhs: Any, rhs: Any, insertion_point: Any, location: Any) -> Any:
    return ir.Operation.create(
        "stablehlo.add",
        results=[lhs.type],
        operands=[lhs, rhs],
        ip=insertion_point,
        loc=location,
    ).result


def _inspected_sharding(value: Any, meshes: dict[str, Any], devices: Any) -> Any:
    """Return the sharding of a value inside the program, in the form in which XLA reports it."""
    rank = len(ir.RankedTensorType(value.type).shape)
    axes = _value_sharding(value, meshes)
    if axes is None or not axes[0]:
        return sharding_impls.replicated_hlo_sharding
    return _named_sharding(axes, devices)._to_xla_hlo_sharding(rank)


def _value_sharding(value: Any, meshes: dict[str, Any]) -> AxisSharding | None:
    """Return Shardy's sharding of a result of an operation, or of an argument of a function."""
    if isinstance(value.owner, ir.Block):
        index = ir.BlockArgument(value).arg_number
        function = value.owner.owner
        if function.name == "stablehlo.while":
            # What a loop carries is sharded in its body as in its results.
            return _value_sharding(function.results[int(index)], meshes)
        count = len(value.owner.arguments)
        if "arg_attrs" not in function.attributes:
            return None
        argument_axes = _read_shardings(function.attributes, "arg_attrs", count, meshes)
        return argument_axes[int(index)]
    # A with_sharding_constraint, before and after propagation.
    if value.owner.name in ("sdy.sharding_constraint", "sdy.reshard"):
        return _parse_sharding(sdy.TensorShardingAttr(value.owner.attributes["sharding"]), meshes)
    if "sdy.sharding" not in value.owner.attributes:
        return None
    per_value = sdy.TensorShardingPerValueAttr(value.owner.attributes["sdy.sharding"])
    index = ir.OpResult(value).result_number
    return _parse_sharding(sdy.TensorShardingAttr(per_value.shardings[index]), meshes)


def _read_shardings(
    attributes: Any, key: str, count: int, meshes: dict[str, Any]
) -> list[AxisSharding | None]:
    if key not in attributes:
        return [None] * count
    return [
        _parse_sharding(sdy.TensorShardingAttr(attribute["sdy.sharding"]), meshes)
        if "sdy.sharding" in (attribute := ir.DictAttr(item))
        else None
        for item in ir.ArrayAttr(attributes[key])
    ]


def _parse_sharding(attribute: Any, meshes: dict[str, Any]) -> AxisSharding | None:
    """Return the mesh axes and those of each dimension; None if an axis is used only in part."""
    mesh_reference = attribute.mesh_or_ref
    is_name = str(mesh_reference).startswith("@")
    mesh = (
        meshes[ir.FlatSymbolRefAttr(mesh_reference).value]
        if is_name
        else sdy.MeshAttr(mesh_reference)
    )
    sizes = tuple((axis.name, axis.size) for axis in (sdy.MeshAxisAttr(a) for a in mesh.axes))
    entries = []
    for dimension in attribute.dimension_shardings:
        refs = [sdy.AxisRefAttr(ref) for ref in sdy.DimensionShardingAttr(dimension).axes]
        # A sub-axis, such as half of "model", has no PartitionSpec.
        if any(ref.sub_axis_info is not None for ref in refs):
            return None
        entries.append(tuple(ref.name for ref in refs))
    return sizes, tuple(entries)


def _resolve_shardings(
    requested: Sequence[Any], avals: Sequence[Any], attrs: Sequence[Any], devices: Any
) -> list[Any]:
    return [
        _resolve_sharding(sharding, aval, axes, devices)
        for sharding, aval, axes in zip(requested, avals, attrs, strict=True)
    ]


def _resolve_sharding(requested: Any, aval: Any, axes: AxisSharding | None, devices: Any) -> Any:
    """Return the sharding that the user requested, or the one that propagation inferred."""
    is_specified = not isinstance(requested, sharding_impls.UnspecifiedValue)
    if is_specified and not mlir.contains_unconstrained(requested):
        return requested
    if aval is core.abstract_token:
        return GSPMDSharding.get_replicated(devices)
    memory_kind = core.mem_space_to_kind(aval.memory_space)
    inferred = GSPMDSharding.get_replicated(devices, memory_kind=memory_kind)
    # As GSPMDSharding first: JAX converts what the compiler returns in the same way, so that e.g.
    # trailing None entries of the spec come out alike.
    if axes is not None and axes[0] and len(devices) > 1:
        hlo = _named_sharding(axes, devices)._to_xla_hlo_sharding(len(axes[1]))
        inferred = GSPMDSharding(devices, hlo, memory_kind=memory_kind)
    if _is_key_type(aval):
        inferred = sharding_impls.logical_sharding(aval.shape, aval.dtype, inferred)
    if not is_specified:
        return inferred
    # The rest is a spec with unconstrained dimensions (Auto axes beside Explicit ones). If the
    # compiler adds nothing to the type of the result, JAX spells the spec as the type does.
    type_mesh = aval.sharding.mesh
    if not _is_key_type(aval) and not type_mesh.empty and not type_mesh._any_axis_manual:
        type_hlo = aval.sharding._to_xla_hlo_sharding(aval.ndim)
        if op_shardings.are_hlo_shardings_equal(type_hlo, inferred._to_xla_hlo_sharding(aval.ndim)):
            mesh = pxla._abstract_to_concrete_mesh(type_mesh, inferred._device_assignment)
            return aval.sharding.update(mesh=mesh)
    return pxla._gspmd_to_named_sharding(inferred, aval, requested)


def _named_sharding(axes: AxisSharding, devices: Any) -> NamedSharding:
    """Return the sharding on a mesh over the program's devices in their order."""
    names = tuple(name for name, _ in axes[0])
    shape = tuple(size for _, size in axes[0])
    grid = np.empty(len(devices), dtype=object)
    grid[:] = list(devices)
    mesh = Mesh(grid.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
    return NamedSharding(mesh, PartitionSpec(*axes[1]))
