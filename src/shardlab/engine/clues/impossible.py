"""What JAX accepts when it traces and refuses when it compiles.

Makes clues of the kind `refused` (see `engine/refusals.py`), families `permutation`,
`permutation_range` and `twice`, in the words that JAX has for them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from shardlab.engine import boundary
from shardlab.engine.clues.values import Program
from shardlab.engine.rules.collectives import collective_axes
from shardlab.engine.walk import Site
from shardlab.records.observation import Clue


def impossible(program: Program) -> Iterator[Clue]:
    """Yield a clue for each equation that could never be compiled."""
    for site in program.sites:
        if site.name.startswith("ppermute") and "perm" in site.eqn.params:
            yield from _permutation(site)
        elif site.name == "shard_map":
            yield from _specs(site)


def _permutation(site: Site) -> Iterator[Clue]:
    pairs = [(int(a), int(b)) for a, b in site.eqn.params["perm"]]
    senders, receivers = [a for a, _ in pairs], [b for _, b in pairs]
    if _repeated(senders) or _repeated(receivers):
        words = f"ppermute sources and destinations must be unique, got {tuple(pairs)}."
        yield _clue(site, "permutation", words)
    elif max((*senders, *receivers), default=0) >= site.place.axes.size(
        collective_axes(site.eqn.params)
    ):
        yield _clue(site, "permutation_range", "IndexError: list index out of range")


def _specs(site: Site) -> Iterator[Clue]:
    for spec in (*site.eqn.params["in_specs"], *site.eqn.params["out_specs"]):
        names = [name for entry in boundary.entries(spec) for name in entry]
        for name in _repeated(names):
            words = (
                "A single NamedSharding spec specification can map every mesh axis to at most one "
                f"positional dimension, but {spec} has duplicate entries for `{name}`"
            )
            yield _clue(site, "twice", words)
            return


def _repeated(items: Sequence[Any]) -> list[Any]:
    return [item for item, n in collections.Counter(items).items() if n > 1]


def _clue(site: Site, family: str, words: str) -> Clue:
    return Clue("refused", site.source, {"family": family, "words": words, "error": "ValueError"})
