"""Roles of mesh axes (data, fsdp, tensor, expert, sequence, stage), recognized by axis name.

>>> from shardlab.sharding.mesh import parse_mesh
>>> mesh_axis_roles(parse_mesh("data=4,model=8"))
{'data': ('data',), 'tensor': ('model',)}

The names are those of the scaling book, MaxText, Megatron, TorchTitan and common use, in any case.
"""

from __future__ import annotations

from functools import lru_cache

from shardlab.sharding.mesh import Mesh

# role -> names of mesh axes that have it
ROLES = {
    "data": ("data", "dp", "batch", "replica", "dp_replicate", "diloco"),
    "fsdp": ("fsdp", "fsdp_transpose", "zero", "dp_shard"),
    "tensor": (
        *("tensor", "model", "tp", "mp", "tensor_transpose", "tensor_sequence"),
        *("tensor_parallel", "model_parallel", "autoregressive"),
    ),
    "expert": ("expert", "experts", "ep"),
    "sequence": (
        *("sequence", "context", "sp", "cp", "seq"),
        *("context_autoregressive", "context_usp_ulysses"),
    ),
    "stage": ("stage", "pipeline", "pp", "pipe"),
}
# Roles whose mesh axes shard the batch. Expert axes do too: outside of the experts MaxText uses
# them as further data-parallel axes.
BATCH_ROLES = ("data", "fsdp", "expert")


def mesh_axis_roles(mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes of each role that the mesh has, in mesh order."""
    return dict(_roles_of(tuple(mesh.axis_names)))


@lru_cache(maxsize=1024)  # a search asks for the roles of the same few names 100,000 times
def _roles_of(axis_names: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(
        (role, axes)
        for role, names in ROLES.items()
        if (axes := tuple(name for name in axis_names if name.lower() in names))
    )


def batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes that shard the batch."""
    roles = mesh_axis_roles(mesh)
    names = {name for role in BATCH_ROLES for name in roles.get(role, ())}
    return tuple(name for name in mesh.axis_names if name in names)


def axis_with_same_role(name: str, mesh: Mesh) -> str | None:
    """Return the axis of the mesh that has the same role as another name.

    >>> axis_with_same_role("mp", Mesh(dp=2, fsdp=4, tensor=2))
    'tensor'
    >>> axis_with_same_role("mp", Mesh(dp=2, fsdp=4)) is None
    True
    """
    role = next((role for role, names in ROLES.items() if name.lower() in names), "")
    return next(iter(mesh_axis_roles(mesh).get(role, ())), None)
