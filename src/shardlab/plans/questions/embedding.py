"""Is the embedding cut so that every lookup gathers?

Measured with XLA (JAX 0.10 and 0.12, docs/findings/plan.embedding.md): a vocabulary cut over a mesh
axis that cuts the batch too makes every device compute rows for the whole batch, or gather the
table. Cut over a tensor axis, or along the embedding, a lookup moves the device's own rows alone.
"""

from __future__ import annotations

import re
from math import prod

from shardlab.layouts.amount import memory_text
from shardlab.layouts.mesh import Mesh
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.strategies.roles import batch_axes, roles_of
from shardlab.records.finding import Finding
from shardlab.records.plan import Plan, PlanRow

_IS_LOOKUP = re.compile(r"(?:^|[./_])(?:\w*embed\w*|wte|tok_embeddings)(?:[./_]|$)", re.IGNORECASE)


def embedding(plan: Plan, asked: Asked) -> list[Finding]:
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


def _found(row: PlanRow, at: int, names: tuple[str, ...], asked: Asked) -> Finding:
    held, mesh = row.parameter, asked.mesh
    n_parts = prod(mesh.shape[name] for name in names)
    over = " and ".join(f"'{name}'" for name in names)
    vocab = held.shape[at]
    gathered = held.bytes_per_device // row.n_tensors * n_parts
    return finding(
        "plan.embedding",
        f"The vocabulary of '{row.path}' ({vocab:,} rows) is cut over {over}, which cuts the batch "
        f"too: no device has the rows that its own tokens ask for.",
        _better(row, at, n_parts, over, mesh),
        shows=(
            f"with more tokens than rows XLA gathers the table: {memory_text(gathered)} on each "
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
        for name in roles_of(mesh).get("tensor", ())
        if mesh.shape[name] > 1 and not shape[at] % mesh.shape[name]
    ]
    rows = f"the vocabulary over '{tensor[0]}'" if tensor else "the vocabulary whole"
    others = [size for axis, size in enumerate(shape) if axis != at]
    if any(size and not size % n_parts for size in others):
        return f"{rows}, and the embedding axis over {over}."
    return f"{rows}: {n_parts} does not divide the embedding axis ({', '.join(map(str, others))})."
