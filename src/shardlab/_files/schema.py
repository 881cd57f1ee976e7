"""Schemas of the TOML and JSON tables that users write: keys, accepted values, meaning.

One table per format, so that the reader, its error messages and the page about the format share
their text:

>>> from shardlab.errors import InvalidModel
>>> fields = {"layers": Field(expected="a whole number", is_valid=is_count, meaning="of the model")}
>>> check_fields({"layer": 3}, fields, "model.toml", InvalidModel)
Traceback (most recent call last):
    ...
shardlab.errors.InvalidModel: [plan.invalid_model] Unknown key 'layer'.
  where: model.toml
  try:   Did you mean 'layers'?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab._files.toml_reader import parse_toml
from shardlab._text.nearest import nearest_name
from shardlab.errors import LabError, short_repr


@dataclass(frozen=True, kw_only=True)
class Field:
    """One key of a table: the expected value as text and as a predicate, and its meaning."""

    expected: str
    is_valid: Callable[[Any], bool]
    meaning: str
    is_required: bool = False


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def is_count(value: Any, least: int = 0) -> bool:
    # bool is a subclass of int; 64 bits is what every consumer of the numbers can store.
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 63


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_list_of(accepts_item: Callable[[str], bool]) -> Callable[[Any], bool]:
    """Return a predicate for lists of text of which every item is accepted."""
    return lambda value: is_text_list(value) and all(map(accepts_item, value))


def is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def read_toml_file(file: Path, error: type[LabError], *, fix: str) -> dict[str, Any]:
    """Return the table of a TOML file; raise `error` if it cannot be read or parsed.

    `fix` is the suggestion for a file that cannot be read.
    """
    try:
        return parse_toml(file.read_text("utf-8"))
    except OSError as reason:
        message = f"{file.name} cannot be read: {reason.strerror}."
        raise error(message, where=str(file), fix=fix) from None
    except (ValueError, RecursionError) as reason:  # TOML and UTF-8 errors are ValueErrors
        message = f"{file.name} is not valid TOML: {reason}."
        raise error(message, where=str(file), fix="fix the syntax there.") from None


def check_fields(
    data: Any, fields: Mapping[str, Field], where: str, error: type[LabError], table_key: str = ""
) -> Mapping[str, Any]:
    """Return `data` if all its keys and values are valid; raise `error` otherwise.

    `table_key` is the table's own key in the file, such as `architecture`.
    """
    table = f"{where}, {table_key}" if table_key else where
    if not isinstance(data, Mapping):
        raise error(f"{_describe_value(data)} is not a table.", where=table, fix="write a table.")
    for key, value in data.items():
        if key not in fields:
            raise error(
                f"Unknown key {short_repr(key)}.", where=table, fix=_suggest_key(key, fields)
            )
        if not fields[key].is_valid(value):
            path = f"{table_key}.{key}" if table_key else key
            message = f"{key!r} is {_describe_value(value)}."
            raise error(message, where=f"{where}, {path}", fix=f"{fields[key].expected}.")
    for key, field in fields.items():
        if field.is_required and key not in data:
            message = f"{key!r} is missing."
            raise error(message, where=table, fix=f"{key} = {field.expected}.")
    return data


def _describe_value(value: Any) -> str:
    # Python raises for the text of an integer with more than 4300 digits.
    if isinstance(value, int) and value.bit_length() > 400:
        return f"a number of {value.bit_length():,} bits"
    return f"{short_repr(value, 200)}"


def _suggest_key(name: Any, fields: Mapping[str, Field]) -> str:
    match = nearest_name(f"{name!s:.80}", fields)
    return f"Did you mean {match!r}?" if match else f"one of {', '.join(fields)}."
