"""Who reads a value, seen through calls: in a jit that it is handed to, or around one it leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import IDENTITY_COLLECTIVES
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.patterns.device_values import Program

# One element in, the same element out, perhaps scaled or in another dtype.
_ONE_TO_ONE = IDENTITY_COLLECTIVES | {
    "convert_element_type",
    "copy",
    "copy_p",
    "neg",
    "optimization_barrier",
}
_SCALING = frozenset({"mul", "div"})


@dataclasses.dataclass(frozen=True)
class Use:
    """An equation that reads a value, and at which of its operands."""

    site: Site
    operand: int


class Uses:
    """The readers of every value of a program."""

    def __init__(self, program: Program) -> None:
        self._at = {(site.block, id(site.eqn)): site for site in program.sites}

    def of(self, block: Block, var: Any) -> list[Use] | None:
        """Return who reads a value; None where it leaves to where nobody looks."""
        found: list[Use] = []
        for reader, operand in self._readers(block, var):
            if reader is None:
                return None
            found.append(Use(reader, operand))
        return found

    def _readers(self, block: Block, var: Any) -> Iterator[tuple[Site | None, int]]:
        for eqn in block.uses(var):
            site = self._at[block, id(eqn)]
            inner = self._body(site)
            for operand in (n for n, atom in enumerate(eqn.invars) if atom is var):
                if inner is None:
                    yield site, operand
                else:
                    yield from self._readers(inner, inner.jaxpr.invars[operand])
        if block.is_returned(var):
            yield from self._outside(block, var)

    def _outside(self, block: Block, var: Any) -> Iterator[tuple[Site | None, int]]:
        outer = block.outer
        if outer is None or called_jaxpr(outer.name, outer.eqn.params) is None:
            yield None, 0
            return
        for n, out in enumerate(block.jaxpr.outvars):
            if out is var:
                yield from self._readers(outer.block, outer.eqn.outvars[n])

    def _body(self, site: Site) -> Block | None:
        is_call = called_jaxpr(site.name, site.eqn.params) is not None
        return site.inner[0] if is_call and len(site.inner) == 1 else None

    def only_use(self, site: Site) -> Use | None:
        """Return the one reader of what a site makes, past what acts on each element alone."""
        while True:
            readers = self.of(site.block, site.eqn.outvars[0])
            if readers is None or len(readers) != 1:
                return None
            (use,) = readers
            if not _is_one_to_one(use):
                return use
            site = use.site


def _is_one_to_one(use: Use) -> bool:
    site = use.site
    if site.name in _ONE_TO_ONE:
        return True
    if site.name not in _SCALING:
        return False
    other = site.eqn.invars[1 - use.operand]
    return use.operand == 0 and isinstance(other, _jax.Literal)
