"""Does the compiler have to communicate outside of the shard_maps of a program?

What a shard_map says it communicates is all there is, as long as its arrays stay where it put them.
They do if the next shard_map takes them by the same spec, and if what happens between works on each
element alone. Anything else (a constraint, a sum over a sharded array axis, a matrix product) is
the compiler's choice, and only the compiler knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding

from shardlab import _jax
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.rules.calls import called_jaxpr

# The mesh axes of each array axis, without empty ones at the end; None: not sharded.
Cut = tuple[tuple[str, ...], ...] | None


class Moves(Exception):
    """Something communicates, or may do so."""


def is_left_to_the_compiler(jaxpr: Any, shardings: Sequence[Any]) -> bool:
    """Say whether a program, given the shardings of its arguments, communicates by itself."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    given = [_cut_of(s) for s in shardings] or [None] * len(inner.invars)
    try:
        _follow(inner, given)
    except Moves:
        return True
    return False


def shardings_asked_for(params: Mapping[str, Any]) -> list[Any]:
    """Return the NamedShardings that an equation with these parameters asks for."""
    asked = [params[key] for key in ("sharding", "dst_sharding") if key in params]
    for key in ("in_shardings", "out_shardings", "devices"):
        asked += params.get(key) or ()
    return [each for each in asked if isinstance(each, NamedSharding)]


def _cut_of(sharding: Any) -> Cut:
    if not isinstance(sharding, NamedSharding):
        return None
    return _cut(sharding.spec, dict(sharding.mesh.shape))


def _cut(spec: Any, sizes: Mapping[str, int]) -> Cut:
    entries = [tuple(n for n in names if sizes[n] > 1) for names in boundary.spec_entries(spec)]
    return _trimmed(entries)


def _trimmed(entries: Sequence[tuple[str, ...]]) -> Cut:
    kept = list(entries)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept) or None


def _follow(jaxpr: Any, ins: Sequence[Cut]) -> list[Cut]:
    known: dict[Any, Cut] = dict(zip(jaxpr.invars, ins, strict=True))

    def read(atom: Any) -> Cut:
        return None if isinstance(atom, _jax.Literal) else known.get(atom)

    for eqn in jaxpr.eqns:
        outs = _equation(eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(eqn: Any, ins: list[Cut]) -> list[Cut]:
    name, params = eqn.primitive.name, eqn.params
    if name == "shard_map":
        return _shard_map(params, ins)
    if any(_cut_of(sharding) for sharding in shardings_asked_for(params)):
        raise Moves
    if name in _LOOPS:
        return _LOOPS[name](params, ins)
    body = called_jaxpr(name, params)
    if body is not None:
        return _follow(_jax.open_jaxpr(body)[0], ins)
    if not any(ins):
        return [None] * len(eqn.outvars)
    if name in _STRUCTURAL:
        return [_STRUCTURAL[name](params, ins[0])]
    if name in _ELEMENTWISE or _jax.is_elementwise(eqn.primitive):
        return [_agreed(eqn, ins)] * len(eqn.outvars)
    raise Moves


def _shard_map(params: Mapping[str, Any], ins: list[Cut]) -> list[Cut]:
    sizes = dict(params["mesh"].shape)
    for cut, spec in zip(ins, params["in_specs"], strict=True):
        if cut and cut != _cut(spec, sizes):
            raise Moves
    is_partial = len(params["newly_manual_axes"]) < len(sizes)
    inner, _ = _jax.open_jaxpr(params["jaxpr"])
    if is_partial and _asks_for_more(inner):
        raise Moves
    return [_cut(spec, sizes) for spec in params["out_specs"]]


def _asks_for_more(jaxpr: Any) -> bool:
    """Say whether the body of a partly manual shard_map shards over its other mesh axes too."""
    return any(
        (eqn.primitive.name == "shard_map" and any(map(boundary.spec_axes, _specs(eqn.params))))
        or any(_cut_of(sharding) for sharding in shardings_asked_for(eqn.params))
        or any(_asks_for_more(_jax.open_jaxpr(b)[0]) for b in _jax.inner_jaxprs(eqn.params))
        for eqn in jaxpr.eqns
    )


def _specs(params: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*params["in_specs"], *params["out_specs"])


# ----------------------------------------------------------------------- what keeps arrays in place

_ELEMENTWISE = frozenset(
    {"convert_element_type", "copy", "copy_p", "integer_pow", "select_n", "optimization_barrier"}
)


def _agreed(eqn: Any, ins: list[Cut]) -> Cut:
    cuts = {cut for cut in ins if cut}
    shape = eqn.outvars[0].aval.shape
    are_whole = all(
        atom.aval.shape == shape for atom, cut in zip(eqn.invars, ins, strict=True) if cut
    )
    if len(cuts) != 1 or not are_whole:
        raise Moves
    return cuts.pop()


def _transpose(params: Mapping[str, Any], cut: Cut) -> Cut:
    entries = cut or ()
    return _trimmed([entries[i] if i < len(entries) else () for i in params["permutation"]])


def _reduce(params: Mapping[str, Any], cut: Cut) -> Cut:
    entries = cut or ()
    if any(axis < len(entries) and entries[axis] for axis in params["axes"]):
        raise Moves
    return _trimmed([names for axis, names in enumerate(entries) if axis not in params["axes"]])


def _broadcast(params: Mapping[str, Any], cut: Cut) -> Cut:
    entries: list[tuple[str, ...]] = [()] * len(params["shape"])
    for names, axis in zip(cut or (), params["broadcast_dimensions"], strict=False):
        entries[axis] = names
    return _trimmed(entries)


_STRUCTURAL: dict[str, Callable[[Mapping[str, Any], Cut], Cut]] = {
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"), _reduce),
}


def _scan(params: Mapping[str, Any], ins: list[Cut]) -> list[Cut]:
    n_consts, n_carry = _jax.scan_operand_counts(dict(params))
    body, _ = _jax.open_jaxpr(params["jaxpr"])
    xs = [_without_first(cut) for cut in ins[n_consts + n_carry :]]
    outs = _settle(body, ins[:n_consts], ins[n_consts : n_consts + n_carry], xs)
    return [*outs[:n_carry], *(((), *cut) if cut else None for cut in outs[n_carry:])]


def _while(params: Mapping[str, Any], ins: list[Cut]) -> list[Cut]:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    body, _ = _jax.open_jaxpr(params["body_jaxpr"])
    condition, _ = _jax.open_jaxpr(params["cond_jaxpr"])
    outs = _settle(body, ins[n_cond : n_cond + n_body], ins[n_cond + n_body :], [])
    _follow(condition, [*ins[:n_cond], *outs])
    return outs


def _settle(body: Any, consts: Sequence[Cut], carry: Sequence[Cut], xs: Sequence[Cut]) -> list[Cut]:
    """Return the outputs of a loop's body once its carry keeps its place."""
    for _ in range(len(carry) + 1):
        outs = _follow(body, [*consts, *carry, *xs])
        if list(outs[: len(carry)]) == list(carry):
            return outs
        if any(old and old != new for old, new in zip(carry, outs, strict=False)):
            raise Moves
        carry = outs[: len(carry)]
    raise Moves


def _cond(params: Mapping[str, Any], ins: list[Cut]) -> list[Cut]:
    if ins[0]:
        raise Moves
    branches = [_follow(_jax.open_jaxpr(b)[0], ins[1:]) for b in params["branches"]]
    return [_same(cuts) for cuts in zip(*branches, strict=True)]


def _same(cuts: Sequence[Cut]) -> Cut:
    found = {cut for cut in cuts if cut}
    if len(found) > 1:
        raise Moves
    return found.pop() if found else None


def _without_first(cut: Cut) -> Cut:
    if cut and cut[0]:
        raise Moves
    return _trimmed(cut[1:]) if cut else None


_LOOPS = {"scan": _scan, "while": _while, "cond": _cond}
