"""The settings of a configuration, each checked when it is read, with a list of what was read.

>>> settings = Settings({"seq_len": 4096, "lr": 1e-4}, "train.toml")
>>> settings.size("seq_len"), settings.read, settings.ignored
(4096, ('seq_len: 4096',), ('lr',))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidRunConfig, short_repr

_MAX_SIZE = 1 << 40
_MISSPELLED = 0.93  # similarity of names: one wrong letter in seven, two in fifteen


class Settings:
    """Named values of unknown types; every method returns one value or raises."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self._used: dict[str, None] = {}  # in the order of reading
        self._known: set[str] = set()  # whether or not there is a value

    @property
    def read(self) -> tuple[str, ...]:
        """The settings that were read, as text."""
        return tuple(f"{name}: {_value_text(self.values[name])}" for name in self._used)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of settings that nothing has read."""
        return tuple(f"{name!s:.80}" for name in self.values if name not in self._used)

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        self._known.add(name)
        return self.values.get(name) is not None

    def take(self, name: str) -> Any:
        """Return a value of any type and note that it was read; None if there is none."""
        self._known.add(name)
        if name in self.values:
            self._used[name] = None
        return self.values.get(name)

    def check_spelling(self) -> None:
        """Raise for a setting that nothing reads if its name is almost one that is read.

        A misspelled mesh axis would otherwise be a plan for another mesh. Most settings do not
        concern a plan, so only a slip of one letter or two in a long name counts as misspelled.

        >>> settings = Settings({"tensor_paralel": 8}, "train.toml")
        >>> _ = settings.size("tensor_parallel", 1)
        >>> settings.check_spelling()
        Traceback (most recent call last):
            ...
        shardlab.errors.InvalidRunConfig: [plan.invalid_config] 'tensor_paralel' is not a setting.
          where: train.toml
          try:   Did you mean 'tensor_parallel'?
        """
        absent = sorted(name for name in self._known if name not in self.values)
        meant: dict[str, str] = {}
        for name in self.ignored:
            nearest = nearest_name(name, absent, _MISSPELLED)
            if nearest is not None and _letters(nearest) != _letters(name):
                meant[name] = nearest
        if not meant:
            return
        names = " and ".join(short_repr(name, 80) for name in meant)
        raise InvalidRunConfig(
            f"{names} {'is not a setting' if len(meant) == 1 else 'are not settings'}.",
            where=self.where,
            fix=f"Did you mean {' and '.join(map(repr, meant.values()))}?",
        )

    def mark_read(self, names: Iterable[str]) -> None:
        """Note that settings were read, with whatever values."""
        self._used.update(dict.fromkeys(name for name in names if name in self.values))

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 1 on; raises if it is missing and has no default."""
        value = self.optional_size(name)
        if value is not None:
            return value
        if default is not None:
            return default
        raise InvalidRunConfig(
            f"{name} is missing.", where=self.where, fix=f"add {name}, or name the model: MODEL."
        )

    def optional_size(self, name: str) -> int | None:
        """Return a whole number from 1 on, or None if it is absent."""
        value = _as_number(self.take(name))
        if value is None:
            return None
        if not isinstance(value, int) or not 1 <= value < _MAX_SIZE:
            raise self.error(name, "a whole number from 1 on")
        return value

    def count(self, name: str, default: int = 0) -> int:
        """Return a whole number from 0 on."""
        value = _as_number(self.take(name))
        if value is None:
            return default
        if not isinstance(value, int) or not 0 <= value < _MAX_SIZE:
            raise self.error(name, "a whole number from 0 on")
        return value

    def degree(self, name: str, default: int = 1) -> int:
        """Return the size of a mesh axis: from 1 on, or -1 for the remaining devices."""
        value = _as_number(self.take(name))
        if value is None:
            return default
        if not isinstance(value, int) or not (value == -1 or 1 <= value < _MAX_SIZE):
            raise self.error(name, "a whole number from 1 on, or -1 for the remaining devices")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number above 0."""
        value = _as_number(self.take(name))
        if value is None:
            return default
        if not isinstance(value, (int, float)) or not 0 < value < _MAX_SIZE:
            raise self.error(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return text."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, str) or not value.isprintable():
            raise self.error(name, "text")
        return value.strip()

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """Return what a choice stands for; raises for one that is not known."""
        key = self.text(name, default).lower()
        if key in choices:
            return choices[key]
        raise self.error(name, f"one of {', '.join(filter(None, choices))}")

    def error(self, name: str, expected: str) -> InvalidRunConfig:
        """Return the error about a value."""
        value = self.values.get(name)
        what = f"{name} is {short_repr(value, 80)}."
        if isinstance(value, str) and "$" in value:
            what = f"{name} is {short_repr(value, 80)}, and no line of the file sets it."
        return InvalidRunConfig(what, where=self.where, fix=f"{expected}.")


def _letters(name: str) -> str:
    # --fp8-format and --fp4-format are different settings.
    return "".join(char for char in name.lower() if char.isalpha())


def _as_number(value: Any) -> Any:
    """Return a number that was written as text as the number; bool is not a number."""
    if isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or len(value) > 40:
        return value
    text = value.strip().replace("_", "")
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return value


def _value_text(value: Any) -> str:
    return short_repr(value, 60).strip("'") if not isinstance(value, bool) else str(value).lower()
