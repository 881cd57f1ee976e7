"""Saved plans: JSON files that are byte for byte the same for the same plan.

A file is written atomically. It is validated against a schema before anything is built from it,
because it may come from anywhere; errors name the place in the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from shardlab._files.atomic_write import write_atomically
from shardlab._files.bounded_read import read_regular_file
from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidPlan, short_repr
from shardlab.planner.plan import FORMAT, FORMAT_VERSION, KINDS, Plan
from shardlab.planner.rules.rule_line import RULE_KINDS

_MAX_COUNT = 10**30  # larger than any real count of bytes
_MAX_DIMS = 100  # dimensions of an array, or mesh axes of one of them
MAX_FILE_BYTES = 100_000_000  # a plan with the most kinds of tensors has fewer
_FIX_SAVE = "save it again with --save."
_FIX_PATH = "the path of a file written by --save."

Check = Callable[[Any, str], None]  # a value and its path in the file


class _SchemaError(Exception):
    """A message and the path in the file, until the name of the file is known."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


def check_schema(data: Any, where: str) -> None:
    """Reject data that `Plan.from_json` cannot read, with the path of the first mistake."""
    try:
        _PLAN(data, "")
    except _SchemaError as error:
        raise InvalidPlan(
            f"The saved plan is corrupt: {error.message}",
            where=f"{where}, at {error.path or 'the top level'}",
            fix=_FIX_SAVE,
        ) from None


def _reject_value(value: Any, path: str, expected: str) -> NoReturn:
    raise _SchemaError(f"found {short_repr(value)}, expected {expected}.", path)


def _check_text(value: Any, path: str) -> None:
    if not isinstance(value, str):
        _reject_value(value, path, "text")


def _check_count(value: Any, path: str) -> None:
    # bool is a subclass of int, and `true` is not a count.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_COUNT:
        _reject_value(value, path, "an integer of at least 0")


def _check_positive(value: Any, path: str) -> None:
    _check_count(value, path)
    if value == 0:
        _reject_value(value, path, "an integer of at least 1")


def _check_fraction(value: Any, path: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # NaN and huge integers fail the comparison too.
    if not is_number or not 0 <= value < 1:
        _reject_value(value, path, "a fraction from 0 to 1")


def _check_flag(value: Any, path: str) -> None:
    if not isinstance(value, bool):
        _reject_value(value, path, "true or false")


def _accept_any(value: Any, path: str) -> None:
    """Accept anything: the value is displayed, never used."""


def _optional_check(check: Check) -> Check:
    return lambda value, path: None if value is None else check(value, path)


def _one_of_check(*names: str) -> Check:
    def check_name(value: Any, path: str) -> None:
        if not isinstance(value, str) or value not in names:
            _reject_value(value, path, f"one of {', '.join(names)}")

    return check_name


def _list_check(check: Check, max_length: int | None = None, min_length: int = 0) -> Check:
    def check_list(value: Any, path: str) -> None:
        if not isinstance(value, list):
            _reject_value(value, path, "a list")
        if max_length is not None and len(value) > max_length:
            raise _SchemaError(
                f"found a list of {len(value):,}, expected at most {max_length}.", path
            )
        if len(value) < min_length:
            raise _SchemaError("found an empty list, expected at least one element.", path)
        for index, element in enumerate(value):
            check(element, f"{path}[{index}]")

    return check_list


def _object_check(check: Check) -> Check:
    def check_object(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            _reject_value(value, path, "an object")
        for name, member in value.items():
            # Keys have any length, error messages must stay short.
            check(member, f"{path}.{name[:80]}")

    return check_object


def _record_check(
    required: Mapping[str, Check], optional: Mapping[str, Check] | None = None
) -> Check:
    """Return the check of an object with these keys."""
    checks = {**required, **(optional or {})}

    def check_record(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            _reject_value(value, path, "an object")
        for name, check in checks.items():
            member_path = f"{path}.{name}" if path else name
            if name in value:
                check(value[name], member_path)
            elif name in required:
                raise _SchemaError(f"{name!r} is missing.", path)
        for name in value:
            if name not in checks:
                raise _SchemaError(f"found the key {name!r:.80}, which no plan has.", path)

    return check_record


def _check_spec_entry(value: Any, path: str) -> None:
    if isinstance(value, list):
        _list_check(_check_text, _MAX_DIMS)(value, path)
    elif value is not None and not isinstance(value, str):
        _reject_value(value, path, "null, a mesh axis name, or a list of names")


def _check_rule(value: Any, path: str) -> None:
    kinds = [kind for kind in RULE_KINDS if isinstance(value, Mapping) and kind in value]
    if len(kinds) != 1:
        _reject_value(value, path, "a rule with a pattern, a path or a logical name")
    axes = (
        {"axes": _list_check(_check_text, _MAX_DIMS)} if kinds == ["logical"] else {"spec": _SPEC}
    )
    _record_check({kinds[0]: _check_text, **axes}, {"reason": _check_text})(value, path)


def _check_choice(value: Any, path: str) -> None:
    if not isinstance(value, (str, bool)):
        _check_count(value, path)


# Keys are those of format version 1, see `Plan.to_json`.
_SPEC = _list_check(_check_spec_entry, _MAX_DIMS)
_SHAPE = _list_check(_check_count, _MAX_DIMS)
_KIND = _one_of_check(*KINDS)
_ARRAY = _record_check(
    {
        "kind": _KIND,
        "name": _check_text,
        "shape": _SHAPE,
        "dtype": _check_text,
        "spec": _SPEC,
        "shard_shape": _SHAPE,
        "n_copies": _check_positive,
        "bytes_per_device": _check_count,
        "array_bytes": _check_count,
    }
)
_SKIPPED_SHARDING = _record_check(
    {
        "part": _check_text,
        "mesh_axes": _list_check(_check_text, _MAX_DIMS),
        "n_parts": _check_positive,
        "array_axis": _check_count,
        "size": _check_count,
        "meaning": _check_text,
    }
)
_ROW = _record_check(
    {
        "path": _check_text,
        "n_tensors": _check_count,
        "held": _list_check(_ARRAY, min_length=1),
        "rule": _check_text,
        "axes": _optional_check(_list_check(_optional_check(_check_text), _MAX_DIMS)),
        "numbers": _check_text,
    },
    {"rule_index": _check_count, "declined": _list_check(_SKIPPED_SHARDING)},
)
_SOURCE = _record_check({"file": _check_text, "line": _check_count}, {"function": _check_text})
_FINDING = _record_check(
    {
        "code": _check_text,
        "severity": _one_of_check("error", "warning", "info"),
        "what": _check_text,
        "where": _optional_check(_SOURCE),
        "fix": _check_text,
        "cause": _check_text,
        "shows": _list_check(_check_text),
        "details": _object_check(_accept_any),
    }
)
_BUDGET = _record_check(
    {
        "hardware": _check_text,
        "hbm_bytes": _check_positive,
        "headroom": _check_fraction,
        "source": _check_text,
    }
)
_PLAN = _record_check(
    {
        "format": _check_text,
        "format_version": _check_positive,
        "model": _check_text,
        "source": _check_text,
        "mesh": _object_check(_check_positive),
        "n_parameters": _check_count,
        "choices": _object_check(_check_choice),
        "bytes_per_device": _object_check(_check_count),
        "room": _optional_check(_BUDGET),
        "rules": _list_check(_check_rule),
        "rows": _list_check(_ROW),
        "items": _list_check(
            _record_check(
                {
                    "kind": _KIND,
                    "name": _check_text,
                    "bytes_per_device": _check_count,
                    "formula": _check_text,
                }
            )
        ),
        "findings": _list_check(_FINDING),
        "notes": _list_check(_check_text),
    },
    {"derived_rules": _check_flag},
)

_flat_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_LINE_WIDTH = 96  # characters: shorter values stay on one line, so that diffs show what changed
_MIN_LEAF_WIDTH = 3  # characters that a leaf takes at least, with its separator


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file; an interruption leaves the old file unchanged."""
    write_atomically(Path(path), canonical_text(plan))


def canonical_text(plan: Plan) -> str:
    """Return the text of a golden file: sorted, and without anything specific to this machine."""
    data = plan.to_json()
    data["source"] = ""  # a path, which differs between machines
    data["choices"] = dict(sorted(data["choices"].items()))
    for location in filter(None, (finding["where"] for finding in data["findings"])):
        location["file"] = Path(location["file"]).name
    # The order of rows depends on the source of the model, the comparison does not.
    data["rows"].sort(key=lambda row: (row["path"], row["numbers"], row["rule"]))
    return "\n".join(_json_lines(data)) + "\n"


def load_plan(path: str | Path) -> Plan:
    """Return the plan in a file."""
    return parse_plan(read_plan_file(path), str(path))


def parse_plan(text: str, where: str) -> Plan:
    """Return the plan in a text; `where` names it in errors."""
    return parse_plan_data(parse_plan_json(text, where), where)


def parse_plan_data(data: Any, where: str) -> Plan:
    """Return the plan in plain data; errors name the place in it."""
    _check_format(data, where)
    check_schema(data, where)
    plan = Plan.from_json(data)
    for contradiction in _contradictions(plan, data):
        raise InvalidPlan(
            f"The saved plan contradicts itself: {contradiction}", where=where, fix=_FIX_SAVE
        )
    return plan


def _contradictions(plan: Plan, data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the schema cannot express; files may have been edited by hand."""
    axis_names = dict(plan.mesh)
    for row_index, row in enumerate(plan.rows):
        if row.rule_index is not None and row.rule_index >= len(plan.rules):
            yield f"rows[{row_index}].rule_index is {row.rule_index}, but there is no such rule."
        for array_index, array in enumerate(row.arrays):
            location = f"at rows[{row_index}].held[{array_index}]"
            if unknown := [name for name in array.spec.mesh_axes if name not in axis_names]:
                yield f"{location} the spec names {unknown[0]!r:.80}, which the mesh does not have."
            if not len(array.spec) <= len(array.shape) == len(array.shard_shape):
                yield f"{location} the shape, the spec and the shard have different lengths."
    for name, n_bytes in plan.to_json()["bytes_per_device"].items():
        if data["bytes_per_device"].get(name) != n_bytes:
            value = short_repr(data["bytes_per_device"].get(name), 40)
            yield f"bytes_per_device.{name} is {value}, but its parts add up to {n_bytes}."


def read_plan_file(path: str | Path) -> str:
    """Return the text of a file, at most as long as a plan can be."""
    if not isinstance(path, (str, Path)):
        raise InvalidPlan(f"{short_repr(path)} is not a path.", fix=_FIX_PATH)
    where = f"{path!s:.400}"
    try:
        content = read_regular_file(Path(path), MAX_FILE_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else None
        raise InvalidPlan(
            f"The saved plan cannot be read: {reason or error}.", where=where, fix=_FIX_PATH
        ) from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidPlan(
            f"The file has more than {MAX_FILE_BYTES:,} bytes, which no saved plan has.",
            where=where,
            fix=_FIX_PATH,
        )
    try:
        # Windows editors add a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidPlan(
            f"The saved plan is not text: byte {error.start:,} is not UTF-8.",
            where=where,
            fix=_FIX_PATH,
        ) from None


def parse_plan_json(text: str, where: str) -> Any:
    """Return JSON as plain data; NaN, duplicate keys and too deep nesting are rejected."""
    try:
        return json.loads(
            text, parse_constant=_reject_constant, object_pairs_hook=_reject_duplicates
        )
    except json.JSONDecodeError as error:
        is_truncated = not text[error.pos :].strip()
        raise InvalidPlan(
            f"The saved plan is {'truncated' if is_truncated else 'not JSON'}: {error.msg}.",
            where=f"{where}, line {error.lineno}, column {error.colno}",
            fix=_FIX_SAVE,
        ) from None
    except (ValueError, RecursionError) as error:
        # ValueError: from the two hooks, or an integer of more digits than Python converts.
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidPlan(
            f"The saved plan is not valid JSON: {reason:.200}.", where=where, fix=_FIX_SAVE
        ) from None


def _check_format(data: Any, where: str) -> None:
    file_format = data.get("format") if isinstance(data, Mapping) else None
    if file_format != FORMAT:
        is_near = isinstance(file_format, str) and nearest_name(file_format, (FORMAT,))
        raise InvalidPlan(
            f"The file is not a saved plan: its format is {short_repr(file_format)}, not "
            f"{FORMAT!r}."
            if file_format is not None
            else "The file is JSON, but not a saved plan: it has no format.",
            where=where,
            fix=_FIX_SAVE if is_near else _FIX_PATH,
        )
    version = data.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidPlan(
            f"The saved plan's format_version is {short_repr(version)}, expected an integer of at "
            "least 1.",
            where=where,
            fix=_FIX_SAVE,
        )
    if version > FORMAT_VERSION:
        raise InvalidPlan(
            f"The plan was saved by a newer shardlab: its format version is {version:,}, and this "
            f"version reads up to {FORMAT_VERSION}.",
            where=where,
            fix="update shardlab, or save the plan again with this version.",
        )


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps the last of two equal keys, and an edited file could hide a value that way.
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = Counter(names).most_common(1)[0][0]
        raise ValueError(f"duplicate key {duplicate!r:.80}")
    return members


def _json_lines(value: Any, indent: int = 0, head: str = "", tail: str = "") -> Iterable[str]:
    """Yield JSON in lines: short values stay on one."""
    margin = "  " * indent
    is_leaf = not isinstance(value, (dict, list)) or not value
    # Counting leaves is cheaper than encoding: without it a plan is encoded once per level.
    if is_leaf or _count_leaves(value) <= _LINE_WIDTH // _MIN_LEAF_WIDTH:
        flat = f"{margin}{head}{_flat_json(value)}{tail}"
        if is_leaf or len(flat) <= _LINE_WIDTH:
            yield flat
            return
    pairs = value.items() if isinstance(value, dict) else ((None, member) for member in value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield f"{margin}{head}{opening}"
    for index, (name, member) in enumerate(pairs):
        member_head = "" if name is None else f"{_flat_json(name)}: "
        separator = "," if index < len(value) - 1 else ""
        yield from _json_lines(member, indent + 1, member_head, separator)
    yield f"{margin}{closing}{tail}"


def _count_leaves(value: Any) -> int:
    """Return how many leaves there are, counting no further than needed."""
    if not isinstance(value, (dict, list)):
        return 1
    count = len(value)
    for member in value.values() if isinstance(value, dict) else value:
        if count > _LINE_WIDTH:
            break
        count += _count_leaves(member) - 1 if member else 0
    return count
