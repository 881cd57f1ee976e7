"""The tensors of a plan as a table: arrays as JAX prints them, by layer, largest first.

Tensors that repeat in every layer are one group. A model that names its layers
(`model.layers.*.mlp`) and one that stacks them (a first dimension `layers`) are grouped alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, share_text
from shardlab.planner.plan import Plan, PlanRow
from shardlab.render.sheet import Column, Row, Section, Table, truncate_start

_VISIBLE_SHARE = 0.99  # of a device's bytes: rows beyond it are folded
_MAX_ROWS = 40  # visible unless all are requested
_OUTSIDE = "outside the layers"
_NUMBER = re.compile(r"(?:\*|[0-9]+)(?![^./\[\]_:'\"-])")  # a path component, as in tensor groups
_SUFFIX = re.compile(r"[./](?:weight|kernel|w)$")  # how most names of tensors end
# The path up to stacked layers: the word "layers", "blocks" or "h" with no number after it. The
# repetition is bounded, so that a hostile path cannot make the search slow.
_STACKED = re.compile(
    r"(?:[^./]+[./]){0,16}?(?:\w*layers?|\w*blocks?|h)[./](?![0-9*])", re.IGNORECASE
)
_LAYER_DIM = re.compile(r"\w*layers?|stage|blocks?", re.IGNORECASE)  # name of a stacked dimension


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Rows that belong together, their title, and those too small to be listed."""

    title: str
    prefix: str  # of the paths, which the rows need not repeat
    n_layers: int
    rows: tuple[PlanRow, ...]
    folded: tuple[PlanRow, ...] = ()
    repeated_paths: frozenset[str] = frozenset()  # paths that have several rows

    @property
    def bytes_per_device(self) -> int:
        return sum(row.bytes_per_device for row in (*self.rows, *self.folded))

    @property
    def wasted_bytes(self) -> float:
        return sum(row.wasted_bytes for row in (*self.rows, *self.folded))


def group_rows(plan: Plan, *, show_all: bool = False) -> list[RowGroup]:
    """Return the groups, largest first, and in each the rows, largest first.

    Rows that together are less than a hundredth of the total are folded, but never a single one.
    """
    rows_by_key: dict[tuple[str, int], list[PlanRow]] = {}
    stacks = _stacked_prefixes(plan.rows)
    # Shortest first: `layers.*` groups what is in `layers.*.experts.*` too.
    prefixes = sorted({row.path.partition("*")[0] for row in plan.rows if "*" in row.path}, key=len)
    for row in _largest_first(plan):
        rows_by_key.setdefault(_group_key(row, prefixes, stacks), []).append(row)
    # By identity: equal rows may exist, and hashing a row would hash all its arrays.
    visible = {id(row) for row in (plan.rows if show_all else _visible_rows(plan))}
    groups = [_make_group(key, rows, visible) for key, rows in rows_by_key.items()]
    if len(groups) == 1 and groups[0].title == _OUTSIDE:
        groups = [replace(groups[0], title="all tensors")]
    return sorted(groups, key=lambda group: (-group.bytes_per_device, group.title))


def _largest_first(plan: Plan) -> list[PlanRow]:
    return sorted(plan.rows, key=lambda row: (-row.bytes_per_device, row.path))


def _visible_rows(plan: Plan) -> list[PlanRow]:
    rows = _largest_first(plan)
    total, listed_bytes, visible = sum(row.bytes_per_device for row in rows), 0, []
    for row in rows[:_MAX_ROWS]:
        if listed_bytes > _VISIBLE_SHARE * total:
            break
        visible.append(row)
        listed_bytes += row.bytes_per_device
    return visible


def _stacked_prefixes(rows: Iterable[PlanRow]) -> dict[str, int]:
    """Return the prefixes of paths below which layers are stacked, with the number of layers."""
    rows_by_prefix: dict[str, list[PlanRow]] = {}
    for row in rows:
        match = _STACKED.match(row.path)
        if match and not _NUMBER.search(match[0]):
            rows_by_prefix.setdefault(match[0], []).append(row)
    stacks = {}
    for prefix, stacked_rows in rows_by_prefix.items():
        n_layers = {size for row in stacked_rows for size in _layer_dim_sizes(row)}
        if not n_layers and prefix[:-1].endswith("s"):
            shapes = [row.parameter.shape for row in stacked_rows]
            ranks = set(map(len, shapes))
            # No dimension is named: if kernels and biases both have one dimension more than usual,
            # the first is the stack.
            if len(ranks) > 1 and min(ranks) > 1:
                n_layers = {shape[0] for shape in shapes}
        if len(n_layers) == 1:
            stacks[prefix] = n_layers.pop()
    return stacks


def _layer_dim_sizes(row: PlanRow) -> Iterator[int]:
    for name, size in zip(row.dim_names or (), row.parameter.shape, strict=False):
        if name and _LAYER_DIM.fullmatch(name):
            yield size


def _group_key(row: PlanRow, prefixes: list[str], stacks: Mapping[str, int]) -> tuple[str, int]:
    """Return what identifies the group: the path before the first number, or the stack size.

    A tensor that only one layer has, or that is sharded differently there, is in the group too.
    """
    stack = _STACKED.match(row.path)
    if stack and (n_layers := stacks.get(stack[0], 0)) in row.parameter.shape:
        return stack[0], n_layers
    for prefix in prefixes:
        if row.path.startswith(prefix) and _NUMBER.match(row.path, len(prefix)):
            return f"{prefix}*", 0
    if row.dim_names and "layers" in row.dim_names:
        return "", row.parameter.shape[row.dim_names.index("layers")]
    return "", 0


def _make_group(key: tuple[str, int], rows: list[PlanRow], visible: set[int]) -> RowGroup:
    prefix, n_stacked = key
    n_layers = 1
    listed_rows = [row for row in rows if id(row) in visible]
    folded_rows = [row for row in rows if id(row) not in visible]
    if len(folded_rows) == 1:  # "1 more" would take the same line
        listed_rows, folded_rows = rows, []
    if prefix and n_stacked:
        title = f"{prefix}* ×{n_stacked:,}, stacked"
    elif prefix:
        n_layers = count_numbers([_first_numbers(row, prefix) for row in rows])
        title = f"{prefix} ×{n_layers:,}" if n_layers else prefix
    elif n_stacked:
        prefix = _common_prefix([row.path for row in rows])
        title = f"{prefix}* ×{n_stacked:,}, stacked"
    else:
        title = _OUTSIDE
    counts = Counter(row.path for row in rows)
    return RowGroup(
        title=title,
        prefix=prefix,
        n_layers=n_layers,
        rows=tuple(listed_rows),
        folded=tuple(folded_rows),
        repeated_paths=frozenset(path for path, count in counts.items() if count > 1),
    )


def _common_prefix(paths: list[str]) -> str:
    """Return the components that all paths share; the first and last in order are enough."""
    first, last = min(paths), max(paths)
    n_shared = next((end for end in range(len(first)) if first[: end + 1] != last[: end + 1]), 0)
    return first[: max(first.rfind(separator, 0, n_shared) for separator in "./") + 1]


def _first_numbers(row: PlanRow, prefix: str) -> str:
    number = _NUMBER.match(row.path, len(prefix) - 1)
    if number and number[0] != "*":
        return number[0]
    return row.numbers.split(" × ")[0]


def count_numbers(texts: list[str]) -> int:
    """Return how many different numbers there are in ranges such as `0..79` and `3, 5..8`.

    >>> count_numbers(["0..79", "3..60"]), count_numbers(["0, 2"]), count_numbers([""])
    (80, 2, 0)
    """
    ranges = []
    for item in (item for text in texts for item in text.split(",")):
        first, _, last = item.strip().partition("..")
        if first.isdecimal() and (last or first).isdecimal():
            ranges.append((int(first), int(last or first)))
    count, largest = 0, -1
    # Count each number once: ranges of different tensors overlap.
    for start, stop in sorted(ranges):
        count += max(0, stop - max(start - 1, largest))
        largest = max(largest, stop)
    return count


def shorter_names(path: str) -> Iterator[str]:
    """Yield a tensor's path and ever shorter names for it, by words: the middle is dropped first.

    >>> list(shorter_names("mlp.up_proj.weight"))
    ['mlp.up_proj.weight', 'mlp.up_proj', 'up_proj']
    >>> list(shorter_names("mlp/experts/*/kv_a_proj"))[1:]
    ['mlp…*/kv_a_proj', 'mlp…kv_a_proj', 'kv_a_proj', 'kv…proj']
    """
    stem = _SUFFIX.sub("", path)
    yield from dict.fromkeys((path, stem))
    # Where each component starts; an empty one, as in "a..b", is no word.
    starts = [n + 1 for n, letter in enumerate(stem) if letter in "./" and stem[n + 1 :]]
    first = stem[: starts[0] - 1] if starts else ""
    for start in starts[1:]:
        yield f"{first}…{stem[start:]}"
    last = stem[starts[-1] :] if starts else stem
    if starts:
        yield last
    words = last.split("_")
    if len(words) > 2 and words[0] and words[-1]:
        yield f"{words[0]}…{words[-1]}"


def short_name(name: str, max_length: int) -> str:
    """Return a name of the table in that many characters, with its count if that fits.

    >>> [short_name("mlp.up_proj.weight ×59", length) for length in (22, 16, 12, 9, 5)]
    ['mlp.up_proj.weight ×59', 'mlp.up_proj ×59', 'up_proj ×59', 'up_proj', '…proj']
    """
    end = min((name.index(mark) for mark in (" ×", " (") if mark in name), default=len(name))
    path, count = name[:end], name[end:]
    # Names first lose words in their middle, then their count.
    names = list(shorter_names(path))
    candidates = (*(shorter + count for shorter in names), *names)
    fitting = next((text for text in candidates if len(text) <= max_length), None)
    # A word that is longer than its column: its end says most.
    return truncate_start(names[-1], max_length) if fitting is None else fitting


def name_in_group(row: PlanRow, group: RowGroup) -> str:
    """Return a row's name within its group, with its count if it is not one per layer.

    If several rows have the same name, with their numbers.
    """
    start = group.prefix.removesuffix("*")
    if start != group.prefix and not row.path.startswith(group.prefix):  # of a single layer
        name = row.path.removeprefix(start)
        return name if row.n_tensors == 1 else f"{name} ×{row.n_tensors:,}"
    name = row.path.removeprefix(group.prefix).lstrip("./") or row.path
    if row.path in group.repeated_paths and row.numbers:
        return f"{name} ({row.numbers})"
    return name if row.n_tensors == group.n_layers else f"{name} ×{row.n_tensors:,}"


def tensors_section(plan: Plan, *, show_all: bool = False) -> Section:
    """Return the table of tensors by layer."""
    is_training = any(len(row.arrays) > 1 for row in plan.rows)
    rows: list[Row] = []
    for group in group_rows(plan, show_all=show_all):
        share = share_text(group.bytes_per_device, plan.bytes_per_device)
        title = f"{group.title}: {bytes_text(group.bytes_per_device)}, {share}"
        rows.append(Row(cells=(), heading=printable_text(title)))
        rows += [_tensor_row(row, group, plan, is_training) for row in group.rows]
        rows += [_folded_row(group, is_training)] if group.folded else []
    columns = (
        Column(head="tensor", can_truncate=True, min_width=24, is_code=True, truncate=short_name),
        Column(head="array", can_truncate=True, min_width=44, is_code=True),
        Column(head="spec", drop=9, is_code=True),
        Column(head="shard", drop=3, is_code=True),
        *([Column(head="parameter", is_number=True, drop=6)] if is_training else []),
        Column(head="total" if is_training else "per device", is_number=True),
        Column(head="replicas", is_number=True, drop=1),
        Column(head="wasted", is_number=True),
    )
    # `drop`: the spec goes first, the array shows the same; replicas go last.
    title = "Tensors, largest first; bytes per device"
    return Section(title, Table(columns, tuple(rows)), _array_legend(plan))


def _array_legend(plan: Plan) -> tuple[str, ...]:
    """Return how to read an array, with one from the table."""
    sharded = [row for row in plan.rows if row.parameter.n_replicas < plan.n_devices]
    if not sharded:
        return ()
    array = min(sharded, key=lambda row: (-row.bytes_per_device, row.path)).parameter
    legend = f"@ marks mesh axes: {plan.array_text(array)} is sharded as {array.spec}"
    return (printable_text(legend),)


def _tensor_row(row: PlanRow, group: RowGroup, plan: Plan, is_training: bool) -> Row:
    parameter, wasted = row.parameter, row.wasted_bytes
    cells = [
        name_in_group(row, group),
        plan.array_text(parameter),
        str(parameter.spec),
        f"[{','.join(map(str, parameter.shard_shape))}]",
        *([bytes_text(row.bytes_of("parameters"))] if is_training else []),
        bytes_text(row.bytes_per_device),
        f"{parameter.n_replicas:,}",
        bytes_text(wasted) if wasted else "-",
    ]
    return Row(cells=tuple(map(printable_text, cells)), notes=_state_lines(row, plan))


def _state_lines(row: PlanRow, plan: Plan) -> tuple[str, ...]:
    """Return gradients and states that are sharded differently from their parameter (ZeRO)."""
    parameter = row.parameter
    names_by_array: dict[str, list[str]] = {}
    for array in row.arrays[1:]:
        is_same_shape = array.shape == parameter.shape  # adafactor's statistics are not
        if is_same_shape and array.sharded_dims != parameter.sharded_dims:
            names_by_array.setdefault(plan.array_text(array), []).append(array.name)
    return tuple(
        printable_text(f"{', '.join(names)}: {array}") for array, names in names_by_array.items()
    )


def _folded_row(group: RowGroup, is_training: bool) -> Row:
    n_bytes = sum(row.bytes_per_device for row in group.folded)
    wasted = sum(row.wasted_bytes for row in group.folded)
    parameter_bytes = sum(row.bytes_of("parameters") for row in group.folded)
    cells = (
        f"{len(group.folded):,} more",
        "",
        "",
        "",
        *([bytes_text(parameter_bytes)] if is_training else []),
        bytes_text(n_bytes),
        "",
        bytes_text(wasted) if wasted else "-",
    )
    return Row(cells=cells, is_faint=True)
