"""A training run as another framework's configuration describes it: model, mesh, workload, dtypes.

Every format is parsed once, by the module of its name, into a `RunConfig`. What a configuration
leaves to the cluster (the number of devices) comes from options: `ConfigOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from shardlab.errors import InvalidRunConfig
from shardlab.planner.model import Model
from shardlab.planner.rules.rules import Rules
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.strategy import strategy_name
from shardlab.sharding.mesh import Mesh, mesh_text

_PART_OF_ROLE = {"fsdp": "fsdp", "expert": "expert", "tensor": "tensor", "stage": "pipeline"}


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """What options beside the configuration say, as far as reading it depends on them."""

    n_devices: int | None = None
    mesh: Mesh | None = None  # in place of the configuration's
    hardware: str | None = None
    precision: str | None = None
    has_model: bool = False  # the model is named beside it, so its sizes are not needed


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run; None stands for what the configuration does not say."""

    format: str  # such as "MaxText YAML"
    source: str
    model: Model | None = None
    mesh: Mesh | None = None
    strategy: str | None = None
    rules: Rules | None = None
    hardware: str | None = None
    batch: int | None = None
    sequence: int | None = None
    microbatch: int | None = None
    remat: str | None = None
    offload: str | None = None
    offload_optimizer: bool | None = None
    loss_chunks: int | None = None
    activation_dtype: str | None = None
    flash: bool = True
    sequence_parallel: bool = True
    optimizer: str | None = None
    policy: str | None = None
    precision: str | None = None
    framework: str | None = None
    schedule: str | None = None
    settings_read: tuple[str, ...] = ()  # such as "base_emb_dim: 4096"
    settings_ignored: tuple[str, ...] = ()  # names of settings
    notes: tuple[str, ...] = ()

    @property
    def n_devices(self) -> int | None:
        """The number of devices, if there is a mesh."""
        return None if self.mesh is None else self.mesh.n_devices

    @property
    def mesh_text(self) -> str | None:
        """The mesh as text."""
        return None if self.mesh is None else mesh_text(self.mesh.shape.items())

    def to_json(self) -> dict[str, Any]:
        """Return what was read as plain data."""
        model = None if self.model is None else self.model.name
        fields = ("format", "source", "strategy", "hardware", "batch", "sequence", "microbatch")
        more = (
            "offload",
            "offload_optimizer",
            "loss_chunks",
            "remat",
            "optimizer",
            "policy",
            "precision",
            "framework",
            "schedule",
        )
        values = {name: getattr(self, name) for name in (*fields, *more)}
        return {
            **{name: value for name, value in values.items() if value is not None},
            **({} if model is None else {"model": model}),
            **({} if self.mesh is None else {"mesh": self.mesh_text}),
            "read": list(self.settings_read),
            "ignored": list(self.settings_ignored),
            "notes": list(self.notes),
        }


def complete_mesh(
    sizes: Mapping[str, int], options: ConfigOptions, where: str, *, remaining: str
) -> Mesh:
    """Return the mesh of these sizes, of which one may be -1, on the devices of the options.

    `remaining` is the configuration's name for the devices that are left, for the error.

    >>> complete_mesh({"fsdp": -1, "tensor": 4}, ConfigOptions(n_devices=64), "x.toml",
    ...               remaining="data_parallel_shard_degree")
    Mesh(fsdp=16, tensor=4)
    """
    if options.mesh is not None:
        return options.mesh
    n_other = prod(size for size in sizes.values() if size != -1)
    n_devices = options.n_devices
    has_open_size = -1 in sizes.values()
    if n_devices is None and has_open_size:
        raise InvalidRunConfig(
            f"{remaining} takes the remaining devices, and their number is not in the file.",
            where=where,
            fix=f"add --devices {n_other * 8}, or a TPU slice such as --devices v5p-1024.",
        )
    n_total = n_other if n_devices is None else n_devices
    if n_total % n_other or (not has_open_size and n_total != n_other):
        needed = f"a multiple of {n_other:,}" if has_open_size else f"{n_other:,}"
        raise InvalidRunConfig(
            f"The sizes {mesh_text(sizes.items())} do not fit {n_total:,} devices.",
            where=where,
            fix=f"use {needed} devices, or another mesh: --mesh.",
        )
    filled = {name: n_total // n_other if size == -1 else size for name, size in sizes.items()}
    used = {name: size for name, size in filled.items() if size > 1}
    return Mesh(used or {"data": 1})


def strategy_of_mesh(mesh: Mesh, zero_stage: int = 0, *, has_wide_experts: bool = False) -> str:
    """Return the strategy that uses every axis of a mesh.

    >>> strategy_of_mesh(Mesh(data=4, tensor=8, stage=2), zero_stage=1)
    'tensor+pipeline+zero1'
    """
    roles = mesh_axis_roles(mesh)
    parts = [
        part
        for role, part in _PART_OF_ROLE.items()
        if any(mesh.shape[name] > 1 for name in roles.get(role, ()))
    ]
    if has_wide_experts:
        parts = [*(part for part in parts if part != "expert"), "wide-expert"]
    has_replicas = any(mesh.shape[name] > 1 for name in batch_axes(mesh))
    return strategy_name(parts, zero_stage if has_replicas else 0)


def count_batch_shards(mesh: Mesh) -> int:
    """Return over how many devices the batch is sharded."""
    return prod(mesh.shape[name] for name in batch_axes(mesh))


@dataclass(frozen=True, kw_only=True)
class ExpertSplit:
    """The sizes of a mesh with an expert axis, and how experts are sharded over it."""

    sizes: dict[str, int]
    is_wide: bool = False  # experts are sharded over tensor axes too, each as a whole
    note: str = ""  # what does not fit

    @property
    def mesh(self) -> Mesh:
        """The mesh, without axes of size 1."""
        used = {name: size for name, size in self.sizes.items() if size > 1}
        return Mesh(used or {"data": 1})


def split_experts(
    sizes: dict[str, int], n_experts: int, axis: str, *, expert_tensor: int = 0
) -> ExpertSplit:
    """Return the sizes with an expert axis taken out of `axis`.

    Megatron and torchtitan place the experts of a layer on the devices of data parallelism, so an
    expert axis is a part of that axis. With an expert tensor size of 1 the group also spans the
    tensor ranks, and so it does if it is larger than data parallelism.

    >>> split_experts({"data": 32, "tensor": 2}, 8, "data").sizes
    {'data': 4, 'expert': 8, 'tensor': 2}
    >>> wide = split_experts({"data": 16, "tensor": 2}, 32, "data", expert_tensor=1)
    >>> wide.sizes, wide.is_wide
    ({'data': 1, 'expert': 16, 'tensor': 2}, True)
    """
    n_data, n_tensor = sizes[axis], sizes.get("tensor", 1)
    if n_experts <= 1:
        return ExpertSplit(sizes=sizes)
    is_wide = n_tensor > 1 and (expert_tensor == 1 or n_data % n_experts > 0)
    n_here = n_experts // n_tensor if is_wide else n_experts
    if is_wide and n_experts % n_tensor == 0 and n_data % n_here == 0:
        return ExpertSplit(sizes=_with_expert_axis(sizes, axis, n_here), is_wide=True)
    n_here = n_experts if n_data % n_experts == 0 else n_data
    note = ""
    if is_wide or n_here != n_experts:
        sharded = ", with experts sharded over tensor too" if n_tensor > 1 else ""
        note = (
            f"Expert parallelism of {n_experts} on {n_data} devices of data parallelism and "
            f"{n_tensor} of tensor parallelism cannot be written as a mesh: counted as "
            f"expert={n_here}{sharded}."
        )
    return ExpertSplit(sizes=_with_expert_axis(sizes, axis, n_here), note=note)


def _with_expert_axis(sizes: Mapping[str, int], axis: str, n_experts: int) -> dict[str, int]:
    split: dict[str, int] = {}
    for name, size in sizes.items():
        split[name] = size // n_experts if name == axis else size
        if name == axis:
            split["expert"] = n_experts
    return split
