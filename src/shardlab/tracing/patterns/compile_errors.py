"""What JAX accepts when it traces and refuses when it compiles.

Makes clues of the kind `refused` (see `engine/refusals.py`), families `permutation`,
`permutation_range` and `twice`, in the words that JAX has for them.

A ppermute over several mesh axes in another order than that of the mesh.

Makes the clue `ppermute_order`. Its facts: `axes` as written, `mesh_order`, and `rule`: what this
JAX does with it ("mesh": takes the order of the mesh; "written": does as told; "refused").
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.rules.collectives import collective_axes
from shardlab.tracing.jaxpr_walk import Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import Program


def impossible(program: Program) -> Iterator[ProgramPattern]:
    """Yield a clue for each equation that could never be compiled."""
    for site in program.sites:
        if site.name.startswith("ppermute") and "perm" in site.eqn.params:
            yield from _permutation(site)
        elif site.name == "shard_map":
            yield from _specs(site)


def _permutation(site: Site) -> Iterator[ProgramPattern]:
    pairs = [(int(a), int(b)) for a, b in site.eqn.params["perm"]]
    senders, receivers = [a for a, _ in pairs], [b for _, b in pairs]
    if _repeated(senders) or _repeated(receivers):
        words = f"ppermute sources and destinations must be unique, got {tuple(pairs)}."
        yield _clue(site, "permutation", words)
    elif max((*senders, *receivers), default=0) >= site.place.axes.size(
        collective_axes(site.eqn.params)
    ):
        yield _clue(site, "permutation_range", "IndexError: list index out of range")


def _specs(site: Site) -> Iterator[ProgramPattern]:
    for spec in (*site.eqn.params["in_specs"], *site.eqn.params["out_specs"]):
        names = [name for entry in boundary.spec_entries(spec) for name in entry]
        for name in _repeated(names):
            words = (
                "A single NamedSharding spec specification can map every mesh axis to at most one "
                f"positional dimension, but {spec} has duplicate entries for `{name}`"
            )
            yield _clue(site, "twice", words)
            return


def _repeated(items: Sequence[Any]) -> list[Any]:
    return [item for item, n in collections.Counter(items).items() if n > 1]


def _clue(site: Site, family: str, words: str) -> ProgramPattern:
    return ProgramPattern(
        "refused", site.source, {"family": family, "words": words, "error": "ValueError"}
    )


def ppermute_orders(program: Program) -> Iterator[ProgramPattern]:
    """Yield a clue for each ppermute whose axes are not in the order of the mesh."""
    for site in program.sites:
        if not site.name.startswith("ppermute") or site.name.endswith("_done"):
            continue
        written = collective_axes(site.eqn.params)
        ordered = site.place.axes.in_mesh_order(written)
        if ordered != tuple(written):
            facts = {"axes": written, "mesh_order": ordered, "rule": _jax.ppermute_order()}
            yield ProgramPattern("ppermute_order", site.source, facts)
