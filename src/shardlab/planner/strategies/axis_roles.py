"""Roles: what a mesh axis is for, told by its name.

>>> from shardlab.sharding.mesh import parse_mesh
>>> roles_of(parse_mesh("data=4,model=8"))
{'data': ('data',), 'tensor': ('model',)}

The names are those of the scaling book, MaxText, Megatron, TorchTitan and common use, in any case.
"""

from __future__ import annotations

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
BATCH_ROLES = ("data", "fsdp", "expert")  # whose axes cut the batch


def roles_of(mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes of each role that the mesh has, in mesh order."""
    found: dict[str, tuple[str, ...]] = {}
    for role, names in ROLES.items():
        if axes := tuple(name for name in mesh.axis_names if name.lower() in names):
            found[role] = axes
    return found


def batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes that cut the batch."""
    roles = roles_of(mesh)
    names = {name for role in BATCH_ROLES for name in roles.get(role, ())}
    return tuple(name for name in mesh.axis_names if name in names)


def like(name: str, mesh: Mesh) -> str | None:
    """Return the axis of the mesh that has the role of another name.

    >>> like("mp", Mesh(dp=2, fsdp=4, tensor=2)), like("mp", Mesh(dp=2, fsdp=4))
    ('tensor', None)
    """
    role = next((role for role, names in ROLES.items() if name.lower() in names), "")
    return next(iter(roles_of(mesh).get(role, ())), None)
