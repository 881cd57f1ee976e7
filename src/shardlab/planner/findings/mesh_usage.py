"""Is there a mesh axis that cuts nothing?

Are there kv heads enough for the tensor axis?

Is the embedding cut so that every lookup gathers?

Measured with XLA (JAX 0.10 and 0.12, docs/findings/plan.embedding_sharding.md): a vocabulary cut over a mesh
axis that cuts the batch too makes every device compute rows for the whole batch, or gather the
table. Cut over a tensor axis, or along the embedding, a lookup moves the device's own rows alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import gcd, prod

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.codes import finding
from shardlab.planner.memory.batch_shards import Share, shares_of
from shardlab.planner.plan import Plan, PlanRow
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.strategies.axis_roles import ROLES, batch_axes, mesh_axis_roles
from shardlab.planner.strategies.strategy import parse_strategy, strategy_name
from shardlab.sharding.mesh import Mesh

_WHAT = {"tensor": "heads", "pipeline": "layers"}
_PARTS = {"tensor": "tensor", "stage": "pipeline"}  # role -> part of a strategy that cuts over it


def idle(plan: Plan, asked: PlanRequest) -> list[Finding]:
    """Return one finding for all mesh axes that cut nothing, with what could use them."""
    if not (names := idle_axes(plan.rows, asked.mesh)):
        return []
    n = prod(asked.mesh.shape[name] for name in names)
    axes = " and ".join(f"'{name}'={asked.mesh.shape[name]}" for name in names)
    subject, verb = ("Mesh axis", "cuts") if len(names) == 1 else ("Mesh axes", "cut")
    held = bytes_text(plan.bytes_per_device)
    return [
        finding(
            "plan.unused_mesh_axis",
            f"{subject} {axes} {verb} nothing, neither tensors nor the batch: {n:,} devices each "
            f"hold the same {held}, and compute the same.",
            f"{_use(names, asked)}, or a mesh without {'it' if len(names) == 1 else 'them'}.",
            details={"mesh_axes": list(names), "copies": n},
        )
    ]


def idle_axes(rows: Iterable[PlanRow], mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes that no spec names, and whose names do not say that they cut tokens."""
    roles = mesh_axis_roles(mesh)
    working = {*batch_axes(mesh), *roles.get("sequence", ())}
    left = [name for name, size in mesh.shape.items() if size > 1 and name not in working]
    if not left:
        return ()
    used = _used(rows)
    return tuple(name for name in left if name not in used)


def _used(rows: Iterable[PlanRow]) -> set[str]:
    return {name for row in rows for held in row.held for name in held.spec.mesh_axes}


def _use(names: tuple[str, ...], asked: PlanRequest) -> str:
    roles, first = mesh_axis_roles(asked.mesh), names[0]
    part = next((part for role, part in _PARTS.items() if first in roles.get(role, ())), None)
    if asked.strategy is None:
        stacked = "stacked layers" if part == "pipeline" else "tensors"
        return f"rules that cut {stacked} over '{first}'"
    strategy = parse_strategy(asked.strategy)
    if part is None:
        known = ", ".join(role for role in ROLES if role in ("data", "fsdp", "tensor"))
        return f"another name for '{first}' that says what it cuts ({known})"
    if part in strategy.parts:  # it is meant to, and could not: plan.unsharded says why
        return f"a size of '{first}' that divides the {_WHAT[part]}"
    return f"strategy {strategy_name([*strategy.parts, part], strategy.zero_stage)}"


def kv_heads(plan: Plan, asked: PlanRequest) -> list[Finding]:
    """Return a finding where devices of the tensor axis cannot each have kv heads of their own.

    Latent attention has one array for all heads, and a mesh whose tensor axis cuts nothing is none.
    """
    arch, share = asked.model.architecture, shares_of(asked.mesh).tensor
    if arch is None or arch.kv_lora_rank or not arch.kv_heads % share.parts:
        return []
    names = {name for name, _ in share.axes}
    if not any(names & set(row.parameter.spec.mesh_axes) for row in plan.rows):
        return []
    rows = [row for row in plan.rows if "kv_heads" in (row.axes or ())]
    fitting = gcd(arch.kv_heads, share.parts)
    left = share.parts // fitting
    return [
        finding(
            "plan.kv_heads_replicated",
            f"There are {arch.kv_heads} kv heads for {share.parts} devices over {share}: "
            f"{_told(arch.kv_heads, share)}.",
            f"{fitting} device{'s' * (fitting > 1)} on the tensor axis and {left} times as many on "
            f"a batch axis, or kv heads repeated {left} times in the model.",
            shows=_shows(plan, rows, names),
            details={"kv_heads": arch.kv_heads, "parts": share.parts, "fitting": fitting},
        )
    ]


def _told(heads: int, share: Share) -> str:
    if heads > share.parts:
        return f"some devices have {-(-heads // share.parts)} of them and others fewer"
    if share.parts % heads:
        return "devices have parts of heads, which do not fall together with heads"
    return f"{share.parts // heads} devices share each, and hold copies of its keys and values"


def _shows(plan: Plan, rows: list[PlanRow], names: set[str]) -> tuple[str, ...]:
    """Say what becomes of the weights of keys and values, and of the cache."""
    lines = []
    whole = [row for row in rows if not names & set(row.parameter.spec.mesh_axes)]
    cut = [row for row in rows if row not in whole]
    if whole:
        held = bytes_text(sum(row.bytes_per_device for row in whole))
        lines.append(f"{whole[0].path} and others like it are not cut by it: {held} on each device")
    if cut:
        shape = list(cut[0].parameter.shard_shape)
        lines.append(
            f"{cut[0].path} is cut inside heads, {shape} on a device: attention needs them whole, "
            "so that XLA gathers them in every layer"
        )
    if cache := plan.bytes_of("kv_cache"):
        lines.append(f"the cache takes {bytes_text(cache)} on each device, copies and all")
    return tuple(lines)


_IS_LOOKUP = re.compile(r"(?:^|[./_])(?:\w*embed\w*|wte|tok_embeddings)(?:[./_]|$)", re.IGNORECASE)


def embedding(plan: Plan, asked: PlanRequest) -> list[Finding]:
    """Return a finding for each table whose vocabulary is cut by axes that cut the batch."""
    cutting = {name for name in batch_axes(asked.mesh) if asked.mesh.shape[name] > 1}
    found = []
    for row in plan.rows:
        if row.axes and "vocab" in row.axes and _IS_LOOKUP.search(row.path):
            at = row.axes.index("vocab")
            entries = row.parameter.spec.axes
            names = tuple(n for n in entries[at] if n in cutting) if at < len(entries) else ()
            if names:
                found.append(_found(row, at, names, asked))
    return found


def _found(row: PlanRow, at: int, names: tuple[str, ...], asked: PlanRequest) -> Finding:
    held, mesh = row.parameter, asked.mesh
    n_parts = prod(mesh.shape[name] for name in names)
    over = " and ".join(f"'{name}'" for name in names)
    vocab = held.shape[at]
    gathered = held.bytes_per_device // row.n_tensors * n_parts
    return finding(
        "plan.embedding_sharding",
        f"The vocabulary of '{row.path}' ({vocab:,} rows) is cut over {over}, which cuts the batch "
        f"too: no device has the rows that its own tokens ask for.",
        _better(row, at, n_parts, over, mesh),
        shows=(
            f"with more tokens than rows XLA gathers the table: {bytes_text(gathered)} on each "
            "device, beside the plan",
            f"with fewer, each device looks up the tokens of all {n_parts}, and an all-reduce adds "
            "them up",
        ),
        details={"path": row.path, "gathered_bytes": gathered, "rows": vocab},
    )


def _better(row: PlanRow, at: int, n_parts: int, over: str, mesh: Mesh) -> str:
    """Return where to cut instead, as far as sizes divide."""
    shape = row.parameter.shape
    tensor = [
        name
        for name in mesh_axis_roles(mesh).get("tensor", ())
        if mesh.shape[name] > 1 and not shape[at] % mesh.shape[name]
    ]
    rows = f"the vocabulary over '{tensor[0]}'" if tensor else "the vocabulary whole"
    others = [size for axis, size in enumerate(shape) if axis != at]
    if any(size and not size % n_parts for size in others):
        return f"{rows}, and the embedding axis over {over}."
    return f"{rows}: {n_parts} does not divide the embedding axis ({', '.join(map(str, others))})."
