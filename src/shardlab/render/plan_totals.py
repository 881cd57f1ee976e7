"""What one device holds of each kind, and in all: the first table of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardlab.layouts.amount import memory_text
from shardlab.records.plan import KINDS, Held, Kind, Plan
from shardlab.render.sheet import Column, Row, Section, Table
from shardlab.render.trace import bar_text
from shardlab.render.units import share_text

_MOST = 3  # dtypes that are named in a cell


def totals_section(plan: Plan) -> Section:
    """Return what one device holds of each kind, with a bar, and what all devices hold."""
    room = plan.room
    whole = room.hbm_bytes if room else plan.bytes_per_device
    columns = (
        Column(""),
        Column("dtype", drop=3),
        Column("per device", True),
        Column(f"of {memory_text(room.hbm_bytes)}" if room else "share", True, drop=2),
        Column("", drop=1),
        Column("on all devices", True, drop=4),
        Column("in one copy", True, drop=5),
    )
    rows = []
    for kind in KINDS:
        n_bytes = plan.bytes_of(kind)
        if n_bytes:
            once = plan.once_bytes_of(kind)
            amounts = (n_bytes, n_bytes * plan.n_devices, once)
            rows.append(_total_row(kind_text(kind), dtypes_text(plan, kind), amounts, whole))
            rows += _parts(plan, kind, whole) if kind == "optimizer" else ()
    has_once = all(plan.once_bytes_of(kind) for kind in KINDS if plan.bytes_of(kind))
    once = sum(map(plan.once_bytes_of, KINDS)) if has_once else 0
    n_bytes = plan.bytes_per_device
    rows.append(_total_row("in all", "", (n_bytes, n_bytes * plan.n_devices, once), whole))
    return Section("Each device holds", Table(columns, tuple(rows)), _uneven(plan))


def _parts(plan: Plan, kind: Kind, whole: int) -> Iterator[Row]:
    """Yield the arrays of a kind by name: which moments there are, in what, and how large."""
    arrays: dict[str, list[Held]] = {}
    for held in held_of(plan, kind):
        arrays.setdefault(held.name, []).append(held)
    for name, found in arrays.items():
        n_bytes = sum(held.bytes_per_device for held in found)
        once = sum(held.array_bytes for held in found)
        amounts = n_bytes, n_bytes * plan.n_devices, once
        yield replace(_total_row(f"· {name}", _dtypes(found), amounts, whole), is_faint=True)


def held_of(plan: Plan, kind: Kind) -> Iterator[Held]:
    """Yield the arrays of a kind, row by row."""
    return (held for row in plan.rows for held in row.held if held.kind == kind)


def dtypes_text(plan: Plan, kind: Kind) -> str:
    """Return the dtypes of a kind, that of most bytes first."""
    if kind == "kv_cache":
        return plan.choice_text("cache_dtype")
    return _dtypes(held_of(plan, kind))


def _dtypes(arrays: Iterable[Held]) -> str:
    sizes: Counter[str] = Counter()
    for held in arrays:
        sizes[held.dtype] += held.array_bytes
    names = [name for name, _ in sizes.most_common()]
    more = f", {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _total_row(name: str, dtypes: str, amounts: tuple[int, int, int], whole: int) -> Row:
    each, everywhere, once = amounts
    return Row(
        (
            name,
            dtypes,
            memory_text(each),
            share_text(each, whole),
            bar_text(min(each, whole), whole) + ("▶" if each > whole else ""),
            memory_text(everywhere),
            memory_text(once) if once else "-",
        )
    )


def _uneven(plan: Plan) -> tuple[str, ...]:
    least = sum(map(plan.least_bytes_of, KINDS))
    if memory_text(least) == memory_text(plan.bytes_per_device):
        return ()
    return (
        f"the last device would use {memory_text(least)} of it: array axes that do not divide "
        "are counted as padded",
    )


def kind_text(kind: str) -> str:
    """Return a kind in words: `kv_cache` is "KV cache"."""
    return "KV cache" if kind == "kv_cache" else kind
