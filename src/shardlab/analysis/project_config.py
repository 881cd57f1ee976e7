"""What a person has set in the nearest `pyproject.toml`, and the source lines that findings name.

[tool.shardlab]
replicated_bytes = 268435456
ignore = [{ code = "waste.replicated", path = "models/*.py", reason = "fits, and is simpler" }]
"""

from __future__ import annotations

import difflib
import linecache
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.checks.check_codes import CODES
from shardlab.checks.check_replicated_arrays import REPLICATED_BYTES
from shardlab.checks.suppression import IgnoreRule, suppress_findings
from shardlab.errors import InvalidConfig
from shardlab.findings.finding import Finding
from shardlab.findings.report import SuppressedFinding
from shardlab.findings.source import SourceLocation

_KEYS = ("ignore", "replicated_bytes")
_IGNORE_KEYS = ("code", "path", "reason")


@dataclass(frozen=True)
class Config:
    """Settings of a project; `folder` is where its pyproject.toml is, if it has one."""

    replicated_bytes: int = REPLICATED_BYTES
    ignore: tuple[IgnoreRule, ...] = ()
    folder: Path | None = None

    def silence(
        self, findings: Iterable[Finding]
    ) -> tuple[tuple[Finding, ...], tuple[SuppressedFinding, ...]]:
        """Return the findings that are left, and those silenced here or by a comment."""
        return suppress_findings(findings, _line, self.ignore, self._relative)

    def _relative(self, file: str) -> str:
        path = Path(file).absolute()  # reports name files from where a person stands
        if self.folder is not None and path.is_relative_to(self.folder):
            return path.relative_to(self.folder).as_posix()
        return path.as_posix()


def read_config(near: str | Path | None = None) -> Config:
    """Return the settings of the project that a file or folder belongs to; by default this one.

    >>> read_config("/").replicated_bytes
    67108864
    """
    start = Path.cwd() if near is None else Path(near).absolute()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return Config()


def _line(place: SourceLocation) -> str:
    return linecache.getline(place.file, place.line)


# ----------------------------------------------------------------------------------------- reading


def _read(file: Path) -> Config:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"The project's configuration cannot be read: {error}.",
            where=str(file),
            fix="mend the file; it is not TOML.",
        ) from None
    table = _table(document.get("tool", {}), file, "tool").get("shardlab", {})
    settings = _table(table, file, "tool.shardlab")
    _refuse_unknown(settings, _KEYS, file, "tool.shardlab")
    return Config(
        _bytes(settings.get("replicated_bytes", REPLICATED_BYTES), file),
        tuple(_ignore(each, file, n) for n, each in enumerate(_ignores(settings, file))),
        file.parent,
    )


def _table(value: Any, file: Path, key: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise _bad(file, key, value, "a table")


def _bytes(value: Any, file: Path) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _bad(file, "tool.shardlab.replicated_bytes", value, "a whole number of bytes")


def _ignores(settings: Mapping[str, Any], file: Path) -> list[Any]:
    value = settings.get("ignore", [])
    if isinstance(value, list):
        return value
    raise _bad(file, "tool.shardlab.ignore", value, "a list of tables")


def _ignore(value: Any, file: Path, number: int) -> IgnoreRule:
    key = f"tool.shardlab.ignore[{number}]"
    entry = _table(value, file, key)
    _refuse_unknown(entry, _IGNORE_KEYS, file, key)
    texts = {name: entry.get(name, "") for name in ("code", "reason")} | {
        "path": entry.get("path", "*")
    }
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise _bad(file, f"{key}.{name}", text, f"a {name}, as text")
    if texts["code"] not in CODES:
        close = difflib.get_close_matches(texts["code"], CODES, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "see docs/findings for the codes."
        raise InvalidConfig(
            f"There is no finding with the code '{texts['code']}'.",
            where=f"{file}, {key}.code",
            fix=hint,
        )
    return IgnoreRule(texts["code"], texts["reason"].strip(), texts["path"])


def _refuse_unknown(
    table: Mapping[str, Any], known: tuple[str, ...], file: Path, where: str
) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            raise InvalidConfig(
                f"There is no setting '{key}'.",
                where=f"{file}, {where}.{key}",
                fix=f"did you mean '{close[0]}'?" if close else f"use one of {', '.join(known)}.",
            )


def _bad(file: Path, key: str, value: Any, wanted: str) -> InvalidConfig:
    return InvalidConfig(
        f"'{key}' is {value!r}.", where=f"{file}, {key}", fix=f"it must be {wanted}."
    )
