"""The tensors of a plan as a table: arrays as JAX prints them, by layer, largest first."""

from __future__ import annotations

from shardlab.layouts.amount import memory_text
from shardlab.records.plan import Held, Plan, PlanRow
from shardlab.render.layers import Group, groups_of, name_in, short_name
from shardlab.render.plain import plain
from shardlab.render.sheet import Column, Row, Section, Table
from shardlab.render.units import share_text


def tensors_section(plan: Plan, *, show_all: bool = False) -> Section:
    """Return the table of tensors by layer."""
    is_training = any(len(row.held) > 1 for row in plan.rows)
    rows: list[Row] = []
    for group in groups_of(plan, show_all=show_all):
        share = share_text(group.bytes_per_device, plan.bytes_per_device)
        title = f"{group.title}: {memory_text(group.bytes_per_device)}, {share}"
        rows.append(Row((), heading=plain(title)))
        rows += [_tensor_row(row, group, plan, is_training) for row in group.rows]
        rows += [_folded_row(group, is_training)] if group.folded else []
    columns = (
        Column("tensor", may_cut=True, keep=26, is_code=True, cut=short_name),
        Column("array", may_cut=True, keep=44, is_code=True),
        Column("spec", drop=9, is_code=True),
        Column("shard", drop=3, is_code=True),
        *([Column("parameter", True, drop=6)] if is_training else []),
        Column("in all" if is_training else "per device", True),
        Column("copies", True, drop=1),
        Column("wasted", True),
    )
    words = "Tensors, largest first; bytes are those of one device"
    return Section(words, Table(columns, tuple(rows)), _legend(plan))


def _legend(plan: Plan) -> tuple[str, ...]:
    """Return how an array is read, with one that the table has."""
    cut = [row for row in plan.rows if row.parameter.n_copies < plan.n_devices]
    if not cut:
        return ()
    held = min(cut, key=lambda row: (-row.bytes_per_device, row.path)).parameter
    return (plain(f"after @ stand mesh axes: {plan.array_text(held)} has the spec {held.spec}"),)


def _tensor_row(row: PlanRow, group: Group, plan: Plan, is_training: bool) -> Row:
    held = row.parameter
    wasted = row.wasted_bytes
    cells = [
        name_in(row, group),
        plan.array_text(held),
        str(held.spec),
        f"[{','.join(map(str, held.shard_shape))}]",
        *([memory_text(row.bytes_of("parameters"))] if is_training else []),
        memory_text(row.bytes_per_device),
        f"{held.n_copies:,}",
        memory_text(wasted) if wasted else "-",
    ]
    return Row(tuple(map(plain, cells)), _beside(row, plan))


def _beside(row: PlanRow, plan: Plan) -> tuple[str, ...]:
    """Return what is kept beside a parameter, where it is cut in another way."""
    own, shape = _cut(row.parameter), row.parameter.shape
    apart = [held for held in row.held[1:] if held.shape == shape and _cut(held) != own]
    arrays: dict[str, list[str]] = {}
    for held in apart:
        arrays.setdefault(plan.array_text(held), []).append(held.name)
    return tuple(plain(f"{', '.join(names)}: {array}") for array, names in arrays.items())


def _cut(held: Held) -> tuple[tuple[str, ...], ...]:
    """Return the spec without what it does not cut at its end: P() and P(None) are one."""
    axes = held.spec.axes
    while axes and not axes[-1]:
        axes = axes[:-1]
    return axes


def _folded_row(group: Group, is_training: bool) -> Row:
    n_bytes = sum(row.bytes_per_device for row in group.folded)
    wasted = sum(row.wasted_bytes for row in group.folded)
    parameters = sum(row.bytes_of("parameters") for row in group.folded)
    cells = (
        f"{len(group.folded):,} more",
        "",
        "",
        "",
        *([memory_text(parameters)] if is_training else []),
        memory_text(n_bytes),
        "",
        memory_text(wasted) if wasted else "-",
    )
    return Row(cells, is_faint=True)
