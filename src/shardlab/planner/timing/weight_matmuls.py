"""The matrix products of a model's weights on one device, read off its tensors.

>>> from shardlab.planner.models.load import load_model
>>> from shardlab.planner.strategies.strategy import parse_strategy, shard_model
>>> mesh, llama = Mesh(fsdp=8, tensor=4), load_model("llama3-8b")
>>> sharded = shard_model(llama, parse_strategy("fsdp+tensor"), mesh)
>>> for product in weight_matmuls(sharded, llama.architecture, mesh)[:3]:
...     print(product.name, product.inner, product.columns, product.count)
q_proj 1024 4096 32
k_proj 256 4096 32
v_proj 256 4096 32

Shards over tensor axes stay, so they divide a product; shards over batch axes are gathered before
it. A tensor that a tensor axis does not divide is multiplied in full by each of its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.model import Architecture
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.planner.strategies.dim_meaning import dim_meanings_of
from shardlab.planner.tensor_group import LogicalAxes, TensorGroup
from shardlab.planner.timing.step_flops import is_expert
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

AS_STORED = DtypePolicy()
_STACKED_DIMS = ("layers", "experts")
# Modules that multiply with the vocabulary; an embedding of another name is only looked up.
_HEAD_MODULES = ("lm_head", "head", "output", "output_layer", "logits_dense", "unembed")
_LEAVES = ("weight", "kernel", "embedding", "scale")
# Modules by their place in a layer. `wo` is the last product of an MLP or of attention.
_ROLE_NAMES = {
    "query": ("q_proj", "wq", "query", "q", "q_b_proj", "wq_b"),
    "key": ("k_proj", "wk", "key", "k"),
    "value": ("v_proj", "wv", "value", "v"),
    "qkv": ("qkv_proj", "qkv", "Wqkv", "query_key_value", "c_attn"),
    "out": ("o_proj", "out_proj", "out", "o", "dense"),
    "gate": ("gate_proj", "gate_up_proj", "w1", "wi_0"),
    "up": ("up_proj", "w3", "fc1", "c_fc", "wi", "wi_1", "up", "dense_h_to_4h"),
    "down": ("down_proj", "w2", "fc2", "down", "dense_4h_to_h"),
}
_ROLES = {name: role for role, names in _ROLE_NAMES.items() for name in names}


@dataclass(frozen=True, kw_only=True)
class WeightMatmul:
    """Equal products of one device with weights [inner, columns].

    `count` of them are computed for each token: once per layer, of experts once per layer and
    expert on the device.
    """

    name: str
    inner: int
    columns: int
    count: int
    weight_bits: int = 16  # as stored: what decoding reads
    n_experts: int = 0  # of one layer on the device; 0: not the weights of experts
    # Tensor axes that shard the experts and not each of them: their devices have different tokens.
    n_token_shards: int = 1
    is_head: bool = False  # on the last pipeline stage only
    role: str = ""  # query, key, value, qkv, out, gate, up, down; empty if the name is not known


def weight_matmuls(
    sharded_groups: Iterable[ShardedGroup],
    arch: Architecture,
    mesh: Mesh,
    policy: DtypePolicy = AS_STORED,
) -> tuple[WeightMatmul, ...]:
    """Return the matrix products of one device with weights, those of all layers together."""
    roles = mesh_axis_roles(mesh)
    tensor_axes, expert_axes = roles.get("tensor", ()), roles.get("expert", ())
    products = []
    for sharded in sharded_groups:
        dims = _product_dims(sharded.group)
        is_head = "vocab" in (dim_meanings_of(sharded.group) or ())
        if dims is None or (is_head and not _multiplies_vocabulary(sharded.group, arch)):
            continue
        sizes = _local_sizes(sharded.group.shape, sharded.spec, mesh, tensor_axes)
        count = sharded.group.n_tensors * prod(
            size for size, meaning in zip(sizes, dims, strict=True) if meaning in _STACKED_DIMS
        )
        n_experts, n_token_shards = 0, 1
        if arch.experts and is_expert(sharded.group):
            n_expert_shards = prod(mesh.shape[name] for name in expert_axes)
            # `_local_sizes` has divided the experts by tensor axes already.
            n_token_shards = _n_expert_shards(sharded.spec, dims, mesh, tensor_axes)
            count //= n_expert_shards
            n_experts = arch.experts // n_expert_shards // n_token_shards
        inner, *columns = (
            size for size, meaning in zip(sizes, dims, strict=True) if meaning not in _STACKED_DIMS
        )
        products.append(
            WeightMatmul(
                name=_module_name(sharded.group),
                inner=inner,
                columns=prod(columns),
                count=count,
                weight_bits=policy.parameter(sharded.group.dtype).bits,
                n_experts=n_experts,
                n_token_shards=n_token_shards,
                is_head=is_head,
                role=_role(_module_name(sharded.group), dims),
            )
        )
    return tuple(products)


def _n_expert_shards(spec: Spec, dims: LogicalAxes, mesh: Mesh, tensor_axes: Sequence[str]) -> int:
    """Return into how many shards tensor axes divide the experts themselves."""
    return prod(
        mesh.shape[name]
        for names, meaning in zip(spec.axes, dims, strict=False)
        if meaning == "experts"
        for name in names
        if name in tensor_axes
    )


def _role(name: str, dims: LogicalAxes) -> str:
    if name in ("wo", "c_proj"):
        return "down" if "mlp" in dims else "out"
    return _ROLES.get(name, "")


def _product_dims(group: TensorGroup) -> LogicalAxes | None:
    """Return the meaning of each dimension; None if it is no operand (norms, biases, scales)."""
    meanings = dim_meanings_of(group) or (None,) * len(group.shape)
    n_matrix_dims = sum(meaning not in _STACKED_DIMS for meaning in meanings)
    is_position = any("pos" in part for part in group.path_parts) or "wpe" in group.name
    if n_matrix_dims < 2 or not group.is_trained or is_position or is_scale(group):
        return None
    return meanings


def _multiplies_vocabulary(group: TensorGroup, arch: Architecture) -> bool:
    return arch.tied_embeddings or _module_name(group) in _HEAD_MODULES


def _local_sizes(
    shape: tuple[int, ...], spec: Spec, mesh: Mesh, tensor_axes: Sequence[str]
) -> list[int]:
    """Return the sizes of one device's operand: only tensor axes divide it."""
    sizes = list(shape)
    for dim, names in enumerate(spec.axes):
        for name in names:
            if name in tensor_axes:
                sizes[dim] //= mesh.shape[name]
    return sizes


def _module_name(group: TensorGroup) -> str:
    """Return the last word of the path that names a module: `q_proj`, `gate`."""
    words = [word for part in group.path_parts for word in part.replace("/", ".").split(".")]
    named = [word.strip("[]'\"_") for word in words if word.strip("[]'\"_") not in ("", *_LEAVES)]
    return named[-1] if named else group.name
