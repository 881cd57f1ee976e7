"""Saved plans: golden files that are the same to the byte for the same plan.

A file is written whole or not at all, and read with suspicion: it may come from anywhere.

The form of a saved plan: what each place holds, checked before anything is made of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardlab._files.atomic_write import write_atomically
from shardlab._files.bounded_read import read_regular_file
from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidPlan, short_repr
from shardlab.planner.plan import FORMAT, FORMAT_VERSION, KINDS, Plan
from shardlab.planner.rules.rule_line import RULE_KINDS

MOST = 10**30  # more than any count of bytes that a person can mean
_DEPTH = 100  # the axes of an array, or the mesh axes of one of them

Check = Callable[[Any, str], None]  # what is there, and at which place


class _Wrong(Exception):
    """What is wrong at a place, until the file's name is known."""


def check_form(data: Any, where: str) -> None:
    """Refuse data that `Plan.from_json` cannot read, with the place of the first mistake."""
    try:
        _PLAN(data, "")
    except _Wrong as wrong:
        said, place = wrong.args
        raise InvalidPlan(
            f"The saved plan is damaged: {said}",
            where=f"{where}, at {place or 'the top'}",
            fix="save it again with --save.",
        ) from None


def _fail(value: Any, place: str, wanted: str) -> None:
    raise _Wrong(f"{short_repr(value)} stands where {wanted} was expected.", place)


def _text(value: Any, place: str) -> None:
    if not isinstance(value, str):
        _fail(value, place, "text")


def _count(value: Any, place: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        _fail(value, place, "a whole number from 0 on")


def _from_1(value: Any, place: str) -> None:
    _count(value, place)
    if value == 0:
        _fail(value, place, "a whole number from 1 on")


def _share(value: Any, place: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:
        _fail(value, place, "a share from 0 to 1")


def _anything(value: Any, place: str) -> None:
    """Leave it: it is shown, never used."""


def _optional(check: Check) -> Check:
    return lambda value, place: None if value is None else check(value, place)


def _one_of(*names: str) -> Check:
    def check(value: Any, place: str) -> None:
        if not isinstance(value, str) or value not in names:
            _fail(value, place, f"one of {', '.join(names)}")

    return check


def _list(check: Check, most: int | None = None, least: int = 0) -> Check:
    def checked(value: Any, place: str) -> None:
        if not isinstance(value, list):
            _fail(value, place, "a list")
        if most is not None and len(value) > most:
            raise _Wrong(f"a list of {len(value):,} stands where at most {most} can be.", place)
        if len(value) < least:
            raise _Wrong("an empty list stands where at least one was expected.", place)
        for at, each in enumerate(value):
            check(each, f"{place}[{at}]")

    return checked


def _map(check: Check) -> Check:
    def checked(value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            _fail(value, place, "an object")
        for name, each in value.items():
            check(each, f"{place}.{name[:80]}")

    return checked


def _record(needed: Mapping[str, Check], more: Mapping[str, Check] | None = None) -> Check:
    """Return the check of an object with these names; `more` may be missing."""
    known = {**needed, **(more or {})}

    def checked(value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            _fail(value, place, "an object")
        for name, check in known.items():
            inside = f"{place}.{name}" if place else name
            if name in value:
                check(value[name], inside)
            elif name in needed:
                raise _Wrong(f"{name!r} is missing.", place)
        for name in value:
            if name not in known:
                raise _Wrong(f"there is a name {name!r:.80} that no plan has.", place)

    return checked


def _entry(value: Any, place: str) -> None:
    if isinstance(value, list):
        _list(_text, _DEPTH)(value, place)
    elif value is not None and not isinstance(value, str):
        _fail(value, place, "null, a mesh axis name, or a list of names")


def _rule(value: Any, place: str) -> None:
    kinds = [kind for kind in RULE_KINDS if isinstance(value, Mapping) and kind in value]
    if len(kinds) != 1:
        _fail(value, place, "a rule with a pattern, a path or a logical name")
    axes = {"axes": _list(_text, _DEPTH)} if kinds == ["logical"] else {"spec": _SPEC}
    _record({kinds[0]: _text, **axes}, {"reason": _text})(value, place)


def _choice(value: Any, place: str) -> None:
    if not isinstance(value, (str, bool)):
        _count(value, place)


_SPEC = _list(_entry, _DEPTH)
_SHAPE = _list(_count, _DEPTH)
_KIND = _one_of(*KINDS)
_HELD = _record(
    {
        "kind": _KIND,
        "name": _text,
        "shape": _SHAPE,
        "dtype": _text,
        "spec": _SPEC,
        "shard_shape": _SHAPE,
        "n_copies": _from_1,
        "bytes_per_device": _count,
        "array_bytes": _count,
    }
)
_ROW = _record(
    {
        "path": _text,
        "n_tensors": _count,
        "held": _list(_HELD, least=1),
        "rule": _text,
        "axes": _optional(_list(_optional(_text), _DEPTH)),
        "numbers": _text,
    },
    {
        "declined": _list(
            _record(
                {
                    "part": _text,
                    "mesh_axes": _list(_text, _DEPTH),
                    "n_parts": _from_1,
                    "array_axis": _count,
                    "size": _count,
                    "meaning": _text,
                }
            )
        )
    },
)
_SOURCE = _record({"file": _text, "line": _count}, {"function": _text})
_FINDING = _record(
    {
        "code": _text,
        "severity": _one_of("error", "warning", "info"),
        "what": _text,
        "where": _optional(_SOURCE),
        "fix": _text,
        "cause": _text,
        "shows": _list(_text),
        "details": _map(_anything),
    }
)
_PLAN = _record(
    {
        "format": _text,
        "format_version": _from_1,
        "model": _text,
        "source": _text,
        "mesh": _map(_from_1),
        "n_parameters": _count,
        "choices": _map(_choice),
        "bytes_per_device": _map(_count),
        "room": _optional(
            _record(
                {"hardware": _text, "hbm_bytes": _from_1, "headroom": _share, "source": _text},
            )
        ),
        "rules": _list(_rule),
        "rows": _list(_ROW),
        "items": _list(
            _record({"kind": _KIND, "name": _text, "bytes_per_device": _count, "formula": _text})
        ),
        "findings": _list(_FINDING),
        "notes": _list(_text),
    }
)


MOST_BYTES = 100_000_000  # a plan of MOST_KINDS of tensors has less
_flat = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_WIDE = 96  # letters: what fits stays on one line, so that a diff of two files shows what moved


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file; an interruption leaves the old file as it was."""
    write_atomically(Path(path), canonical_text(plan))


def canonical_text(plan: Plan) -> str:
    """Return the text of a golden file: rows by path, choices by name, no fact of this machine."""
    data = plan.to_json()
    data["source"] = ""  # where it was read from is another place on another machine
    data["choices"] = dict(sorted(data["choices"].items()))
    for found in filter(None, (each["where"] for each in data["findings"])):
        found["file"] = Path(found["file"]).name
    data["rows"].sort(key=lambda row: (row["path"], row["numbers"], row["rule"]))
    return "\n".join(_lines(data)) + "\n"


def load_plan(path: str | Path) -> Plan:
    """Return the plan that a file holds."""
    return parse_plan(read_text(path), str(path))


def parse_plan(text: str, where: str) -> Plan:
    """Return the plan of a text; `where` names it in errors."""
    return plan_of_data(parse_json(text, where), where)


def plan_of_data(data: Any, where: str) -> Plan:
    """Return the plan of plain data, each mistake with its place."""
    _check_format(data, where)
    check_form(data, where)
    plan = Plan.from_json(data)
    for said in _contradictions(plan, data):
        raise InvalidPlan(
            f"The saved plan contradicts itself: {said}",
            where=where,
            fix="save it again with --save.",
        )
    return plan


def _contradictions(plan: Plan, data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what cannot be, though each part of it can: the files of others were edited by hand."""
    known = dict(plan.mesh)
    for at, row in enumerate(plan.rows):
        for n, held in enumerate(row.held):
            place = f"at rows[{at}].held[{n}]"
            if strange := [name for name in held.spec.mesh_axes if name not in known]:
                yield f"{place} the spec names {strange[0]!r:.80}, which the mesh does not have."
            if not len(held.spec) <= len(held.shape) == len(held.shard_shape):
                yield f"{place} the shape, the spec and the shard have different lengths."
    for name, n_bytes in plan.to_json()["bytes_per_device"].items():
        if data["bytes_per_device"].get(name) != n_bytes:
            said = short_repr(data["bytes_per_device"].get(name), 40)
            yield f"bytes_per_device.{name} is {said}, but its parts add up to {n_bytes}."


def read_text(path: str | Path) -> str:
    """Return what a file holds, at most as much as a plan can have."""
    if not isinstance(path, (str, Path)):
        fix = "the path of a file that --save has written."
        raise InvalidPlan(f"{short_repr(path)} is not a path.", fix=fix)
    try:
        held = read_regular_file(Path(path), MOST_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        said = error.strerror if isinstance(error, OSError) else None
        raise InvalidPlan(
            f"The saved plan cannot be read: {said or error}.",
            where=f"{path!s:.400}",
            fix="the path of a file that --save has written.",
        ) from None
    if len(held) > MOST_BYTES:
        raise InvalidPlan(
            f"The file has more than {MOST_BYTES:,} bytes, which no saved plan has.",
            where=f"{path!s:.400}",
            fix="the path of a file that --save has written.",
        )
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidPlan(
            f"The saved plan is not text: byte {error.start:,} is not UTF-8.",
            where=f"{path!s:.400}",
            fix="the path of a file that --save has written.",
        ) from None


def parse_json(text: str, where: str) -> Any:
    """Return JSON's plain data; NaN, names given twice and depths without end are refused."""
    try:
        return json.loads(text, parse_constant=_refused, object_pairs_hook=_named_once)
    except json.JSONDecodeError as error:
        ended = not text[error.pos :].strip()
        raise InvalidPlan(
            f"The saved plan is {'cut short' if ended else 'not JSON'}: {error.msg}.",
            where=f"{where}, line {error.lineno}, column {error.colno}",
            fix="save it again with --save.",
        ) from None
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidPlan(
            f"The saved plan is not JSON that can be used: {said:.200}.",
            where=where,
            fix="save it again with --save.",
        ) from None


def _check_format(data: Any, where: str) -> None:
    found = data.get("format") if isinstance(data, Mapping) else None
    if found != FORMAT:
        near = isinstance(found, str) and nearest_name(found, (FORMAT,))
        raise InvalidPlan(
            f"The file is no saved plan: its format is {short_repr(found)}, not {FORMAT!r}."
            if found is not None
            else "The file is JSON, but no saved plan: it does not say what format it has.",
            where=where,
            fix="save it again with --save." if near else "the path of a file that --save wrote.",
        )
    version = data.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidPlan(
            f"The saved plan's format_version is {short_repr(version)}, which is no number from 1 on.",
            where=where,
            fix="save it again with --save.",
        )
    if version > FORMAT_VERSION:
        raise InvalidPlan(
            f"The plan was saved by a newer shardlab: its format is {version:,}, and this one "
            f"reads up to {FORMAT_VERSION}.",
            where=where,
            fix="update shardlab, or save the plan again with this one.",
        )


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number that JSON has")


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = Counter(names).most_common(1)[0][0]
        raise ValueError(f"the name {twice!r:.80} is given twice")
    return found


def _lines(value: Any, indent: int = 0, head: str = "", tail: str = "") -> Iterable[str]:
    """Yield JSON in lines: what is short stays on one."""
    margin = "  " * indent
    is_leaf = not isinstance(value, (dict, list)) or not value
    if is_leaf or _n_leaves(value) <= _WIDE // 3:  # a leaf takes three letters at least
        flat = f"{margin}{head}{_flat(value)}{tail}"
        if is_leaf or len(flat) <= _WIDE:
            yield flat
            return
    pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    yield f"{margin}{head}{opened}"
    for at, (name, each) in enumerate(pairs):
        inner = "" if name is None else f"{_flat(name)}: "
        yield from _lines(each, indent + 1, inner, "," if at < len(value) - 1 else "")
    yield f"{margin}{closed}{tail}"


def _n_leaves(value: Any) -> int:
    """Return how many values there are, counting no further than matters."""
    if not isinstance(value, (dict, list)):
        return 1
    n = len(value)
    for each in value.values() if isinstance(value, dict) else value:
        if n > _WIDE:
            break
        n += _n_leaves(each) - 1 if each else 0
    return n
