"""One pass over a jaxpr: every equation at any depth, with its context.

    for site in walk_jaxpr(closed_jaxpr):
        site.eqn, site.ins, site.outs      # the equation, and the mesh axes each value varies over
        site.context.axes, .within, .count # the mesh in scope, loops and branches, executions
        site.phase, site.source            # forward, backward or recompute; the user's line
        site.block.readers_of(var)         # its readers; .find_definition(atom) defines it

An equation with a jaxpr (jit, scan, cond, shard_map, ...) comes before the equations inside.
Nothing is run, and no device is needed. The cost is linear in the number of equations: the fixed
point of a loop body is cached by `varying`.
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
class JaxprContext:
    """The context that all equations of a jaxpr share."""

    axes: MeshAxes = dataclasses.field(default_factory=MeshAxes)
    within: tuple[ControlScope, ...] = ()  # loops and branches, outermost first
    count: int | None = 1  # executions per device; None inside a while loop
    phase: Phase = "forward"
    source: SourceLocation = UNKNOWN_LOCATION  # of the equation that holds the jaxpr


class Block:
    """A jaxpr in its context, with the definition and the readers of each of its values."""

    def __init__(
        self,
        jaxpr: Any,
        context: JaxprContext,
        ins: Sequence[AxisNames],
        outer: Site | None,
        args: Sequence[Any],
    ) -> None:
        self.jaxpr = jaxpr
        self.context = context
        self.outer = outer
        self._operands = dict(zip(jaxpr.invars, args, strict=False))
        # Filled in program order by `add_site`; jaxprs are in SSA form, so each entry is final.
        self._varying: dict[Any, AxisNames] = dict(zip(jaxpr.invars, ins, strict=True))
        self._varying.update((const, UNVARYING) for const in jaxpr.constvars)
        self._definitions: dict[Any, tuple[Site, int]] = {}
        self._readers: dict[Any, list[Any]] | None = None

    def varying_axes(self, atom: Any) -> AxisNames:
        """Return the mesh axes over which a value varies, once its definition was visited."""
        return UNVARYING if isinstance(atom, _jax.Literal) else self._varying[atom]

    def add_site(self, site: Site) -> None:
        for number, (var, names) in enumerate(zip(site.eqn.outvars, site.outs, strict=True)):
            self._varying[var] = names
            self._definitions[var] = site, number

    def find_definition(self, atom: Any) -> Site | None:
        """Return the site that defines a value, also outside the calls and shard_maps around.

        None for an argument of the program, a loop carry or a constant.
        """
        definition = self.find_origin(atom)
        return definition and definition[0]

    def find_origin(self, atom: Any) -> tuple[Site, int] | None:
        """Return the site that defines a value, and which of its outputs it is."""
        if isinstance(atom, _jax.Literal):
            return None
        definition = self._definitions.get(atom)
        if definition is None and self.outer is not None and self._operands.get(atom) is not None:
            return self.outer.block.find_origin(self._operands[atom])
        return definition

    def defining_site(self, var: Any) -> Site | None:
        """Return the site of this jaxpr that defines a value; None for an input or constant."""
        definition = self._definitions.get(var)
        return definition and definition[0]

    def caller_operand(self, var: Any) -> Any | None:
        """Return the operand that the caller passes for an input; None for a loop carry."""
        # A literal has no caller, and cannot be hashed.
        return None if isinstance(var, _jax.Literal) else self._operands.get(var)

    def readers_of(self, var: Any) -> list[Any]:
        """Return the equations of this jaxpr that read a value."""
        if self._readers is None:
            self._readers = {}
            for eqn in self.jaxpr.eqns:
                for atom in {a for a in eqn.invars if not isinstance(a, _jax.Literal)}:
                    self._readers.setdefault(atom, []).append(eqn)
        return self._readers.get(var, [])

    def is_returned(self, var: Any) -> bool:
        """Return whether a value is an output of this jaxpr."""
        return any(var is out for out in self.jaxpr.outvars)


class Site:
    """One equation in its context."""

    __slots__ = ("_source", "block", "eqn", "inner", "ins", "outs")

    def __init__(self, block: Block, eqn: Any, ins: list[AxisNames], outs: list[AxisNames]) -> None:
        self.block = block
        self.eqn = eqn
        self.ins = ins
        self.outs = outs
        self.inner: list[Block] = []  # the jaxprs it runs, filled in by the walk
        self._source: SourceLocation | None = None

    @property
    def name(self) -> str:
        """Return the name of the primitive."""
        return str(self.eqn.primitive.name)

    @property
    def context(self) -> JaxprContext:
        return self.block.context

    @property
    def source(self) -> SourceLocation:
        """Return the user's line; of the equation around it if JAX has none for this one."""
        if self._source is None:
            location = _jax.user_location(self.eqn)
            self._source = SourceLocation(*location) if location else self._enclosing_source()
        return self._source

    def _enclosing_source(self) -> SourceLocation:
        if self.context.source is UNKNOWN_LOCATION and self.name == "shard_map":
            return _body_source(self.eqn.params["jaxpr"])
        return self.context.source

    @property
    def phase(self) -> Phase:
        """Return the phase, from the names that JAX's transforms leave on the name stack."""
        # Everything inside a rematerialized body is recomputed, whatever its own name stack says.
        if self.context.phase == "recompute":
            return "recompute"
        stack = _jax.name_stack(self.eqn)
        # Names that jax.checkpoint and jax.grad leave on the name stack in JAX 0.10 to 0.12.
        if "rematted_computation" in stack:
            return "recompute"
        return "backward" if "transpose(" in stack else self.context.phase


def walk_jaxpr(closed_jaxpr: Any) -> Iterator[Site]:
    """Yield every equation of a program in order, each in its context."""
    jaxpr, _ = _jax.open_jaxpr(closed_jaxpr)
    ids = itertools.count()
    yield from _walk_block(
        Block(jaxpr, JaxprContext(), [UNVARYING] * len(jaxpr.invars), None, ()), ids
    )


Ids = Iterator[int]


def _walk_block(block: Block, ids: Ids) -> Iterator[Site]:
    axes = block.context.axes
    for eqn in block.jaxpr.eqns:
        ins = [block.varying_axes(atom) for atom in eqn.invars]
        site = Site(block, eqn, ins, infer_equation_axes(axes, eqn, ins))
        # Before the yield, so that a consumer can look up the values of this site.
        block.add_site(site)
        yield site
        for inner in _inner_blocks(site, ids):
            site.inner.append(inner)
            yield from _walk_block(inner, ids)


# ------------------------------------------------------------------------ jaxprs inside equations


def _inner_blocks(site: Site, ids: Ids) -> Iterator[Block]:
    """Yield the jaxprs that an equation runs."""
    name, params = site.name, site.eqn.params
    enter_rule = _ENTER_RULES.get(name)
    if enter_rule is not None:
        yield from enter_rule(site, ids)
        return
    body = called_jaxpr(name, params)
    if body is not None:
        yield _enter_block(site, body, site.ins, site.eqn.invars)
    # A primitive that uses a mesh axis and has no rule here, such as one of a newer JAX.
    elif any(isinstance(effect, _jax.NamedAxisEffect) for effect in site.eqn.effects):
        yield from _enter_unknown(site)


def _enter_shard_map(site: Site, ids: Ids) -> Iterator[Block]:
    axes, ins = enter_shard_map(site.context.axes, site.eqn.params, site.ins)
    yield _enter_block(site, site.eqn.params["jaxpr"], ins, site.eqn.invars, axes=axes)


def _enter_scan(site: Site, ids: Ids) -> Iterator[Block]:
    params, context = site.eqn.params, site.context
    n_consts, n_carry = _jax.scan_operand_counts(params)
    # The fixed point over all iterations: a carry varies if it does in any of them.
    carry = infer_scan_carry(context.axes, params, site.ins)
    ins = [*site.ins[:n_consts], *carry, *site.ins[n_consts + n_carry :]]
    length = params["length"]
    yield _enter_block(
        site,
        params["jaxpr"],
        ins,
        site.eqn.invars[:n_consts],  # carry and slices change between iterations
        within=(
            *context.within,
            ControlScope(kind="scan", source=site.source, id=next(ids), length=length),
        ),
        count=None if context.count is None else context.count * length,
    )


def _enter_while(site: Site, ids: Ids) -> Iterator[Block]:
    params, context = site.eqn.params, site.context
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    carry, varies = infer_while_carry(context.axes, params, site.ins)
    condition, _ = _jax.open_jaxpr(params["cond_jaxpr"])
    scope = ControlScope(
        kind="while",
        source=site.source,
        id=next(ids),
        varies=context.axes.in_mesh_order(varies),
        predicate=_result_source(condition, site.source),
    )
    for body, first, n_consts in (
        (condition, 0, n_cond),
        (params["body_jaxpr"], n_cond, n_body),
    ):
        consts = slice(first, first + n_consts)
        yield _enter_block(
            site,
            body,
            [*site.ins[consts], *carry],
            site.eqn.invars[consts],
            within=(*context.within, scope),
            count=None,
        )


def _enter_cond(site: Site, ids: Ids) -> Iterator[Block]:
    context, branches = site.context, site.eqn.params["branches"]
    scope = ControlScope(
        kind="cond",
        source=site.source,
        id=next(ids),
        n_branches=len(branches),
        varies=context.axes.in_mesh_order(site.ins[0]),
        predicate=predicate_site(site).source,
    )
    for number, branch in enumerate(branches):
        # One scope id for all branches, so that a check can compare them.
        within = (*context.within, dataclasses.replace(scope, branch=number))
        yield _enter_block(site, branch, site.ins[1:], site.eqn.invars[1:], within=within)


def _enter_linear_solve(site: Site, ids: Ids) -> Iterator[Block]:
    """Yield the solver only: the other functions are for its derivatives."""
    lengths, jaxprs = site.eqn.params["const_lengths"], site.eqn.params["jaxprs"]
    # The operands are the constants of all functions in this order, then the right-hand sides.
    first = lengths.matvec + lengths.vecmat
    consts = slice(first, first + lengths.solve)
    rest = slice(sum(lengths), None)
    yield _enter_block(
        site,
        jaxprs.solve,
        [*site.ins[consts], *site.ins[rest]],
        [*site.eqn.invars[consts], *site.eqn.invars[rest]],
    )


def _enter_unknown(site: Site) -> Iterator[Block]:
    """Yield the jaxprs of an unknown primitive: any value may depend on any of its inputs."""
    all_axes = UNVARYING.union(*site.ins)
    for body in _jax.inner_jaxprs(site.eqn.params):
        inner, _ = _jax.open_jaxpr(body)
        yield _enter_block(site, inner, [all_axes] * len(inner.invars), (), count=None)


_ENTER_RULES = {
    "shard_map": _enter_shard_map,
    "scan": _enter_scan,
    "while": _enter_while,
    "cond": _enter_cond,
    "custom_linear_solve": _enter_linear_solve,
}


def _enter_block(
    site: Site, body: Any, ins: Sequence[AxisNames], args: Sequence[Any], **changes: Any
) -> Block:
    jaxpr, _ = _jax.open_jaxpr(body)
    # JAX drops the traceback of some equations it creates itself; the body still has its function.
    source = site.source if site.source is not UNKNOWN_LOCATION else _body_source(body)
    context = dataclasses.replace(site.context, phase=site.phase, source=source, **changes)
    return Block(jaxpr, context, ins, site, args)


def _body_source(body: Any) -> SourceLocation:
    """Return where a function passed to JAX is defined; JAX keeps no line of its call."""
    name, file, line = _jax.function_location(body)
    return (
        SourceLocation(file, line, name) if line and _jax.is_user_file(file) else UNKNOWN_LOCATION
    )


# ------------------------------------------------------------------------ predicates of branches

# JAX turns a predicate into an index and clamps it; the user's line is the one before these.
_INDEX_PRIMITIVES = frozenset(
    {"convert_element_type", "clamp", "reshape", "squeeze", "broadcast_in_dim", "pvary", "pcast"}
)


def predicate_site(cond: Site) -> Site:
    """Return the site that computes the predicate of a cond; the cond if it is an argument."""
    block, atom = cond.block, cond.eqn.invars[0]
    while True:
        origin = block.find_origin(atom)
        if origin is None:
            return cond
        definition, _ = origin
        # The predicate may come out of another shard_map, as in a backward pass.
        inside = _within_shard_map(*origin)
        if inside is not None:
            block, atom = inside
            continue
        # A clamp has literal bounds besides the index.
        operands = [a for a in definition.eqn.invars if not isinstance(a, _jax.Literal)]
        if definition.name not in _INDEX_PRIMITIVES or not operands:
            return definition
        block, atom = definition.block, operands[0]


def _within_shard_map(definition: Site, number: int) -> tuple[Block, Any] | None:
    """Return where the body of a shard_map, also one inside a jit, computes an output of it.

    A backward pass takes its predicates from the forward pass. Other calls are not entered: JAX
    traces `jnp.any` and the like once, so their equations have the line of the first call.
    """
    block = definition.inner[0] if len(definition.inner) == 1 else None
    if block is None:
        return None
    atom = block.jaxpr.outvars[number]
    if definition.name == "shard_map":
        return block, atom
    origin = block.find_origin(atom)
    return _within_shard_map(*origin) if origin is not None and origin[0].block is block else None


def _result_source(jaxpr: Any, default: SourceLocation) -> SourceLocation:
    """Return the line of the equation that computes the first output of a jaxpr."""
    for eqn in reversed(jaxpr.eqns):
        if any(var is jaxpr.outvars[0] for var in eqn.outvars):
            location = _jax.user_location(eqn)
            return SourceLocation(*location) if location else default
    return default
