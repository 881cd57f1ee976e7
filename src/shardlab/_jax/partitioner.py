"""Asks JAX's own partitioner where a program's values would live, without compiling for devices.

A jit is lowered for the virtual devices by JAX itself, so everything that JAX checks there is
checked and refused in its words. What the compiler would choose between the person's annotations
comes from Shardy's propagation passes, which jaxlib ships: the ones that XLA runs.

Measured against the compiler on 8 host devices: 70 of 72 programs of
`tests/engine/side_by_side/propagation.py`, and all 108 eager ones, get the same shardings. XLA
rewrites a few operations before it propagates (top_k, dynamic_slice at constant places); there the
answer may be less sharded than the compiler's. It is never refused: what cannot be told counts as
replicated.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import core, dtypes, pjit, sharding_impls
from jax._src.interpreters import mlir, pxla
from jax._src.layout import Layout
from jax._src.lib.mlir import ir, passmanager
from jax._src.lib.mlir.dialects import sdy
from jax._src.mesh import AxisType, Mesh
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec
from jax._src.sharding_impls import GSPMDSharding

MeshComputation = pxla.MeshComputation
_lower = pjit._resolve_and_lower
_here = threading.local()


def is_lowering() -> bool:
    """Say whether this thread lowers for devices, and a shard_map must stay one."""
    return getattr(_here, "is_lowering", False)


@contextlib.contextmanager
def _lowering() -> Iterator[None]:
    before = is_lowering()
    _here.is_lowering = True
    try:
        yield
    finally:
        _here.is_lowering = before


def lower(args: Any, **params: Any) -> Any:
    """Lower a jit for its virtual devices, with all of JAX's own checks."""
    with _lowering():
        return _lower(args, **params)


class Placement:
    """Where the inputs and outputs of a lowered program live."""

    def __init__(self, computation: Any) -> None:
        found = computation.compile_args
        devices = computation._device_list
        n_tokens = len(found["ordered_effects"])
        wanted_in, wanted_out = (
            [pxla.maybe_concretize_mesh(s, devices) for s in found[key]]
            for key in ("in_shardings", "out_shardings")
        )
        in_attrs, out_attrs = _propagated(computation, len(devices))
        in_avals, out_avals = found["global_in_avals"], found["global_out_avals"]
        ins = _chosen(wanted_in, in_avals, in_attrs[n_tokens:], devices)
        outs = _chosen(wanted_out, out_avals, out_attrs[n_tokens:], devices)
        outs = pxla.maybe_recover_user_shardings(
            ins,
            outs,
            in_avals,
            out_avals,
            found.get("intermediate_shardings"),
            found.get("context_mesh"),
        )
        self.ins: list[Any] = list(pxla.finalize_shardings(ins, devices))
        self.outs: list[Any] = list(pxla.finalize_shardings(outs, devices))
        self.committed: bool = found["committed"]


def placement_of(computation: Any) -> Placement:
    """Return the placement, worked out once for each lowered program."""
    known: Placement | None = computation.__dict__.get("_shardlab_placement")
    if known is None:
        known = Placement(computation)
        computation.__dict__["_shardlab_placement"] = known
    return known


def executable(computation: Any, run: Callable[..., Any], unmeasured: Any) -> Any:
    """Return what JAX takes for a compiled program; calling it calls `run`.

    `unmeasured` stands where XLA's own executable would be, and answers questions about it.
    """
    found = computation.compile_args
    placement = placement_of(computation)
    return pxla.MeshExecutable(
        unmeasured,
        lambda: run,
        found["global_in_avals"],
        found["global_out_avals"],
        placement.ins,
        placement.outs,
        found["kept_var_idx"],
        _layouts(found["global_in_avals"]),
        [None] * len(placement.ins),
        _layouts(found["global_out_avals"]),
        None,
        found["all_args_info"],
    )


def _layouts(avals: Sequence[Any]) -> list[Any]:
    """Return the layout that every array has on a CPU: the last axis runs fastest."""
    return [Layout(tuple(range(getattr(aval, "ndim", 0))), ()) for aval in avals]


# ------------------------------------------------------------------------------------- propagation


def _propagated(computation: Any, n_devices: int) -> tuple[list[Any], list[Any]]:
    """Return Shardy's attributes of each argument and result; None where there is none."""
    module = computation.stablehlo()
    with module.context:
        operation = module.operation.clone()
        if n_devices > 1:
            pipeline = passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)")
            try:
                if jax.__version_info__ >= (0, 12):  # before, XLA replicated these
                    _make_plain(operation)
                pipeline.run(operation)
            except ir.MLIRError:
                operation = module.operation.clone()  # only what the person wrote is known then
        meshes = {}
        for op in operation.regions[0].blocks[0].operations:
            if isinstance(op, sdy.MeshOp):
                meshes[ir.StringAttr(op.sym_name).value] = sdy.MeshAttr(op.mesh)
            elif getattr(op, "name", None) is not None and str(op.name) == '"main"':
                main = op
        n_args, n_results = len(main.type.inputs), len(main.type.results)
        return (
            _read(main.attributes, "arg_attrs", n_args, meshes),
            _read(main.attributes, "res_attrs", n_results, meshes),
        )


def _make_plain(operation: Any) -> None:
    """Give propagation a plain elementwise operation for each that XLA expands before it.

    Such as erf: Shardy does not know the `chlo` ones. Only shardings are read off this copy.
    """
    for region in operation.regions:
        for block in region.blocks:
            for op in list(block.operations):
                _make_plain(op.operation)
                if op.operation.name.startswith("chlo.") and _keeps_shape(op):
                    _replace(op)


def _keeps_shape(op: Any) -> bool:
    types = [value.type for value in (*op.operands, *op.results)]
    shapes = {tuple(ir.RankedTensorType(each).shape) for each in types}
    return len(shapes) == 1 and len(op.operands) > 0


def _replace(op: Any) -> None:
    place = ir.InsertionPoint(op)
    for result in op.results:
        whole = None
        for operand in op.operands:
            new = ir.Operation.create(
                "stablehlo.convert",
                results=[result.type],
                operands=[operand],
                ip=place,
                loc=op.location,
            ).result
            whole = new if whole is None else _add(whole, new, place, op.location)
        result.replace_all_uses_with(whole)
    op.operation.erase()


def _add(one: Any, other: Any, place: Any, where: Any) -> Any:
    return ir.Operation.create(
        "stablehlo.add", results=[one.type], operands=[one, other], ip=place, loc=where
    ).result


Axes = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, ...], ...]]


def _read(attributes: Any, key: str, count: int, meshes: dict[str, Any]) -> list[Axes | None]:
    if key not in attributes:
        return [None] * count
    return [
        _axes(sdy.TensorShardingAttr(attribute["sdy.sharding"]), meshes)
        if "sdy.sharding" in (attribute := ir.DictAttr(item))
        else None
        for item in ir.ArrayAttr(attributes[key])
    ]


def _axes(attribute: Any, meshes: dict[str, Any]) -> Axes | None:
    """Return the mesh's axes and the names on each array axis; None for anything finer."""
    where = attribute.mesh_or_ref
    is_name = str(where).startswith("@")
    mesh = meshes[ir.FlatSymbolRefAttr(where).value] if is_name else sdy.MeshAttr(where)
    sizes = tuple((axis.name, axis.size) for axis in (sdy.MeshAxisAttr(a) for a in mesh.axes))
    entries = []
    for dimension in attribute.dimension_shardings:
        refs = [sdy.AxisRefAttr(ref) for ref in sdy.DimensionShardingAttr(dimension).axes]
        if any(ref.sub_axis_info is not None for ref in refs):
            return None
        entries.append(tuple(ref.name for ref in refs))
    return sizes, tuple(entries)


def _chosen(
    wanted: Sequence[Any], avals: Sequence[Any], attrs: Sequence[Any], devices: Any
) -> list[Any]:
    return [
        _choose(sharding, aval, axes, devices)
        for sharding, aval, axes in zip(wanted, avals, attrs, strict=True)
    ]


def _choose(wanted: Any, aval: Any, axes: Axes | None, devices: Any) -> Any:
    """Return the sharding that was asked for, or the one that propagation found."""
    was_given = not isinstance(wanted, sharding_impls.UnspecifiedValue)
    if was_given and not mlir.contains_unconstrained(wanted):
        return wanted
    if aval is core.abstract_token:
        return GSPMDSharding.get_replicated(devices)
    kind = core.mem_space_to_kind(aval.memory_space)
    found = GSPMDSharding.get_replicated(devices, memory_kind=kind)
    if axes is not None and axes[0] and len(devices) > 1:
        hlo = _named(axes, devices)._to_xla_hlo_sharding(len(axes[1]))
        found = GSPMDSharding(devices, hlo, memory_kind=kind)
    if dtypes.issubdtype(aval.dtype, dtypes.extended):
        found = sharding_impls.logical_sharding(aval.shape, aval.dtype, found)
    return pxla._gspmd_to_named_sharding(found, aval, wanted) if was_given else found


def _named(axes: Axes, devices: Any) -> NamedSharding:
    """Return the sharding on a mesh over the program's devices in their order."""
    names = tuple(name for name, _ in axes[0])
    shape = tuple(size for _, size in axes[0])
    grid = np.empty(len(devices), dtype=object)
    grid[:] = list(devices)
    mesh = Mesh(grid.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
    return NamedSharding(mesh, PartitionSpec(*axes[1]))
