"""Whether XLA has to insert collectives outside the shard_maps of a program.

The collectives of the shard_maps are all there is as long as arrays keep their sharding between
them: the next shard_map takes them with the same spec, and the operations between are elementwise.
For anything else (a constraint, a sum over a sharded dimension, a matrix product) XLA decides, and
the program must be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding

from shardlab import _jax
from shardlab.simulator.interpreter import shard_boundary
from shardlab.simulator.interpreter.rules.calls import called_jaxpr

# The mesh axes of each dimension, without empty ones at the end; None: unsharded.
DimAxes = tuple[tuple[str, ...], ...] | None


class NeedsCompiler(Exception):
    """XLA communicates here, or may do so."""


def needs_compiler(jaxpr: Any, shardings: Sequence[Any]) -> bool:
    """Return whether XLA may insert collectives, given the shardings of the arguments."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    ins = [_sharding_axes(sharding) for sharding in shardings] or [None] * len(inner.invars)
    try:
        _propagate(inner, ins)
    except NeedsCompiler:
        return True
    return False


def requested_shardings(params: Mapping[str, Any]) -> list[Any]:
    """Return the NamedShardings that an equation with these parameters requests."""
    shardings = [params[key] for key in ("sharding", "dst_sharding") if key in params]
    for key in ("in_shardings", "out_shardings", "devices"):
        shardings += params.get(key) or ()
    return [sharding for sharding in shardings if isinstance(sharding, NamedSharding)]


def _sharding_axes(sharding: Any) -> DimAxes:
    if not isinstance(sharding, NamedSharding):
        return None
    return _spec_axes(sharding.spec, dict(sharding.mesh.shape))


def _spec_axes(spec: Any, sizes: Mapping[str, int]) -> DimAxes:
    entries = [
        tuple(n for n in names if sizes[n] > 1) for names in shard_boundary.spec_entries(spec)
    ]
    return _trim_entries(entries)


def _trim_entries(entries: Sequence[tuple[str, ...]]) -> DimAxes:
    trimmed = list(entries)
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return tuple(trimmed) or None


def _propagate(jaxpr: Any, ins: Sequence[DimAxes]) -> list[DimAxes]:
    axes_by_var: dict[Any, DimAxes] = dict(zip(jaxpr.invars, ins, strict=True))

    def read_atom(atom: Any) -> DimAxes:
        return None if isinstance(atom, _jax.Literal) else axes_by_var.get(atom)

    for eqn in jaxpr.eqns:
        outs = _propagate_equation(eqn, [read_atom(atom) for atom in eqn.invars])
        axes_by_var.update(zip(eqn.outvars, outs, strict=True))
    return [read_atom(atom) for atom in jaxpr.outvars]


def _propagate_equation(eqn: Any, ins: list[DimAxes]) -> list[DimAxes]:
    name, params = eqn.primitive.name, eqn.params
    if name == "shard_map":
        return _propagate_shard_map(params, ins)
    # A constraint over real mesh axes is a request to XLA.
    if any(_sharding_axes(sharding) for sharding in requested_shardings(params)):
        raise NeedsCompiler
    if name in _CONTROL_FLOW:
        return _CONTROL_FLOW[name](params, ins)
    body = called_jaxpr(name, params)
    if body is not None:
        return _propagate(_jax.open_jaxpr(body)[0], ins)
    # Replicated operands give replicated results: every device computes the same.
    if not any(ins):
        return [None] * len(eqn.outvars)
    if name in _DIM_RULES:
        return [_DIM_RULES[name](params, ins[0])]
    if name in _ELEMENTWISE or _jax.is_elementwise(eqn.primitive):
        return [_common_operand_axes(eqn, ins)] * len(eqn.outvars)
    raise NeedsCompiler


def _propagate_shard_map(params: Mapping[str, Any], ins: list[DimAxes]) -> list[DimAxes]:
    sizes = dict(params["mesh"].shape)
    for operand_axes, spec in zip(ins, params["in_specs"], strict=True):
        # An unsharded operand is sliced locally; one with another sharding must be resharded.
        if operand_axes and operand_axes != _spec_axes(spec, sizes):
            raise NeedsCompiler
    # In a fully manual body there is nothing left for XLA to shard.
    is_partial = len(params["newly_manual_axes"]) < len(sizes)
    inner, _ = _jax.open_jaxpr(params["jaxpr"])
    if is_partial and _requests_sharding(inner):
        raise NeedsCompiler
    return [_spec_axes(spec, sizes) for spec in params["out_specs"]]


def _requests_sharding(jaxpr: Any) -> bool:
    """Return whether the body of a partly manual shard_map also shards over its other axes."""
    return any(
        (
            eqn.primitive.name == "shard_map"
            and any(map(shard_boundary.spec_axes, _all_specs(eqn.params)))
        )
        or any(_sharding_axes(sharding) for sharding in requested_shardings(eqn.params))
        or any(_requests_sharding(_jax.open_jaxpr(b)[0]) for b in _jax.inner_jaxprs(eqn.params))
        for eqn in jaxpr.eqns
    )


def _all_specs(params: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*params["in_specs"], *params["out_specs"])


# ------------------------------------------------------------ operations that keep the sharding

_ELEMENTWISE = frozenset(
    {"convert_element_type", "copy", "copy_p", "integer_pow", "select_n", "optimization_barrier"}
)


def _common_operand_axes(eqn: Any, ins: list[DimAxes]) -> DimAxes:
    candidates = {operand_axes for operand_axes in ins if operand_axes}
    shape = eqn.outvars[0].aval.shape
    # A broadcast operand could be sharded along a dimension that the result does not have.
    have_result_shape = all(
        atom.aval.shape == shape
        for atom, operand_axes in zip(eqn.invars, ins, strict=True)
        if operand_axes
    )
    if len(candidates) != 1 or not have_result_shape:
        raise NeedsCompiler
    return candidates.pop()


def _propagate_transpose(params: Mapping[str, Any], operand_axes: DimAxes) -> DimAxes:
    entries = operand_axes or ()
    return _trim_entries([entries[i] if i < len(entries) else () for i in params["permutation"]])


def _propagate_reduce(params: Mapping[str, Any], operand_axes: DimAxes) -> DimAxes:
    entries = operand_axes or ()
    # A reduction over a sharded dimension needs an all-reduce.
    if any(dim < len(entries) and entries[dim] for dim in params["axes"]):
        raise NeedsCompiler
    return _trim_entries([names for dim, names in enumerate(entries) if dim not in params["axes"]])


def _propagate_broadcast(params: Mapping[str, Any], operand_axes: DimAxes) -> DimAxes:
    entries: list[tuple[str, ...]] = [()] * len(params["shape"])
    for names, dim in zip(operand_axes or (), params["broadcast_dimensions"], strict=False):
        entries[dim] = names
    return _trim_entries(entries)


_DIM_RULES: dict[str, Callable[[Mapping[str, Any], DimAxes], DimAxes]] = {
    "transpose": _propagate_transpose,
    "broadcast_in_dim": _propagate_broadcast,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _propagate_reduce),
}


def _propagate_scan(params: Mapping[str, Any], ins: list[DimAxes]) -> list[DimAxes]:
    n_consts, n_carry = _jax.scan_operand_counts(dict(params))
    body, _ = _jax.open_jaxpr(params["jaxpr"])
    xs = [_drop_first_dim(operand_axes) for operand_axes in ins[n_consts + n_carry :]]
    outs = _propagate_loop(body, ins[:n_consts], ins[n_consts : n_consts + n_carry], xs)
    return [
        *outs[:n_carry],
        *(((), *operand_axes) if operand_axes else None for operand_axes in outs[n_carry:]),
    ]


def _propagate_while(params: Mapping[str, Any], ins: list[DimAxes]) -> list[DimAxes]:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    body, _ = _jax.open_jaxpr(params["body_jaxpr"])
    condition, _ = _jax.open_jaxpr(params["cond_jaxpr"])
    outs = _propagate_loop(body, ins[n_cond : n_cond + n_body], ins[n_cond + n_body :], [])
    _propagate(condition, [*ins[:n_cond], *outs])
    return outs


def _propagate_loop(
    body: Any, consts: Sequence[DimAxes], carry: Sequence[DimAxes], xs: Sequence[DimAxes]
) -> list[DimAxes]:
    """Return the outputs of a loop body once the sharding of its carry no longer changes."""
    for _ in range(len(carry) + 1):
        outs = _propagate(body, [*consts, *carry, *xs])
        if list(outs[: len(carry)]) == list(carry):
            return outs
        # A carry that changes its sharding in an iteration is resharded in each of them.
        if any(before and before != after for before, after in zip(carry, outs, strict=False)):
            raise NeedsCompiler
        carry = outs[: len(carry)]
    raise NeedsCompiler


def _propagate_cond(params: Mapping[str, Any], ins: list[DimAxes]) -> list[DimAxes]:
    # A sharded predicate must be gathered before the branch.
    if ins[0]:
        raise NeedsCompiler
    branches = [_propagate(_jax.open_jaxpr(branch)[0], ins[1:]) for branch in params["branches"]]
    return [_common_axes(axes_by_branch) for axes_by_branch in zip(*branches, strict=True)]


def _common_axes(axes_by_branch: Sequence[DimAxes]) -> DimAxes:
    distinct = {dim_axes for dim_axes in axes_by_branch if dim_axes}
    if len(distinct) > 1:
        raise NeedsCompiler
    return distinct.pop() if distinct else None


def _drop_first_dim(operand_axes: DimAxes) -> DimAxes:
    # A scan over a sharded leading dimension needs one slice per iteration from another device.
    if operand_axes and operand_axes[0]:
        raise NeedsCompiler
    return _trim_entries(operand_axes[1:]) if operand_axes else None


_CONTROL_FLOW = {"scan": _propagate_scan, "while": _propagate_while, "cond": _propagate_cond}
