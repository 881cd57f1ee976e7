"""The project's settings, read from the nearest `pyproject.toml`.

[tool.shardlab]
replicated_bytes = 268435456
ignore = [{ code = "waste.replicated", path = "models/*.py", reason = "fits, and is simpler" }]
"""

from __future__ import annotations

import linecache
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab._text.nearest import nearest_name
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
class ProjectConfig:
    """Settings of a project; `folder` is the folder of its pyproject.toml, if it has one."""

    replicated_bytes: int = REPLICATED_BYTES
    ignore: tuple[IgnoreRule, ...] = ()
    folder: Path | None = None

    def suppress(
        self, findings: Iterable[Finding]
    ) -> tuple[tuple[Finding, ...], tuple[SuppressedFinding, ...]]:
        """Return the remaining findings, and those suppressed here or by a comment."""
        return suppress_findings(findings, _read_source_line, self.ignore, self._relative_path)

    def _relative_path(self, file: str) -> str:
        # Findings name files relative to the working directory, rules relative to the project.
        path = Path(file).absolute()
        if self.folder is not None and path.is_relative_to(self.folder):
            return path.relative_to(self.folder).as_posix()
        return path.as_posix()


def read_config(start_path: str | Path | None = None) -> ProjectConfig:
    """Return the settings of the project of a file or folder; by default the working directory's.

    >>> read_config("/").replicated_bytes
    67108864
    """
    start = Path.cwd() if start_path is None else Path(start_path).absolute()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            return _read_pyproject(file)
    return ProjectConfig()


def _read_source_line(location: SourceLocation) -> str:
    return linecache.getline(location.file, location.line)


# ----------------------------------------------------------------------------------------- parsing


def _read_pyproject(file: Path) -> ProjectConfig:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"Cannot read the project's configuration: {error}.",
            where=str(file),
            fix="fix the file; it is not valid TOML.",
        ) from None
    tool = _parse_table(document.get("tool", {}), file, "tool")
    settings = _parse_table(tool.get("shardlab", {}), file, "tool.shardlab")
    _reject_unknown_keys(settings, _KEYS, file, "tool.shardlab")
    return ProjectConfig(
        replicated_bytes=_parse_bytes(settings.get("replicated_bytes", REPLICATED_BYTES), file),
        ignore=_parse_ignore_rules(settings.get("ignore", []), file),
        folder=file.parent,
    )


def _parse_table(value: Any, file: Path, key: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise _invalid_value(file, key, value, "a table")


def _parse_bytes(value: Any, file: Path) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _invalid_value(file, "tool.shardlab.replicated_bytes", value, "an integer, in bytes")


def _parse_ignore_rules(value: Any, file: Path) -> tuple[IgnoreRule, ...]:
    if not isinstance(value, list):
        raise _invalid_value(file, "tool.shardlab.ignore", value, "a list of tables")
    return tuple(_parse_ignore_rule(entry, file, number) for number, entry in enumerate(value))


def _parse_ignore_rule(value: Any, file: Path, number: int) -> IgnoreRule:
    key = f"tool.shardlab.ignore[{number}]"
    entry = _parse_table(value, file, key)
    _reject_unknown_keys(entry, _IGNORE_KEYS, file, key)
    # A rule without a reason is rejected, like a comment without one; without a path it is global.
    texts = {"code": "", "reason": "", "path": "*"} | dict(entry)
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise _invalid_value(file, f"{key}.{name}", text, f"a {name}, as text")
    if texts["code"] not in CODES:
        suggestion = nearest_name(texts["code"], CODES)
        raise InvalidConfig(
            f"Unknown finding code '{texts['code']}'.",
            where=f"{file}, {key}.code",
            fix=f"Did you mean '{suggestion}'?" if suggestion else "see docs/findings for codes.",
        )
    return IgnoreRule(texts["code"], texts["reason"].strip(), texts["path"])


def _reject_unknown_keys(
    table: Mapping[str, Any], allowed: tuple[str, ...], file: Path, where: str
) -> None:
    for key in table:
        if key not in allowed:
            suggestion = nearest_name(key, allowed)
            raise InvalidConfig(
                f"Unknown setting '{key}'.",
                where=f"{file}, {where}.{key}",
                fix=f"Did you mean '{suggestion}'?"
                if suggestion
                else f"use one of {', '.join(allowed)}.",
            )


def _invalid_value(file: Path, key: str, value: Any, expected: str) -> InvalidConfig:
    return InvalidConfig(
        f"'{key}' is {value!r}.", where=f"{file}, {key}", fix=f"it must be {expected}."
    )
