"""Roles of mesh axes, recognized by name."""

from __future__ import annotations

import pytest

from shardlab.planner.strategies.axis_roles import ROLES, batch_axes, mesh_axis_roles
from shardlab.sharding.mesh import Mesh

# MaxText, src/maxtext/configs/base.yml, mesh_axes
MAXTEXT = {
    "diloco": "data",
    "data": "data",
    "stage": "stage",
    "fsdp": "fsdp",
    "fsdp_transpose": "fsdp",
    "context": "sequence",
    "context_usp_ulysses": "sequence",
    "context_autoregressive": "sequence",
    "tensor": "tensor",
    "tensor_sequence": "tensor",
    "expert": "expert",
    "autoregressive": "tensor",
}


def test_every_mesh_axis_of_maxtext_has_its_role():
    roles = mesh_axis_roles(Mesh((name, 2) for name in MAXTEXT))
    actual = {name: role for role, names in roles.items() for name in names}
    assert actual == MAXTEXT


def test_no_name_has_two_roles():
    names = [name for role_names in ROLES.values() for name in role_names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        (Mesh(model=8), ()),
        (Mesh(tensor=2, data=4), ("data",)),
        (Mesh(ep=2, fsdp=3, data=4, tp=5), ("ep", "fsdp", "data")),  # in the order of the mesh
        (Mesh(DP=4, x=3), ("DP",)),
    ],
)
def test_the_batch_is_sharded_over_data_fsdp_and_expert_axes(mesh, axes):
    assert batch_axes(mesh) == axes
