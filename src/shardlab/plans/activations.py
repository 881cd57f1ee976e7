"""Activations: what a training step keeps for its backward pass, by formula."""

from __future__ import annotations

from shardlab.layouts.mesh import Mesh
from shardlab.plans.model import Model
from shardlab.plans.workload import Workload
from shardlab.records.plan import Item


def activation_items(model: Model, mesh: Mesh, workload: Workload) -> tuple[Item, ...]:
    """Return what one device keeps, each item with its formula."""
    return ()
