"""A mesh that the user names: what it takes, and why it is not the fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from shardlab.errors import InvalidSize, UnknownMeshAxis
from shardlab.planner.advice.advice import Advice, Candidate
from shardlab.planner.advice.candidate_ranking import compare_with_best, rank_candidates
from shardlab.planner.advice.candidate_search import MESH_AXES, CandidateSearch
from shardlab.planner.advice.mesh_conventions import MeshConventions
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.sharding.mesh import parse_mesh

# role of a mesh axis -> the axis of a search
_SEARCH_AXES = {"sequence": "context"}


def parse_requested_mesh(mesh: Any, n_devices: int) -> Mapping[str, int]:
    """Return the sizes of a mesh by the axes of the search; axis names are those of any framework.

    >>> parse_requested_mesh("dp=2,pp=8,tp=4", 64)
    {'data': 2, 'stage': 8, 'tensor': 4}
    """
    parsed = parse_mesh(mesh)
    roles = mesh_axis_roles(parsed)
    known = {name for names in roles.values() for name in names}
    if unknown := [name for name in parsed.axis_names if name not in known]:
        raise UnknownMeshAxis(
            f"The role of mesh axis {unknown[0]!r:.80} is unknown.",
            where=f"mesh {parsed}",
            fix="names such as data, fsdp, tensor, expert, context or stage.",
        )
    if parsed.n_devices != n_devices:
        product = " * ".join(map(str, parsed.shape.values()))
        raise InvalidSize(
            f"The mesh {parsed} has {product} = {parsed.n_devices:,} devices, not {n_devices:,}.",
            fix=f"a mesh of {n_devices:,} devices, or --devices {parsed.n_devices}.",
        )
    sizes = {
        _SEARCH_AXES.get(role, role): prod(parsed.shape[name] for name in names)
        for role, names in roles.items()
    }
    # Outermost first, as in the search: tensor parallelism stays within a node.
    return {name: sizes[name] for name in MESH_AXES if name in sizes}


def find_requested(search: CandidateSearch, sizes: Mapping[str, int], advice: Advice) -> Candidate:
    """Return the best way to use a mesh, compared with the best of all meshes."""
    conventions = MeshConventions(hardware=search.hardware, n_devices=advice.n_devices)
    ranked, others = rank_candidates(search.list_candidates(sizes), conventions)
    if not ranked:
        return others[0]
    requested = replace(ranked[0], reason="", loss_kind="")
    if advice.best is None or requested.mesh == advice.best.mesh:
        return replace(requested, reason="the best")
    compared = compare_with_best(requested, advice.best, conventions)
    if requested.mesh in {candidate.mesh for candidate in (*advice.ranked, *advice.others)}:
        return compared
    return replace(compared, reason=f"{compared.reason}; not ranked: {_untried_reason(sizes)}")


def _untried_reason(sizes: Mapping[str, int]) -> str:
    """Return why the search leaves out a mesh that can be used, and what includes it."""
    if sizes.get("stage", 1) > 1 and sizes.get("fsdp", 1) > 1:
        return "fsdp inside of stages gathers their weights for every microbatch"
    options = [
        option
        for axis, option in (("stage", "--pipeline"), ("context", "--context"))
        if sizes.get(axis, 1) > 1
    ]
    return f"tried with {' and '.join(options)} only" if options else "an axis that is not tried"
