"""The tensors of a plan as a table: arrays as JAX prints them, by layer, largest first.

The tensors of a plan by layer: what repeats in every layer is one group, largest first.

A model that names its layers (`model.layers.*.mlp`) and one that stacks them (a first array axis
`layers`) are grouped alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, share_text
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.render.sheet import Column, Row, Section, Table, truncate_left

_ENOUGH = 0.99  # of a device's bytes: rows beyond it are folded
_OUTSIDE = "outside the layers"
_NUMBER = re.compile(r"(?:\*|[0-9]+)(?![^./\[\]_:'\"-])")  # as families have them
_SUFFIX = re.compile(r"[./](?:weight|kernel|w)$")  # what most names of tensors end with
# the path before what stands in all layers, if these are stacked: no number after the word
_STACKED = re.compile(
    r"(?:[^./]+[./]){0,16}?(?:\w*layers?|\w*blocks?|h)[./](?![0-9*])", re.IGNORECASE
)
_LAYERS = re.compile(r"\w*layers?|stage|blocks?", re.IGNORECASE)  # as the axis of a stack is named
_MOST = 40  # rows that are shown unless all are asked for


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that belong together, what they are called, and those too small to be listed."""

    title: str
    prefix: str  # of the paths, which the rows need not repeat
    n_layers: int
    rows: tuple[PlanRow, ...]
    folded: tuple[PlanRow, ...] = ()
    split: frozenset[str] = frozenset()  # paths that have several rows

    @property
    def bytes_per_device(self) -> int:
        return sum(row.bytes_per_device for row in (*self.rows, *self.folded))

    @property
    def wasted_bytes(self) -> float:
        return sum(row.wasted_bytes for row in (*self.rows, *self.folded))


def groups_of(plan: Plan, *, show_all: bool = False) -> list[Group]:
    """Return the groups, largest first, and in each the rows, largest first.

    Rows that together are less than a hundredth of all are folded, but never a lone one.
    """
    found: dict[tuple[str, int], list[PlanRow]] = {}
    stacks = _stacks(plan.rows)
    starts = sorted({row.path.partition("*")[0] for row in plan.rows if "*" in row.path}, key=len)
    for row in sorted(plan.rows, key=lambda row: (-row.bytes_per_device, row.path)):
        found.setdefault(_key(row, starts, stacks), []).append(row)
    shown = {id(row) for row in (plan.rows if show_all else _large(plan))}
    groups = [_group(key, rows, shown) for key, rows in found.items()]
    if len(groups) == 1 and groups[0].title == _OUTSIDE:
        groups = [replace(groups[0], title="all tensors")]
    return sorted(groups, key=lambda group: (-group.bytes_per_device, group.title))


def _large(plan: Plan) -> list[PlanRow]:
    rows = sorted(plan.rows, key=lambda row: (-row.bytes_per_device, row.path))
    whole, seen, kept = sum(row.bytes_per_device for row in rows), 0, []
    for row in rows[:_MOST]:
        if seen > _ENOUGH * whole:
            break
        kept.append(row)
        seen += row.bytes_per_device
    return kept


def _stacks(rows: Iterable[PlanRow]) -> dict[str, int]:
    """Return the beginnings of paths beneath which layers are stacked, with how many."""
    beneath: dict[str, list[PlanRow]] = {}
    for row in rows:
        if (found := _STACKED.match(row.path)) and not _NUMBER.search(found[0]):
            beneath.setdefault(found[0], []).append(row)
    stacks = {}
    for start, some in beneath.items():
        named = {n for row in some for n in _layer_sizes(row)}
        shapes = [row.parameter.shape for row in some]
        ranks = set(map(len, shapes))
        if not named and start[:-1].endswith("s") and len(ranks) > 1 and min(ranks) > 1:
            named = {shape[0] for shape in shapes}  # as kernels and biases have them
        if len(named) == 1:
            stacks[start] = named.pop()
    return stacks


def _layer_sizes(row: PlanRow) -> Iterator[int]:
    for name, size in zip(row.axes or (), row.parameter.shape, strict=False):
        if name and _LAYERS.fullmatch(name):
            yield size


def _key(row: PlanRow, starts: list[str], stacks: Mapping[str, int]) -> tuple[str, int]:
    """Return what names the group: the path before the first number, or the size of a stack.

    A tensor that one layer alone has, or is cut there in another way, belongs to the layers too.
    """
    stack = _STACKED.match(row.path)
    if stack and (n := stacks.get(stack[0], 0)) in row.parameter.shape:
        return stack[0], n
    for start in starts:
        if row.path.startswith(start) and _NUMBER.match(row.path, len(start)):
            return f"{start}*", 0
    if row.axes and "layers" in row.axes:
        return "", row.parameter.shape[row.axes.index("layers")]
    return "", 0


def _group(key: tuple[str, int], rows: list[PlanRow], shown: set[int]) -> Group:
    prefix, stacked = key
    n = 1
    kept = [row for row in rows if id(row) in shown]
    folded = [row for row in rows if id(row) not in shown]
    if len(folded) == 1:
        kept, folded = rows, []
    if prefix and stacked:
        title = f"{prefix}* ×{stacked:,}, stacked"
    elif prefix:
        n = n_numbers([_first_numbers(row, prefix) for row in rows])
        title = f"{prefix} ×{n:,}" if n else prefix
    elif stacked:
        first, last = min(row.path for row in rows), max(row.path for row in rows)
        n_shared = next((at for at in range(len(first)) if first[: at + 1] != last[: at + 1]), 0)
        prefix = first[: max(first.rfind(mark, 0, n_shared) for mark in "./") + 1]
        title = f"{prefix}* ×{stacked:,}, stacked"
    else:
        title = _OUTSIDE
    counts = Counter(row.path for row in rows)
    split = frozenset(path for path, times in counts.items() if times > 1)
    return Group(
        title=title, prefix=prefix, n_layers=n, rows=tuple(kept), folded=tuple(folded), split=split
    )


def _first_numbers(row: PlanRow, prefix: str) -> str:
    number = _NUMBER.match(row.path, len(prefix) - 1)
    is_one = number is not None and number[0] != "*"
    return number[0] if number and is_one else row.numbers.split(" × ")[0]


def n_numbers(texts: list[str]) -> int:
    """Return how many numbers there are in texts such as `0..79` and `3, 5..8`, each once.

    >>> n_numbers(["0..79", "3..60"]), n_numbers(["0, 2"]), n_numbers([""])
    (80, 2, 0)
    """
    spans = []
    for part in (part for text in texts for part in text.split(",")):
        first, _, last = part.strip().partition("..")
        if first.isdecimal() and (last or first).isdecimal():
            spans.append((int(first), int(last or first)))
    n, done = 0, -1
    for start, stop in sorted(spans):
        n += max(0, stop - max(start - 1, done))
        done = max(done, stop)
    return n


def shorter_names(path: str) -> Iterator[str]:
    """Yield a tensor's path and what may stand for it where there is less and less room.

    >>> list(shorter_names("mlp.up_proj.weight"))
    ['mlp.up_proj.weight', 'mlp.up_proj', 'up_proj']
    """
    stem = _SUFFIX.sub("", path)
    yield from dict.fromkeys((path, stem))
    yield from (stem[at + 1 :] for at, mark in enumerate(stem) if mark in "./" and stem[at + 1 :])


def short_name(name: str, n_letters: int) -> str:
    """Return a name of the table in so many letters, with how many tensors it stands for.

    >>> [short_name("mlp.up_proj.weight ×59", n) for n in (22, 16, 12, 9)]
    ['mlp.up_proj.weight ×59', 'mlp.up_proj ×59', 'up_proj ×59', '…proj ×59']
    """
    at = min((name.index(mark) for mark in (" ×", " (") if mark in name), default=len(name))
    path, times = name[:at], name[at:]
    *_, last = names = [each + times for each in shorter_names(path)]
    fitting = next((each for each in names if len(each) <= n_letters), None)
    return truncate_left(last, n_letters) if fitting is None else fitting


def name_in(row: PlanRow, group: Group) -> str:
    """Return a row's name within its group, with how many there are if not one in each layer.

    Where several have the same name, with their numbers.
    """
    start = group.prefix.removesuffix("*")
    if start != group.prefix and not row.path.startswith(group.prefix):  # of one layer alone
        name = row.path.removeprefix(start)
        return name if row.n_tensors == 1 else f"{name} ×{row.n_tensors:,}"
    name = row.path.removeprefix(group.prefix).lstrip("./") or row.path
    if row.path in group.split and row.numbers:
        return f"{name} ({row.numbers})"
    return name if row.n_tensors == group.n_layers else f"{name} ×{row.n_tensors:,}"


def tensors_section(plan: Plan, *, show_all: bool = False) -> Section:
    """Return the table of tensors by layer."""
    is_training = any(len(row.held) > 1 for row in plan.rows)
    rows: list[Row] = []
    for group in groups_of(plan, show_all=show_all):
        share = share_text(group.bytes_per_device, plan.bytes_per_device)
        title = f"{group.title}: {bytes_text(group.bytes_per_device)}, {share}"
        rows.append(Row(cells=(), heading=printable_text(title)))
        rows += [_tensor_row(row, group, plan, is_training) for row in group.rows]
        rows += [_folded_row(group, is_training)] if group.folded else []
    columns = (
        Column(head="tensor", may_cut=True, keep=26, is_code=True, cut=short_name),
        Column(head="array", may_cut=True, keep=44, is_code=True),
        Column(head="spec", drop=9, is_code=True),
        Column(head="shard", drop=3, is_code=True),
        *([Column(head="parameter", is_number=True, drop=6)] if is_training else []),
        Column(head="in all" if is_training else "per device", is_number=True),
        Column(head="copies", is_number=True, drop=1),
        Column(head="wasted", is_number=True),
    )
    words = "Tensors, largest first; bytes are those of one device"
    return Section(words, Table(columns, tuple(rows)), _legend(plan))


def _legend(plan: Plan) -> tuple[str, ...]:
    """Return how an array is read, with one that the table has."""
    cut = [row for row in plan.rows if row.parameter.n_copies < plan.n_devices]
    if not cut:
        return ()
    held = min(cut, key=lambda row: (-row.bytes_per_device, row.path)).parameter
    return (
        printable_text(
            f"after @ stand mesh axes: {plan.array_text(held)} has the spec {held.spec}"
        ),
    )


def _tensor_row(row: PlanRow, group: Group, plan: Plan, is_training: bool) -> Row:
    held = row.parameter
    wasted = row.wasted_bytes
    cells = [
        name_in(row, group),
        plan.array_text(held),
        str(held.spec),
        f"[{','.join(map(str, held.shard_shape))}]",
        *([bytes_text(row.bytes_of("parameters"))] if is_training else []),
        bytes_text(row.bytes_per_device),
        f"{held.n_copies:,}",
        bytes_text(wasted) if wasted else "-",
    ]
    return Row(cells=tuple(map(printable_text, cells)), beneath=_beside(row, plan))


def _beside(row: PlanRow, plan: Plan) -> tuple[str, ...]:
    """Return what is kept beside a parameter, where it is cut in another way."""
    own, shape = _cut(row.parameter), row.parameter.shape
    apart = [held for held in row.held[1:] if held.shape == shape and _cut(held) != own]
    arrays: dict[str, list[str]] = {}
    for held in apart:
        arrays.setdefault(plan.array_text(held), []).append(held.name)
    return tuple(printable_text(f"{', '.join(names)}: {array}") for array, names in arrays.items())


def _cut(held: DeviceBytes) -> tuple[tuple[str, ...], ...]:
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
        *([bytes_text(parameters)] if is_training else []),
        bytes_text(n_bytes),
        "",
        bytes_text(wasted) if wasted else "-",
    )
    return Row(cells=cells, is_faint=True)
