"""Programs that JAX traces but rejects when it compiles.

- `rejected` (see `tracing/rejected_programs.py`), families `permutation`, `permutation_range` and
  `twice`, with the message that JAX has for them.
- `ppermute_axis_order`: a ppermute over several mesh axes in another order than the mesh's. Facts:
  `axes` as written, `mesh_order`, and `rule`: what this version of JAX does with it ("mesh": uses
  mesh order; "written": uses the order as written; "refused").
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter import shard_boundary
from shardlab.simulator.interpreter.rules.collectives import collective_axes
from shardlab.tracing.jaxpr_walk import Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import WalkedProgram


def find_compile_errors(program: WalkedProgram) -> Iterator[ProgramPattern]:
    """Yield a pattern for each equation that cannot be compiled."""
    for site in program.sites:
        if site.name.startswith("ppermute") and "perm" in site.eqn.params:
            yield from _check_permutation(site)
        elif site.name == "shard_map":
            yield from _check_duplicate_axes(site)


def _check_permutation(site: Site) -> Iterator[ProgramPattern]:
    pairs = [(int(source), int(destination)) for source, destination in site.eqn.params["perm"]]
    sources, destinations = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    n_devices = site.context.axes.size(collective_axes(site.eqn.params))
    if _duplicates(sources) or _duplicates(destinations):
        message = f"ppermute sources and destinations must be unique, got {tuple(pairs)}."
        yield _rejection(site, "permutation", message)
    elif max((*sources, *destinations), default=0) >= n_devices:
        yield _rejection(site, "permutation_range", "IndexError: list index out of range")


def _check_duplicate_axes(site: Site) -> Iterator[ProgramPattern]:
    for spec in (*site.eqn.params["in_specs"], *site.eqn.params["out_specs"]):
        names = [name for entry in shard_boundary.spec_entries(spec) for name in entry]
        for name in _duplicates(names):
            # JAX's text; shard_map itself does not check, the NamedSharding it lowers to does.
            message = (
                "A single NamedSharding spec specification can map every mesh axis to at most one "
                f"positional dimension, but {spec} has duplicate entries for `{name}`"
            )
            yield _rejection(site, "twice", message)
            return


def _duplicates(items: Sequence[Any]) -> list[Any]:
    return [item for item, count in collections.Counter(items).items() if count > 1]


def _rejection(site: Site, family: str, message: str) -> ProgramPattern:
    facts = {"family": family, "message": message, "error": "ValueError"}
    return ProgramPattern("rejected", site.source, facts)


def find_ppermute_axis_order(program: WalkedProgram) -> Iterator[ProgramPattern]:
    """Yield a pattern for each ppermute whose axes are not in mesh order."""
    for site in program.sites:
        # An asynchronous ppermute is a pair of equations; the start has the axes.
        if not site.name.startswith("ppermute") or site.name.endswith("_done"):
            continue
        axes = collective_axes(site.eqn.params)
        mesh_order = site.context.axes.in_mesh_order(axes)
        if mesh_order != tuple(axes):
            facts = {"axes": axes, "mesh_order": mesh_order, "rule": _jax.ppermute_order()}
            yield ProgramPattern("ppermute_axis_order", site.source, facts)
