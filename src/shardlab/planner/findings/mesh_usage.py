"""Is every mesh axis used, and used well: unused axes, kv heads, embedding tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import gcd, prod

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.plan_finding_codes import make_finding
from shardlab.planner.memory.workload_shards import AxisShards, workload_shards
from shardlab.planner.plan import Plan, PlanRow
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.strategies.axis_roles import ROLES, batch_axes, mesh_axis_roles
from shardlab.planner.strategies.strategy import strategy_name
from shardlab.sharding.mesh import Mesh

_STRATEGY_PARTS = {"tensor": "tensor", "stage": "pipeline"}  # role -> part that shards over it
_SHARDED_UNITS = {"tensor": "heads", "pipeline": "layers"}  # part -> what it divides
# A table for lookups, by its path; an output table (lm_head) is multiplied, not looked up.
_LOOKUP_TABLE = re.compile(
    r"(?:^|[./_])(?:\w*embed\w*|wte|tok_embeddings)(?:[./_]|$)", re.IGNORECASE
)


def find_unused_axes(plan: Plan, request: PlanRequest) -> list[Finding]:
    """Return one finding for all mesh axes that shard nothing, with what could use them."""
    if not (names := unused_axes(plan.rows, request.mesh)):
        return []
    n_devices = prod(request.mesh.shape[name] for name in names)
    axes = " and ".join(f"'{name}'={request.mesh.shape[name]}" for name in names)
    subject = "Mesh axis" if len(names) == 1 else "Mesh axes"
    verb, pronoun = ("shards", "it") if len(names) == 1 else ("shard", "them")
    return [
        make_finding(
            "plan.unused_mesh_axis",
            f"{subject} {axes} {verb} nothing, neither tensors nor the batch: {n_devices:,} "
            f"devices store the same {bytes_text(plan.bytes_per_device)} and compute the same.",
            f"{_axis_use(names, request)}, or a mesh without {pronoun}.",
            details={"mesh_axes": list(names), "copies": n_devices},
        )
    ]


def unused_axes(rows: Iterable[PlanRow], mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes that no spec uses and that do not shard tokens, by their names."""
    token_axes = {*batch_axes(mesh), *mesh_axis_roles(mesh).get("sequence", ())}
    candidates = [name for name, size in mesh.shape.items() if size > 1 and name not in token_axes]
    if not candidates:
        return ()
    used = {name for row in rows for array in row.arrays for name in array.spec.mesh_axes}
    return tuple(name for name in candidates if name not in used)


def _axis_use(names: tuple[str, ...], request: PlanRequest) -> str:
    """Return what could use the first of these mesh axes."""
    roles, first = mesh_axis_roles(request.mesh), names[0]
    part = next(
        (part for role, part in _STRATEGY_PARTS.items() if first in roles.get(role, ())), None
    )
    strategy = request.strategy
    if strategy is None:
        tensors = "stacked layers" if part == "pipeline" else "tensors"
        return f"rules that shard {tensors} over '{first}'"
    if part is None:
        example_roles = ", ".join(role for role in ROLES if role in ("data", "fsdp", "tensor"))
        return f"another name for '{first}' that says what it shards ({example_roles})"
    if part in strategy.parts:  # the strategy tried: plan.unsharded says why it failed
        return f"a size of '{first}' that divides the {_SHARDED_UNITS[part]}"
    return f"strategy {strategy_name([*strategy.parts, part], strategy.zero_stage)}"


def find_replicated_kv_heads(plan: Plan, request: PlanRequest) -> list[Finding]:
    """Return a finding if devices of the tensor axis cannot each have kv heads of their own.

    Multi-head latent attention has one array for all heads, and is not concerned.
    """
    arch, shards = request.model.architecture, workload_shards(request.mesh).tensor
    if arch is None or arch.kv_lora_rank or not arch.kv_heads % shards.n_shards:
        return []
    tensor_axes = {name for name, _ in shards.axes}
    if all(tensor_axes.isdisjoint(row.parameter.spec.mesh_axes) for row in plan.rows):
        return []  # the tensor axis shards nothing: that is another finding
    rows = [row for row in plan.rows if "kv_heads" in (row.dim_names or ())]
    # The largest tensor axis that divides both the heads and the devices.
    divisible = gcd(arch.kv_heads, shards.n_shards)
    factor = shards.n_shards // divisible
    return [
        make_finding(
            "plan.kv_heads_replicated",
            f"There are {arch.kv_heads} kv heads for {shards.n_shards} devices over {shards}: "
            f"{_kv_heads_text(arch.kv_heads, shards)}.",
            f"{divisible} device{'s' * (divisible > 1)} on the tensor axis and {factor} times as "
            f"many on a batch axis, or repeat the kv heads {factor} times in the model.",
            shows=_kv_heads_lines(plan, rows, tensor_axes),
            details={
                "kv_heads": arch.kv_heads,
                "parts": shards.n_shards,
                "fitting": divisible,
            },
        )
    ]


def _kv_heads_text(n_heads: int, shards: AxisShards) -> str:
    if n_heads > shards.n_shards:
        return f"some devices have {-(-n_heads // shards.n_shards)} of them and others fewer"
    if shards.n_shards % n_heads:
        return "shards do not align with heads"
    n_replicas = shards.n_shards // n_heads
    return f"{n_replicas} devices hold replicas of the keys and values of each"


def _kv_heads_lines(plan: Plan, rows: list[PlanRow], tensor_axes: set[str]) -> tuple[str, ...]:
    """Return the effect on the weights of keys and values, and on the cache."""
    replicated = [row for row in rows if tensor_axes.isdisjoint(row.parameter.spec.mesh_axes)]
    sharded = [row for row in rows if row not in replicated]
    lines = []
    if replicated:
        stored = bytes_text(sum(row.bytes_per_device for row in replicated))
        lines.append(
            f"{replicated[0].path} and others like it are not sharded over it: {stored} per device"
        )
    if sharded:
        # Measured on 8 devices with 4 kv heads (JAX 0.10 and 0.12, tests/oracle/test_compiled.py):
        # one all-gather of the keys and one of the values per layer.
        shard = list(sharded[0].parameter.shard_shape)
        lines.append(
            f"{sharded[0].path} is sharded inside heads, {shard} per device: attention needs full "
            "heads, so XLA all-gathers them in every layer"
        )
    if cache := plan.bytes_of("kv_cache"):
        lines.append(f"the KV cache takes {bytes_text(cache)} per device, replicas included")
    return tuple(lines)


def find_embedding_sharding(plan: Plan, request: PlanRequest) -> list[Finding]:
    """Return a finding for each table whose vocabulary is sharded over axes of the batch.

    Measured with XLA (JAX 0.10 and 0.12, docs/findings/plan.embedding_sharding.md): each device
    then looks up rows for the whole batch, or gathers the table. Sharded over a tensor axis, or
    along the embedding, a lookup moves only the rows of the device's own tokens.
    """
    batch = {name for name in batch_axes(request.mesh) if request.mesh.shape[name] > 1}
    findings = []
    for row in plan.rows:
        if row.dim_names and "vocab" in row.dim_names and _LOOKUP_TABLE.search(row.path):
            dim = row.dim_names.index("vocab")
            entries = row.parameter.spec.axes
            axes = entries[dim] if dim < len(entries) else ()
            if names := tuple(name for name in axes if name in batch):
                findings.append(_embedding_finding(row, dim, names, request.mesh))
    return findings


def _embedding_finding(row: PlanRow, vocab_dim: int, names: tuple[str, ...], mesh: Mesh) -> Finding:
    table = row.parameter
    n_shards = prod(mesh.shape[name] for name in names)
    axes = " and ".join(f"'{name}'" for name in names)
    n_rows = table.shape[vocab_dim]
    # One table at a time, over the batch axes only: tensor axes still shard it.
    gathered = table.bytes_per_device // row.n_tensors * n_shards
    return make_finding(
        "plan.embedding_sharding",
        f"The vocabulary of '{row.path}' ({n_rows:,} rows) is sharded over {axes}, which also "
        f"shards the batch: no device has the rows that its own tokens need.",
        _embedding_fix(row, vocab_dim, n_shards, axes, mesh),
        shows=(
            f"with more tokens than rows XLA gathers the table: {bytes_text(gathered)} per device, "
            "not counted in the plan",
            f"with fewer, each device looks up the tokens of all {n_shards} and an all-reduce adds "
            "the results",
        ),
        details={"path": row.path, "gathered_bytes": gathered, "rows": n_rows},
    )


def _embedding_fix(row: PlanRow, vocab_dim: int, n_shards: int, axes: str, mesh: Mesh) -> str:
    """Return how to shard the table instead, if sizes are divisible."""
    shape = row.parameter.shape
    tensor_axes = [
        name
        for name in mesh_axis_roles(mesh).get("tensor", ())
        if mesh.shape[name] > 1 and not shape[vocab_dim] % mesh.shape[name]
    ]
    vocab = "replicate the vocabulary"
    if tensor_axes:
        vocab = f"shard the vocabulary over '{tensor_axes[0]}'"
    sizes = [size for dim, size in enumerate(shape) if dim != vocab_dim]
    if any(size and not size % n_shards for size in sizes):
        return f"{vocab}, and shard the embedding dimension over {axes}."
    embedding = ", ".join(map(str, sizes))
    return f"{vocab}: the embedding dimension ({embedding}) is not divisible by {n_shards}."
