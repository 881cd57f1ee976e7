"""What a timed plan assumes where nothing is said: the defaults of the software that is assumed.

>>> from shardlab.hardware.chips import parse_hardware
>>> from shardlab.sharding.mesh import parse_mesh
>>> h100, pipeline = parse_hardware("h100"), parse_mesh("data=2,stage=8,tensor=4")
>>> workload = with_timing_defaults(
...     Workload(batch=128, sequence=8192), pipeline, mesh_framework(h100, pipeline),
...     is_remat_given=False)
>>> workload.remat, workload.microbatch
('selective', 2)

A pipeline without microbatches would wait most of the time, so each stage computes one sequence at
once, as with Megatron's `--micro-batch-size 1`. Remat is that of the framework: MaxText's default
`remat_policy: full`, and selective activation checkpointing in torchtitan and Megatron.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from shardlab.hardware.chips import Hardware
from shardlab.hardware.frameworks import Framework, default_framework
from shardlab.planner.memory.workload import Workload
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.sharding.mesh import Mesh


def mesh_framework(hardware: Hardware, mesh: Mesh) -> Framework:
    """Return the framework that is assumed on a mesh, by the roles of its axes."""
    roles = mesh_axis_roles(mesh)
    used = [role for role, names in roles.items() if any(mesh.shape[name] > 1 for name in names)]
    return default_framework(hardware, used)


def with_timing_defaults(
    workload: Workload, mesh: Mesh, framework: Framework, *, is_remat_given: bool
) -> Workload:
    """Return the workload with a remat policy and a microbatch, where they are not given."""
    if not is_remat_given:
        workload = replace(workload, remat=framework.remat)
    stages = mesh_axis_roles(mesh).get("stage", ())
    n_shards = prod(mesh.shape[name] for name in batch_axes(mesh))
    is_pipeline = any(mesh.shape[name] > 1 for name in stages)
    if is_pipeline and workload.microbatch is None and workload.batch % n_shards == 0:
        workload = replace(workload, microbatch=n_shards)
    return workload
