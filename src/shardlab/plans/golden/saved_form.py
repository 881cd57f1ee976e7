"""The form of a saved plan: what each place holds, checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardlab.errors import BadPlan
from shardlab.errors.brief import brief
from shardlab.records.plan import KINDS
from shardlab.records.rule_line import RULE_KINDS

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
        raise BadPlan(
            f"The saved plan is damaged: {said}",
            where=f"{where}, at {place or 'the top'}",
            fix="save it again with --save.",
        ) from None


def _fail(value: Any, place: str, wanted: str) -> None:
    raise _Wrong(f"{brief(value)} stands where {wanted} was expected.", place)


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
