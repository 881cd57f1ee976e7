"""An equation that communicates -> the record of the call.

A call has JAX's own name for it, whatever primitive JAX made of it: `psum_invariant` is a psum,
`reduce_scatter` is `psum_scatter`, and a `pmean` is the psum that it rests on. A psum of several
arrays is one call for each, as in the jaxpr and in what the compiler is given. Casts between
varying-axes types (`pvary`, `pcast`) send nothing and are no calls. Dtypes have their full names
(`float32`), as in `layouts.dtype`.
"""

from __future__ import annotations

import math
from typing import Any

from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.wire import wire_bytes
from shardlab.sharding.dtype import parse_dtype
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES, collective_axes
from shardlab.tracing.jaxpr_walk import Site

# primitive -> JAX's name for what a person calls; the others are called what they are
_CALLED = {
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
_DETAILS = {
    "all_gather_dimension": "axis",
    "scatter_dimension": "axis",
    "split_axis": "split_axis",
    "concat_axis": "concat_axis",
    "perm": "pairs",
    "axis_index_groups": "groups",
    "tiled": "tiled",
    "source": "source",
}


def communicates(site: Site) -> bool:
    """Say whether an equation is a collective."""
    return site.eqn.primitive.name in COLLECTIVES


def operation(primitive: str) -> str:
    """Return the name by which a person calls a collective.

    >>> operation("psum_invariant"), operation("reduce_scatter"), operation("ppermute")
    ('psum', 'psum_scatter', 'ppermute')
    """
    name = primitive.removesuffix("_start")
    return _CALLED.get(name, name)


def call_at(site: Site) -> CollectiveCall:
    """Return the record of a collective where it stands."""
    params, place = site.eqn.params, site.place
    op = operation(site.name)
    axes = collective_axes(params)
    shape = _sent_shape(site)
    dtype = parse_dtype(site.eqn.invars[0].aval.dtype)
    payload = dtype.n_bytes(math.prod(shape))
    groups = params.get("axis_index_groups")
    # Groups may differ in size; the largest is the one to wait for.
    group_size = max(map(len, groups)) if groups else place.axes.size(axes)
    return CollectiveCall(
        op=op,
        mesh_axes=axes,
        shape=shape,
        dtype=dtype.name,
        payload_bytes=payload,
        wire_bytes=wire_bytes(op, payload, group_size),
        count=place.count,
        phase=site.phase,
        source=site.source,
        group_size=group_size,
        out_shape=tuple(site.eqn.outvars[0].aval.shape),
        varies=place.axes.in_mesh_order(site.ins[0]),
        within=place.within,
        details=_details(params),
    )


def _sent_shape(site: Site) -> tuple[int, ...]:
    """Return the shape of what is sent; a sum over axes of a vmap too is made of those first."""
    shape = site.eqn.invars[0].aval.shape
    local = {axis for axis in site.eqn.params.get("axes", ()) if isinstance(axis, int)}
    return tuple(size for axis, size in enumerate(shape) if axis not in local)


def _details(params: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _plain(params[key]) for key, name in _DETAILS.items() if params.get(key) is not None
    }


def _plain(value: Any) -> Any:
    """Return lists for tuples, so that a record is the same after a trip through JSON."""
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (bool, str)) else int(value)
