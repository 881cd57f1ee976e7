"""Follows sharded array axes through a program: a guess at what the compiler's propagation does.

Forward only, one operation at a time. Where two operands disagree the first one wins; where an
operation is not known its result counts as replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardlab.engine import _jax, boundary
from shardlab.engine.rules.calls import called_jaxpr
from shardlab.engine.rules.local import is_elementwise, shared_boundaries

# The mesh axes over which each array axis is sharded.
Parts = tuple[tuple[str, ...], ...]


def parts_of(sharding: Any, ndim: int) -> Parts:
    """Return the parts of a sharding, all empty where it is not over a mesh."""
    spec = getattr(sharding, "spec", None)
    entries = boundary.entries(spec) if spec is not None else []
    return tuple(entries[i] if i < len(entries) else () for i in range(ndim))


def follow(jaxpr: Any, ins: Sequence[Parts]) -> list[Parts]:
    """Return the parts of each output, given those of each input."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    known: dict[Any, Parts] = dict(zip(inner.invars, ins, strict=True))

    def read(atom: Any) -> Parts:
        empty = ((),) * getattr(atom.aval, "ndim", 0)
        return empty if isinstance(atom, _jax.Literal) else known.get(atom, empty)

    for eqn in inner.eqns:
        outs = _equation(eqn, [read(atom) for atom in eqn.invars])
        for var, parts in zip(eqn.outvars, outs, strict=True):
            known[var] = _without_repeats(parts)
    return [read(atom) for atom in inner.outvars]


def _without_repeats(parts: Parts) -> Parts:
    """Keep the first use of each mesh axis: one axis cannot shard two array axes."""
    seen: set[str] = set()
    out = []
    for names in parts:
        fresh = tuple(n for n in names if n not in seen)
        seen.update(fresh)
        out.append(fresh if fresh == names else ())
    return tuple(out)


def _equation(eqn: Any, ins: list[Parts]) -> list[Parts]:
    name, params = eqn.primitive.name, eqn.params
    ranks = [getattr(var.aval, "ndim", 0) for var in eqn.outvars]
    if name == "shard_map":
        return [
            tuple((*boundary.entries(spec), *((),) * rank)[:rank])
            for spec, rank in zip(params["out_specs"], ranks, strict=True)
        ]
    if name in ("sharding_constraint", "reshard"):
        return [parts_of(params.get("sharding", params.get("dst_sharding")), ranks[0])]
    if name in ("scan", "while", "cond"):
        return _control(name, params, ins, ranks)
    body = called_jaxpr(name, params)
    if body is not None:
        return follow(body, ins)
    if name in _RULES:
        return [_RULES[name](eqn, ins)] * len(ranks)
    if is_elementwise(eqn.primitive):
        return [_merge(ins, rank) for rank in ranks]
    if name in _SAME_SHAPE:
        return [_where_size_is_kept(eqn, ins, i) for i in range(len(ranks))]
    return [((),) * rank for rank in ranks]


def _merge(ins: Sequence[Parts], rank: int) -> Parts:
    full = [parts for parts in ins if len(parts) == rank]
    return tuple(next((p[i] for p in full if p[i]), ()) for i in range(rank))


# Operations that keep an array axis whole where its size does not change.
_SAME_SHAPE = frozenset(
    "slice dynamic_slice dynamic_update_slice concatenate pad sort cumsum cumprod cummax cummin "
    "cumlogsumexp rev reduce_precision select_and_scatter_add scatter scatter-add "
    "optimization_barrier copy_p".split()
)


def _where_size_is_kept(eqn: Any, ins: list[Parts], number: int) -> Parts:
    operand = eqn.invars[min(number, len(eqn.invars) - 1)].aval
    out = eqn.outvars[number].aval
    source = ins[min(number, len(ins) - 1)]
    if len(source) != out.ndim:
        return ((),) * out.ndim
    return tuple(p if operand.shape[i] == out.shape[i] else () for i, p in enumerate(source))


def _control(name: str, params: Any, ins: list[Parts], ranks: list[int]) -> list[Parts]:
    if name == "cond":
        return follow(params["branches"][0], ins[1:])
    if name == "while":
        consts = params["cond_nconsts"]
        return follow(params["body_jaxpr"], ins[consts:])
    n_fixed = params["num_consts"] + params["num_carry"]
    outs = follow(params["jaxpr"], [*ins[:n_fixed], *(p[1:] for p in ins[n_fixed:])])
    n_carry = params["num_carry"]
    return [*outs[:n_carry], *(((), *p) for p in outs[n_carry:])]


# --------------------------------------------------------------------------------------- rules


def _dot(eqn: Any, ins: list[Parts]) -> Parts:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    lhs, rhs = ins
    batch = [lhs[i] or rhs[j] for i, j in zip(lhs_batch, rhs_batch, strict=True)]
    lhs_free = [p for i, p in enumerate(lhs) if i not in (*lhs_contract, *lhs_batch)]
    rhs_free = [p for i, p in enumerate(rhs) if i not in (*rhs_contract, *rhs_batch)]
    return (*batch, *lhs_free, *rhs_free)


def _transpose(eqn: Any, ins: list[Parts]) -> Parts:
    return tuple(ins[0][i] for i in eqn.params["permutation"])


def _broadcast(eqn: Any, ins: list[Parts]) -> Parts:
    operand, shape = eqn.invars[0].aval, eqn.params["shape"]
    out: list[tuple[str, ...]] = [()] * len(shape)
    for i, axis in enumerate(eqn.params["broadcast_dimensions"]):
        out[axis] = ins[0][i] if operand.shape[i] == shape[axis] else ()
    return tuple(out)


def _reshape(eqn: Any, ins: list[Parts]) -> Parts:
    """An axis keeps its parts where the new shape is cut at the same place."""
    old, new = eqn.invars[0].aval.shape, tuple(eqn.outvars[0].aval.shape)
    out: list[tuple[str, ...]] = [()] * len(new)
    if 0 in old:
        return tuple(out)
    boundary_at = shared_boundaries(tuple(old), new)
    for i, names in enumerate(ins[0]):
        if names and i in boundary_at and boundary_at[i] < len(new):
            out[boundary_at[i]] = names
    return tuple(out)


def _reduce(eqn: Any, ins: list[Parts]) -> Parts:
    return tuple(p for i, p in enumerate(ins[0]) if i not in eqn.params["axes"])


def _squeeze(eqn: Any, ins: list[Parts]) -> Parts:
    gone = {d % len(ins[0]) for d in eqn.params["dimensions"]}
    return tuple(p for i, p in enumerate(ins[0]) if i not in gone)


_REDUCERS = "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin"

_RULES: dict[str, Callable[[Any, list[Parts]], Parts]] = {
    "dot_general": _dot,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    **dict.fromkeys(_REDUCERS.split(), _reduce),
}
