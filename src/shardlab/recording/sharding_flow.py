"""Which values of a shard_map body are partial sums, and over which mesh axes.

Two analyses agree on a value before it is called a partial sum of the mesh axis X:

- forward: a dimension that `in_specs` shards over X is contracted (a product) or summed, and since
  then only linear operations were applied;
- backward: the value, or what linear operations make of it, is the operand of a psum or a
  reduce-scatter over X.

Either one is enough, and the copies must differ over X. What the analysis does not know (a gather,
a convolution, a reshape that splits a sharded dimension) ends it: a value is then called nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import collective_axes
from shardlab.tracing.collective_calls import operation_name

Names = frozenset[str]
NO_NAMES: Names = frozenset()

_LINEAR_IN_ALL = frozenset({"add", "sub", "add_any", "neg"})
_KEEPS_PARTIAL = frozenset(
    {"convert_element_type", "copy", "copy_p", "transpose", "reshape", "squeeze", "expand_dims"}
    | {"broadcast_in_dim", "reduce_sum", "slice", "real", "imag", "reduce_precision"}
)
_SUMS = ("psum", "psum_scatter")


@dataclasses.dataclass(frozen=True)
class Placement:
    """How a local value relates to the global one: the mesh axes of each dimension, open sums."""

    dims: tuple[Names, ...] = ()
    partial: Names = NO_NAMES


class ShardingFlow:
    """The placement of each value, by its number, as the program runs."""

    def __init__(self) -> None:
        self._placements: dict[int, Placement] = {}

    def place(self, value: int, dims: Sequence[Iterable[str]], partial: Iterable[str] = ()) -> None:
        """Set the placement of an input of a body."""
        self._placements[value] = Placement(tuple(map(frozenset, dims)), frozenset(partial))

    def partial_axes(self, value: int) -> Names:
        """Return the mesh axes over which a value is a partial sum, by the forward analysis."""
        return self._placements.get(value, Placement()).partial

    def follow_equation(
        self, eqn: Any, operands: Sequence[tuple[int | None, Names]], outs: Sequence[int]
    ) -> None:
        """Derive the placement of the output; operands are numbers and the axes they vary over."""
        if len(outs) != 1:
            return
        ins = [self._placements.get(-1 if v is None else v, Placement()) for v, _ in operands]
        varies = [names for _, names in operands]
        rule = _RULES.get(operation_name(eqn.primitive.name))
        if rule is not None:
            self._placements[outs[0]] = rule(eqn, ins, varies)
        elif eqn.primitive.name in _KEEPS_PARTIAL:
            self._placements[outs[0]] = Placement((), ins[0].partial)
        elif _jax.is_elementwise(eqn.primitive):
            self._placements[outs[0]] = _elementwise(eqn, ins, varies)
        elif called_jaxpr(eqn.primitive.name, eqn.params) is not None:
            # A function of JAX (relu, where) that keeps the shape keeps the meaning of dimensions.
            self._placements[outs[0]] = Placement(_merge_dims(eqn, ins))


Rule = Any


def _merge_dims(eqn: Any, ins: Sequence[Placement]) -> tuple[Names, ...]:
    rank = len(eqn.outvars[0].aval.shape)
    dims = [NO_NAMES] * rank
    for placement, atom in zip(ins, eqn.invars, strict=True):
        if len(placement.dims) == rank and atom.aval.shape == eqn.outvars[0].aval.shape:
            dims = [a | b for a, b in zip(dims, placement.dims, strict=True)]
    return tuple(dims)


def _elementwise(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    name = eqn.primitive.name
    dims = _merge_dims(eqn, ins)
    if name in _LINEAR_IN_ALL:
        return Placement(dims, NO_NAMES.union(*(placement.partial for placement in ins)))
    if name in _KEEPS_PARTIAL:
        return Placement(dims, ins[0].partial)
    if name == "mul":
        first, second = ins
        # A factor that differs between devices weights each term: no longer one sum.
        partial = (first.partial - varies[1]) | (second.partial - varies[0])
        return Placement(dims, partial)
    if name == "div":
        return Placement(dims, ins[0].partial - varies[1])
    return Placement(dims)


def _dot_general(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    lhs, rhs = ins
    partial = (lhs.partial - varies[1]) | (rhs.partial - varies[0])
    for left, right in zip(lhs_contract, rhs_contract, strict=True):
        partial |= _dim(lhs, left) & _dim(rhs, right)
    lhs_rank, rhs_rank = (len(atom.aval.shape) for atom in eqn.invars)
    lhs_free = [d for d in range(lhs_rank) if d not in (*lhs_contract, *lhs_batch)]
    rhs_free = [d for d in range(rhs_rank) if d not in (*rhs_contract, *rhs_batch)]
    dims = [_dim(lhs, a) | _dim(rhs, b) for a, b in zip(lhs_batch, rhs_batch, strict=True)]
    dims += [_dim(lhs, d) for d in lhs_free] + [_dim(rhs, d) for d in rhs_free]
    return Placement(tuple(dims), partial)


def _dim(placement: Placement, dim: int) -> Names:
    return placement.dims[dim] if dim < len(placement.dims) else NO_NAMES


def _transpose(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    dims = tuple(_dim(ins[0], d) for d in eqn.params["permutation"])
    return Placement(dims, ins[0].partial)


def _broadcast_in_dim(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    dims = [NO_NAMES] * len(eqn.params["shape"])
    for source, target in enumerate(eqn.params["broadcast_dimensions"]):
        dims[target] = _dim(ins[0], source)
    return Placement(tuple(dims), ins[0].partial)


def _reshape(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    dims = [NO_NAMES] * len(after)
    # Only dimensions that stay as they are, apart from dimensions of size 1 around them.
    kept = [(d, n) for d, n in enumerate(before) if n != 1]
    result = [(d, n) for d, n in enumerate(after) if n != 1]
    if [n for _, n in kept] == [n for _, n in result]:
        for (source, _), (target, _) in zip(kept, result, strict=True):
            dims[target] = _dim(ins[0], source)
    return Placement(tuple(dims), ins[0].partial)


def _squeeze(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    rank = len(eqn.invars[0].aval.shape)
    removed = {d % rank for d in eqn.params["dimensions"]}
    dims = tuple(_dim(ins[0], d) for d in range(rank) if d not in removed)
    return Placement(dims, ins[0].partial)


def _same_dims(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    return ins[0]


def _reduce_sum(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    summed = eqn.params["axes"]
    dims = tuple(d for i, d in enumerate(ins[0].dims) if i not in summed)
    opened = NO_NAMES.union(*(_dim(ins[0], d) for d in summed))
    return Placement(dims, ins[0].partial | opened)


def _reduce_other(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    return Placement(tuple(d for i, d in enumerate(ins[0].dims) if i not in eqn.params["axes"]))


def _psum(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    names = frozenset(collective_axes(eqn.params))
    return Placement(tuple(d - names for d in ins[0].dims), ins[0].partial - names)


def _pmax(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    names = frozenset(collective_axes(eqn.params))
    return Placement(tuple(d - names for d in ins[0].dims))


def _all_gather(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    names = frozenset(collective_axes(eqn.params))
    dims = list(ins[0].dims)
    if not eqn.params.get("tiled"):
        dims.insert(eqn.params["all_gather_dimension"], NO_NAMES)
    return Placement(tuple(d - names for d in dims), ins[0].partial)


def _psum_scatter(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    names = frozenset(collective_axes(eqn.params))
    dim = eqn.params["scatter_dimension"]
    dims = list(ins[0].dims)
    if dim < len(dims):
        if eqn.params.get("tiled"):
            dims[dim] |= names
        else:
            del dims[dim]
    return Placement(tuple(dims), ins[0].partial - names)


def _ppermute(eqn: Any, ins: Sequence[Placement], varies: Sequence[Names]) -> Placement:
    return ins[0]


_RULES: Mapping[str, Rule] = {
    "dot_general": _dot_general,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "slice": _same_dims,
    "reduce_sum": _reduce_sum,
    **dict.fromkeys(("reduce_max", "reduce_min", "reduce_prod"), _reduce_other),
    "psum": _psum,
    **dict.fromkeys(("pmax", "pmin"), _pmax),
    "all_gather": _all_gather,
    "psum_scatter": _psum_scatter,
    "ppermute": _ppermute,
}

# ------------------------------------------------------------------------------- backward analysis

# Operations through which a sum over devices can be moved; of these the operands are terms too.
LINEAR_OPERATIONS = _LINEAR_IN_ALL | (_KEEPS_PARTIAL - {"reduce_sum"}) | {"mul", "div"}
