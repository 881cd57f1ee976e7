"""An equation that is a collective -> the record of the call.

A call has the name of the JAX function, whatever primitive JAX traces it to: `psum_invariant` is a
psum, `reduce_scatter` is `psum_scatter`, and a `pmean` is the psum in it. A psum of several arrays
is one call per array, as in the jaxpr and in the compiler's input. Casts between varying types
(`pvary`, `pcast`) send nothing and are not calls. Dtypes have their full names (`float32`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from shardlab.collectives.call import CollectiveCall, Phase
from shardlab.collectives.wire import wire_bytes
from shardlab.sharding.dtype import parse_dtype
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES, collective_axes
from shardlab.simulator.interpreter.stacked_array import MeshAxes
from shardlab.tracing.jaxpr_walk import Site

# primitive -> the JAX function that a user calls; all others have the same name
_JAX_NAMES = {
    "psum_invariant": "psum",
    "unreduced_psum": "psum",
    "unreduced_pmax": "pmax",
    "unreduced_pmin": "pmin",
    "all_gather_invariant": "all_gather",
    "all_gather_reduced": "all_gather",
    "reduce_scatter": "psum_scatter",
    "unreduced_reduce_scatter": "psum_scatter",
}

# parameter -> its name in `details`
_DETAIL_NAMES = {
    "all_gather_dimension": "axis",
    "scatter_dimension": "axis",
    "split_axis": "split_axis",
    "concat_axis": "concat_axis",
    "perm": "pairs",
    "axis_index_groups": "groups",
    "tiled": "tiled",
    "source": "source",
}


def is_collective_site(site: Site) -> bool:
    """Return whether an equation is a collective."""
    return site.eqn.primitive.name in COLLECTIVES


def operation_name(primitive: str) -> str:
    """Return the name of the JAX function for a primitive.

    >>> [operation_name(name) for name in ("psum_invariant", "reduce_scatter", "ppermute")]
    ['psum', 'psum_scatter', 'ppermute']
    """
    # Asynchronous collectives are pairs of *_start and *_done; the start has the operand.
    name = primitive.removesuffix("_start")
    return _JAX_NAMES.get(name, name)


def collective_call(site: Site) -> CollectiveCall:
    """Return the record of a collective."""
    context = site.context
    call = executed_call(site.eqn, context.axes, site.phase)
    return dataclasses.replace(
        call,
        count=context.count,
        source=site.source,
        varies=context.axes.in_mesh_order(site.ins[0]),
        within=context.within,
    )


def executed_call(eqn: Any, mesh_axes: MeshAxes, phase: Phase) -> CollectiveCall:
    """Return the record of one execution of a collective."""
    params = eqn.params
    op = operation_name(eqn.primitive.name)
    axes = collective_axes(params)
    shape = _sent_shape(eqn)
    dtype = parse_dtype(eqn.invars[0].aval.dtype)
    payload = dtype.n_bytes(math.prod(shape))
    groups = params.get("axis_index_groups")
    # Groups may differ in size; the largest determines the time.
    group_size = max(map(len, groups)) if groups else mesh_axes.size(axes)
    return CollectiveCall(
        op=op,
        mesh_axes=axes,
        shape=shape,
        dtype=dtype.name,
        payload_bytes=payload,
        wire_bytes=wire_bytes(op, payload, group_size),
        count=1,
        phase=phase,
        group_size=group_size,
        out_shape=tuple(eqn.outvars[0].aval.shape),
        details=_call_details(params),
    )


def _sent_shape(eqn: Any) -> tuple[int, ...]:
    """Return the shape of what is sent: a sum over vmapped dimensions is taken locally first."""
    shape = eqn.invars[0].aval.shape
    local = {axis for axis in eqn.params.get("axes", ()) if isinstance(axis, int)}
    return tuple(size for axis, size in enumerate(shape) if axis not in local)


def _call_details(params: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _as_json_value(params[key])
        for key, name in _DETAIL_NAMES.items()
        if params.get(key) is not None
    }


def _as_json_value(value: Any) -> Any:
    """Return lists for tuples, so that a record equals itself after a round trip through JSON."""
    if isinstance(value, (tuple, list)):
        return [_as_json_value(item) for item in value]
    return value if isinstance(value, (bool, str)) else int(value)
