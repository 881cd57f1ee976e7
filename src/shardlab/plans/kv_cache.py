"""The cache of keys and values that inference keeps for every token."""

from __future__ import annotations

from shardlab.layouts.mesh import Mesh
from shardlab.plans.model import Model
from shardlab.plans.workload import Workload
from shardlab.records.plan import Item


def cache_items(model: Model, mesh: Mesh, workload: Workload) -> tuple[Item, ...]:
    """Return what one device keeps, with the formula."""
    return ()
