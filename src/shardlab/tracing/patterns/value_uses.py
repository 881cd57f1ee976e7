"""The equations that read a value, followed into and out of calls such as jit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import IDENTITY_COLLECTIVES
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.patterns.device_values import WalkedProgram

# Each output element is the input element, at most with another sign or dtype.
_ELEMENTWISE_IDENTITY = IDENTITY_COLLECTIVES | {
    "convert_element_type",
    "copy",
    "copy_p",
    "neg",
    "optimization_barrier",
}
_SCALING = frozenset({"mul", "div"})


@dataclasses.dataclass(frozen=True)
class Reader:
    """An equation that reads a value, and the operand at which it does."""

    site: Site
    operand: int


class ReaderIndex:
    """Finds the readers of every value of a program."""

    def __init__(self, program: WalkedProgram) -> None:
        self._sites = {(site.block, id(site.eqn)): site for site in program.sites}

    def find_readers(self, block: Block, var: Any) -> list[Reader] | None:
        """Return who reads a value; None if it leaves the program, a loop or a shard_map."""
        readers: list[Reader] = []
        for site, operand in self._iterate_readers(block, var):
            if site is None:
                return None
            readers.append(Reader(site, operand))
        return readers

    def _iterate_readers(self, block: Block, var: Any) -> Iterator[tuple[Site | None, int]]:
        for eqn in block.readers_of(var):
            site = self._sites[block, id(eqn)]
            is_call = called_jaxpr(site.name, site.eqn.params) is not None
            body = site.inner[0] if is_call and len(site.inner) == 1 else None
            for operand in (index for index, atom in enumerate(eqn.invars) if atom is var):
                if body is None:
                    yield site, operand
                else:
                    yield from self._iterate_readers(body, body.jaxpr.invars[operand])
        # A value may be both used inside and returned.
        if block.is_returned(var):
            yield from self._readers_of_result(block, var)

    def _readers_of_result(self, block: Block, var: Any) -> Iterator[tuple[Site | None, int]]:
        outer = block.outer
        if outer is None or called_jaxpr(outer.name, outer.eqn.params) is None:
            yield None, 0
            return
        for index, out in enumerate(block.jaxpr.outvars):
            if out is var:
                yield from self._iterate_readers(outer.block, outer.eqn.outvars[index])

    def find_only_reader(self, site: Site) -> Reader | None:
        """Return the only reader of a result, past casts and multiplications by constants."""
        while True:
            readers = self.find_readers(site.block, site.eqn.outvars[0])
            if readers is None or len(readers) != 1:
                return None
            (reader,) = readers
            if not _keeps_elements(reader):
                return reader
            site = reader.site


def _keeps_elements(reader: Reader) -> bool:
    site = reader.site
    if site.name in _ELEMENTWISE_IDENTITY:
        return True
    if site.name not in _SCALING:
        return False
    factor = site.eqn.invars[1 - reader.operand]
    return reader.operand == 0 and isinstance(factor, _jax.Literal)
