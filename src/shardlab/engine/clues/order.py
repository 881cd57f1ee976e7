"""A ppermute over several mesh axes in another order than that of the mesh.

Makes the clue `ppermute_order`. Its facts: `axes` as written, `mesh_order`, and `rule`: what this
JAX does with it ("mesh": takes the order of the mesh; "written": does as told; "refused").
"""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.engine import _jax
from shardlab.engine.clues.values import Program
from shardlab.engine.rules.collectives import collective_axes
from shardlab.records.observation import Clue


def ppermute_orders(program: Program) -> Iterator[Clue]:
    """Yield a clue for each ppermute whose axes are not in the order of the mesh."""
    for site in program.sites:
        if not site.name.startswith("ppermute") or site.name.endswith("_done"):
            continue
        written = collective_axes(site.eqn.params)
        ordered = site.place.axes.ordered(written)
        if ordered != tuple(written):
            facts = {"axes": written, "mesh_order": ordered, "rule": _jax.ppermute_order()}
            yield Clue("ppermute_order", site.source, facts)
