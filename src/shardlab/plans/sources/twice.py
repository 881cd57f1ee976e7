"""Paths with ranges: whether each is written well, and whether two of them mean one tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from shardlab.errors import BadModel
from shardlab.plans.family import RANGE

MAX_TENSORS = 1_000_000  # of one table; a range is quickly written too large
_SLOT = re.compile(r"\{[0-9]+\.\.[0-9]+\}|[0-9]+")
_LONG = re.compile(r"\{0*[0-9]{1,9}\.\.0*[1-9][0-9]{9,}\}")  # a range of more than can be
_FEW = 64  # paths that are compared by pairs; more are written out

Slots = tuple[range | str, ...]  # of a path: the numbers in it, as ranges or as they are written


def check_paths(tensors: Mapping[str, Any], where: str) -> None:
    """Raise where a path is not well written, or two paths stand for the same tensor."""
    groups: dict[str, list[tuple[str, Slots]]] = {}
    total = 0
    for path in tensors:
        slots = _slots(path, where)
        total += _n_paths(slots)
        if total > MAX_TENSORS:
            what = f"There are more than {MAX_TENSORS:,} tensors, counted up to {path!r:.200}."
            raise _bad(what, path, where, "smaller ranges.")
        groups.setdefault(_SLOT.sub("#", path), []).append((path, slots))
    for group in groups.values():
        if len(group) > 1 and (two := _in_common(group)):
            what = f"Paths {two[0]!r:.200} and {two[1]!r:.200} stand for the same tensors."
            raise _bad(what, two[1], where, "ranges that do not overlap.")


def _slots(path: str, where: str) -> Slots:
    """Return the numbers of a path, each range in braces as a range."""
    if not path or not path.isprintable() or len(path) > 1_000:
        raise _bad(f"{path!r:.80} is not a path.", path, where, "a path such as layers.0.up.")
    if _LONG.search(path):
        what = f"There are more than {MAX_TENSORS:,} tensors in {path!r:.200}."
        raise _bad(what, path, where, "smaller ranges.")
    if "{" in RANGE.sub("", path) or "}" in RANGE.sub("", path):
        raise _bad(f"Path {path!r:.200} has braces.", path, where, "a range such as {0..31}.")
    return tuple(_slot(found, path, where) for found in _SLOT.finditer(path))


def _slot(found: re.Match[str], path: str, where: str) -> range | str:
    if not found[0].startswith("{"):
        return found[0]
    first, last = found[0][1:-1].split("..")
    if str(int(first)) != first or str(int(last)) != last:
        raise _bad(f"{found[0]} has leading zeros.", path, where, "{0..31}.")
    if int(first) > int(last):
        raise _bad(f"{found[0]} goes down.", path, where, f"{{{last}..{first}}}.")
    beside = path[found.start() - 1 : found.start()] + path[found.end() : found.end() + 1]
    if re.search(r"[0-9{}]", beside):
        what = f"{found[0]} stands beside another number."
        raise _bad(what, path, where, "a range between separators, such as layers.{0..31}.up.")
    return range(int(first), int(last) + 1)


def _n_paths(slots: Slots) -> int:
    return prod(len(each) for each in slots if isinstance(each, range))


def _in_common(group: Sequence[tuple[str, Slots]]) -> tuple[str, str] | None:
    """Return two paths of one form that stand for a common tensor, if there are two."""
    if len(group) <= _FEW:
        for at, (path, slots) in enumerate(group):
            for other, others in group[:at]:
                if all(_overlap(one, two) for one, two in zip(slots, others, strict=True)):
                    return other, path
        return None
    seen: dict[tuple[str, ...], str] = {}
    for path, slots in group:
        for numbers in _written_out(slots):
            if (first := seen.setdefault(numbers, path)) != path:
                return first, path
    return None


def _overlap(one: range | str, two: range | str) -> bool:
    if isinstance(one, str) and isinstance(two, str):
        return one == two
    one, two = _as_range(one), _as_range(two)
    return max(one.start, two.start) < min(one.stop, two.stop)


def _as_range(slot: range | str) -> range:
    if isinstance(slot, range):
        return slot
    if len(slot) > 18 or str(int(slot)) != slot:
        return range(0)  # "007" is no number of a range
    return range(int(slot), int(slot) + 1)


def _written_out(slots: Iterable[range | str]) -> Iterator[tuple[str, ...]]:
    if not (slots := tuple(slots)):
        yield ()
        return
    for head in map(str, slots[0]) if isinstance(slots[0], range) else (slots[0],):
        for tail in _written_out(slots[1:]):
            yield (head, *tail)


def _bad(what: str, path: str, where: str, fix: str) -> BadModel:
    return BadModel(what, where=f"{where}, tensors.{path!r:.200}", fix=fix)
