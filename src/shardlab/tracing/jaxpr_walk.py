"""One pass over a jaxpr: every equation at any depth, and where it stands.

    for site in walk(closed_jaxpr):
        site.eqn, site.ins, site.outs      # the equation, and the mesh axes each value varies over
        site.place.axes, .within, .count   # the mesh in scope, loops and branches, executions
        site.phase, site.source            # forward, backward or recompute; the person's line
        site.block.uses(var)               # who reads a value; .definition(atom) who made it

An equation that holds a jaxpr (jit, scan, cond, shard_map, ...) comes before what is inside.
Nothing is run, and no device is needed. The cost is linear in the equations: what a loop needs to
know of its body is remembered by `varying`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from shardlab import _jax
from shardlab.collectives.call import ControlScope, Phase
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.stacked_array import MeshAxes
from shardlab.simulator.interpreter.varying import (
    UNVARYING,
    AxisNames,
    enter_shard_map,
    infer_equation_axes,
    infer_scan_carry,
    infer_while_carry,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a jaxpr stands: what is true of all its equations."""

    axes: MeshAxes = dataclasses.field(default_factory=MeshAxes)
    within: tuple[ControlScope, ...] = ()  # loops and branches, outermost first
    count: int | None = 1  # executions by each device; None inside of a while loop
    phase: Phase = "forward"
    source: SourceLocation = UNKNOWN_LOCATION  # of the equation that holds the jaxpr


class Block:
    """A jaxpr at one place; knows who makes and who reads each value in it."""

    def __init__(
        self,
        jaxpr: Any,
        place: Place,
        ins: Sequence[AxisNames],
        outer: Site | None,
        args: Sequence[Any],
    ) -> None:
        self.jaxpr = jaxpr
        self.place = place
        self.outer = outer
        self._args = dict(zip(jaxpr.invars, args, strict=False))
        self._known: dict[Any, AxisNames] = dict(zip(jaxpr.invars, ins, strict=True))
        self._known.update((const, UNVARYING) for const in jaxpr.constvars)
        self._made: dict[Any, tuple[Site, int]] = {}
        self._uses: dict[Any, list[Any]] | None = None

    def varies(self, atom: Any) -> AxisNames:
        """Return the mesh axes over which a value of this jaxpr varies; of those seen so far."""
        return UNVARYING if isinstance(atom, _jax.Literal) else self._known[atom]

    def learn(self, site: Site) -> None:
        for number, (var, names) in enumerate(zip(site.eqn.outvars, site.outs, strict=True)):
            self._known[var] = names
            self._made[var] = site, number

    def definition(self, atom: Any) -> Site | None:
        """Return the site that makes a value, looked for outwards through calls and shard_maps.

        None for an argument of the program, a loop's carry or a constant.
        """
        found = self.origin(atom)
        return found and found[0]

    def origin(self, atom: Any) -> tuple[Site, int] | None:
        """Return the site that makes a value, and which of its outputs it is."""
        if isinstance(atom, _jax.Literal):
            return None
        found = self._made.get(atom)
        if found is None and self.outer is not None and self._args.get(atom) is not None:
            return self.outer.block.origin(self._args[atom])
        return found

    def made(self, var: Any) -> Site | None:
        """Return the site of this jaxpr that makes a value; None for an input or a constant."""
        found = self._made.get(var)
        return found and found[0]

    def passed(self, var: Any) -> Any | None:
        """Return what the jaxpr around this one passes for an input; None for what loops make."""
        return self._args.get(var)

    def uses(self, var: Any) -> list[Any]:
        """Return the equations of this jaxpr that read a value."""
        if self._uses is None:
            self._uses = {}
            for eqn in self.jaxpr.eqns:
                for atom in {a for a in eqn.invars if not isinstance(a, _jax.Literal)}:
                    self._uses.setdefault(atom, []).append(eqn)
        return self._uses.get(var, [])

    def is_returned(self, var: Any) -> bool:
        """Say whether a value is an output of this jaxpr."""
        return any(var is out for out in self.jaxpr.outvars)


class Site:
    """One equation where it stands."""

    __slots__ = ("_source", "block", "eqn", "inner", "ins", "outs")

    def __init__(self, block: Block, eqn: Any, ins: list[AxisNames], outs: list[AxisNames]) -> None:
        self.block = block
        self.eqn = eqn
        self.ins = ins
        self.outs = outs
        self.inner: list[Block] = []  # what it runs, once the walk has been there
        self._source: SourceLocation | None = None

    @property
    def name(self) -> str:
        """Return the name of the primitive."""
        return str(self.eqn.primitive.name)

    @property
    def place(self) -> Place:
        return self.block.place

    @property
    def source(self) -> SourceLocation:
        """Return the person's line; that of the equation around it where JAX has lost it."""
        if self._source is None:
            found = _jax.user_location(self.eqn)
            self._source = SourceLocation(*found) if found else self._around()
        return self._source

    def _around(self) -> SourceLocation:
        if self.place.source is UNKNOWN_LOCATION and self.name == "shard_map":
            return _body_source(self.eqn.params["jaxpr"])
        return self.place.source

    @property
    def phase(self) -> Phase:
        """Return what the equation is for, as the names that JAX gives its transforms tell."""
        if self.place.phase == "recompute":
            return "recompute"
        stack = _jax.name_stack(self.eqn)
        if "rematted_computation" in stack:
            return "recompute"
        return "backward" if "transpose(" in stack else self.place.phase


def walk_jaxpr(closed_jaxpr: Any) -> Iterator[Site]:
    """Yield every equation of a program in order, each with where it stands."""
    jaxpr, _ = _jax.open_jaxpr(closed_jaxpr)
    ids = itertools.count()
    yield from _visit(Block(jaxpr, Place(), [UNVARYING] * len(jaxpr.invars), None, ()), ids)


Ids = Iterator[int]


def _visit(block: Block, ids: Ids) -> Iterator[Site]:
    axes, varies = block.place.axes, block.varies
    for eqn in block.jaxpr.eqns:
        ins = [varies(atom) for atom in eqn.invars]
        site = Site(block, eqn, ins, infer_equation_axes(axes, eqn, ins))
        block.learn(site)
        yield site
        for inner in _inside(site, ids):
            site.inner.append(inner)
            yield from _visit(inner, ids)


# ------------------------------------------------------------------------- what an equation holds


def _inside(site: Site, ids: Ids) -> Iterator[Block]:
    """Yield the jaxprs that an equation runs."""
    name, params = site.name, site.eqn.params
    enter = _ENTER.get(name)
    if enter is not None:
        yield from enter(site, ids)
        return
    body = called_jaxpr(name, params)
    if body is not None:
        yield _block(site, body, site.ins, site.eqn.invars)
    elif any(isinstance(effect, _jax.NamedAxisEffect) for effect in site.eqn.effects):
        yield from _unknown(site)


def _shard_map(site: Site, ids: Ids) -> Iterator[Block]:
    axes, ins = enter_shard_map(site.place.axes, site.eqn.params, site.ins)
    yield _block(site, site.eqn.params["jaxpr"], ins, site.eqn.invars, axes=axes)


def _scan(site: Site, ids: Ids) -> Iterator[Block]:
    params, place = site.eqn.params, site.place
    n_consts, n_carry = _jax.scan_operand_counts(params)
    carry = infer_scan_carry(place.axes, params, site.ins)
    ins = [*site.ins[:n_consts], *carry, *site.ins[n_consts + n_carry :]]
    length = params["length"]
    yield _block(
        site,
        params["jaxpr"],
        ins,
        site.eqn.invars[:n_consts],  # a carry and a slice are not what was passed in
        within=(
            *place.within,
            ControlScope(kind="scan", source=site.source, id=next(ids), length=length),
        ),
        count=None if place.count is None else place.count * length,
    )


def _while(site: Site, ids: Ids) -> Iterator[Block]:
    params, place = site.eqn.params, site.place
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    carry, varies = infer_while_carry(place.axes, params, site.ins)
    condition, _ = _jax.open_jaxpr(params["cond_jaxpr"])
    scope = ControlScope(
        kind="while",
        source=site.source,
        id=next(ids),
        varies=place.axes.in_mesh_order(varies),
        predicate=_end_source(condition, site.source),
    )
    for body, first, n_consts in (
        (condition, 0, n_cond),
        (params["body_jaxpr"], n_cond, n_body),
    ):
        consts = slice(first, first + n_consts)
        yield _block(
            site,
            body,
            [*site.ins[consts], *carry],
            site.eqn.invars[consts],
            within=(*place.within, scope),
            count=None,
        )


def _cond(site: Site, ids: Ids) -> Iterator[Block]:
    place, branches = site.place, site.eqn.params["branches"]
    scope = ControlScope(
        kind="cond",
        source=site.source,
        id=next(ids),
        n_branches=len(branches),
        varies=place.axes.in_mesh_order(site.ins[0]),
        predicate=choice(site).source,
    )
    for number, branch in enumerate(branches):
        within = (*place.within, dataclasses.replace(scope, branch=number))
        yield _block(site, branch, site.ins[1:], site.eqn.invars[1:], within=within)


def _linear_solve(site: Site, ids: Ids) -> Iterator[Block]:
    """Yield the solver alone: the other functions are there for its derivatives."""
    lengths, jaxprs = site.eqn.params["const_lengths"], site.eqn.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    consts = slice(first, first + lengths.solve)
    rest = slice(sum(lengths), None)
    yield _block(
        site,
        jaxprs.solve,
        [*site.ins[consts], *site.ins[rest]],
        [*site.eqn.invars[consts], *site.eqn.invars[rest]],
    )


def _unknown(site: Site) -> Iterator[Block]:
    """Yield what an undescribed primitive runs: anything may depend on any of its inputs."""
    everything = UNVARYING.union(*site.ins)
    for body in _jax.inner_jaxprs(site.eqn.params):
        inner, _ = _jax.open_jaxpr(body)
        yield _block(site, inner, [everything] * len(inner.invars), (), count=None)


_ENTER = {
    "shard_map": _shard_map,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
}


def _block(
    site: Site, body: Any, ins: Sequence[AxisNames], args: Sequence[Any], **new: Any
) -> Block:
    jaxpr, _ = _jax.open_jaxpr(body)
    source = site.source if site.source is not UNKNOWN_LOCATION else _body_source(body)
    place = dataclasses.replace(site.place, phase=site.phase, source=source, **new)
    return Block(jaxpr, place, ins, site, args)


def _body_source(body: Any) -> SourceLocation:
    """Return where a function that was handed to JAX begins; JAX keeps no line of its call."""
    name, file, line = _jax.function_location(body)
    return (
        SourceLocation(file, line, name) if line and _jax.is_user_file(file) else UNKNOWN_LOCATION
    )


# ------------------------------------------------------------------------ what a choice rests on

# A predicate on its way to the cond: JAX makes an index of it, and keeps that in range.
_ON_THE_WAY = frozenset(
    {"convert_element_type", "clamp", "reshape", "squeeze", "broadcast_in_dim", "pvary", "pcast"}
)


def choice(cond: Site) -> Site:
    """Return the site that computes the predicate of a cond; the cond itself if it is passed in."""
    block, atom = cond.block, cond.eqn.invars[0]
    while True:
        origin = block.origin(atom)
        if origin is None:
            return cond
        found, _ = origin
        inside = _within_shard_map(*origin)
        if inside is not None:
            block, atom = inside
            continue
        operands = [a for a in found.eqn.invars if not isinstance(a, _jax.Literal)]
        if found.name not in _ON_THE_WAY or not operands:
            return found
        block, atom = found.block, operands[0]


def _within_shard_map(found: Site, number: int) -> tuple[Block, Any] | None:
    """Return where the body of a shard_map, also one inside of a jit, makes an output of it.

    A backward pass takes its predicates from the forward one. Not so for other calls: JAX traces
    `jnp.any` and its like once, for the line that came first.
    """
    block = found.inner[0] if len(found.inner) == 1 else None
    if block is None:
        return None
    atom = block.jaxpr.outvars[number]
    if found.name == "shard_map":
        return block, atom
    made = block.origin(atom)
    return _within_shard_map(*made) if made is not None and made[0].block is block else None


def _end_source(jaxpr: Any, otherwise: SourceLocation) -> SourceLocation:
    """Return the line of the equation that makes the first output of a jaxpr."""
    for eqn in reversed(jaxpr.eqns):
        if any(var is jaxpr.outvars[0] for var in eqn.outvars):
            found = _jax.user_location(eqn)
            return SourceLocation(*found) if found else otherwise
    return otherwise
