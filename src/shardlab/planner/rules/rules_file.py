r"""The file of rules: TOML that people keep in their repository, each mistake with its line.

>>> text = '''
... format_version = 1
... logical = [["embed", "fsdp"], ["mlp", ["tensor", "expert"]]]
...
... [[rules]]
... path = 'mlp/.*kernel'
... spec = "fsdp,tensor"
...
... [[rules]]
... path = ".*"
... spec = ""
... reason = "norms and biases are small"
...
... [specs]
... "lm_head.weight" = "tensor"
... '''
>>> rules = parse_rules_text(text, "rules.toml")
>>> rules.rules[1].where, rules.specs[0].where, parse_rules_text(rules_text(rules)).rules[1].reason
('rules.toml:9', 'rules.toml:15', 'norms and biases are small')
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_regular_file
from shardlab._files.toml_reader import parse_toml
from shardlab.errors import InvalidRules, short_repr
from shardlab.findings.source import SourceLocation
from shardlab.planner.rules.rules import (
    LogicalRule,
    PathSpec,
    Rule,
    Rules,
    check_pattern_length,
    check_rule_count,
    parse_logical_rule,
    parse_path_spec,
    parse_rule,
    parse_stack,
    parse_semantics,
    unknown_key,
)
from shardlab.sharding.spec import Spec

FORMAT_VERSION = 1
MAX_BYTES = 8 * 2**20
_KEYS = ("format_version", "stack", "logical", "logical_semantics", "rules", "specs")
_RULE_KEYS = ("path", "spec", "reason")
_EXAMPLE = "[[rules]], then path = 'mlp/.*kernel' and spec = \"fsdp,tensor\"."
_MAXTEXT = "a TOML file with the list after logical_axis_rules: as it is, logical = [...]."
_SPECS = re.compile(r"\s*\[\s*specs\s*\]")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*[.=]""")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def load_rules(path: str | Path) -> Rules:
    """Return the rules of a file."""
    place = Path(path)
    try:
        found = read_regular_file(place, MAX_BYTES)
        if len(found) > MAX_BYTES:
            fix = f"at most {MAX_BYTES // 2**20} MiB; one rule serves many tensors."
            raise InvalidRules("The file is too large for rules.", where=str(path), fix=fix)
        text = found.decode("utf-8-sig").replace("\r\n", "\n")
        return parse_rules_text(text, str(path))
    except FileNotFoundError:
        fix = "the path of a TOML file with rules, or the rules themselves as a list."
        raise InvalidRules("There is no such file.", where=f"{path!s:.200}", fix=fix) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidRules):
            raise
        said = getattr(error, "strerror", None) or str(error)
        raise InvalidRules(
            f"The file cannot be read: {said:.200}.",
            where=f"{path!s:.200}",
            fix="a TOML file in UTF-8.",
        ) from None


def parse_rules_text(text: str, name: str = "") -> Rules:
    """Return the rules of a file's text."""
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:
        line = re.search(r"at line ([0-9]+)", str(error))
        where = str(SourceLocation(name, int(line[1]) if line else 0))
        fix = _MAXTEXT if "logical_axis_rules:" in text else _EXAMPLE
        raise InvalidRules(f"The file is not TOML: {error}.", where=where, fix=fix) from None
    lines = _Lines(text, name)
    for key in data:
        if key not in _KEYS:
            raise unknown_key(key, _KEYS, str(lines.of_key(key)))
    _check_version(data, lines)
    return Rules(
        rules=_rules(data, lines),
        source=name,
        specs=_specs(data, lines),
        logical=_logical(data, lines),
        semantics=parse_semantics(data.get("logical_semantics"), str(lines.of_key("logical_sem"))),
        stack=parse_stack(data.get("stack"), str(lines.of_key("stack"))),
    )


def rules_text(rules: Rules) -> str:
    """Return the file that reads back as these rules."""
    parts = [f"format_version = {FORMAT_VERSION}\n"]
    if rules.stack:
        parts.append(f"stack = {_quoted(rules.stack)}\n")
    if rules.logical:
        rows = [f"  [{_quoted(each.name)}, {_axes(each.axes)}],\n" for each in rules.logical]
        parts.append(f"logical = [\n{''.join(rows)}]\n")
        if rules.semantics is not None:
            parts.append(f"logical_semantics = {_quoted(rules.semantics)}\n")
    for rule in rules.rules:
        reason = f"reason = {_quoted(rule.reason)}\n" if rule.reason else ""
        parts.append(f"\n[[rules]]\npath = {_quoted(rule.pattern)}\nspec = {_spec(rule)}\n{reason}")
    if rules.specs:
        rows = [f"{_quoted(each.pattern)} = {_spec(each)}\n" for each in rules.specs]
        parts.append(f"\n[specs]\n{''.join(rows)}")
    return "".join(parts)


class _Lines:
    """Where things stand in a file; `tomllib` does not say."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.splitlines()
        self.headers = [
            at for at, line in enumerate(self.lines) if re.match(r"\s*\[\[\s*rules\s*\]\]", line)
        ]

    def at(self, line: int) -> SourceLocation | None:
        return SourceLocation(self.name, line + 1) if self.name else None

    def of_rule(self, number: int, n_rules: int, key: str = "") -> SourceLocation | None:
        """Return the line of a rule's header, or of a key of it; the file alone where unsure.

        Headers inside a text of several lines would count wrongly, so all must be there.
        """
        if len(self.headers) != n_rules:
            return SourceLocation(self.name, 0) if self.name else None
        start = self.headers[number]
        for at in range(start + 1, len(self.lines)):
            if re.match(r"\s*\[", self.lines[at]):
                break
            if key and re.match(rf"\s*[\"']?{re.escape(key)}\b", self.lines[at]):
                return self.at(at)
        return self.at(start)

    def of_key(self, key: str) -> SourceLocation | None:
        """Return the first line that begins with a key, or a table of it."""
        wanted = re.compile(rf"\s*(?:\[+\s*)?[\"']?{re.escape(key)}")
        at = next((at for at, line in enumerate(self.lines) if wanted.match(line)), None)
        return (SourceLocation(self.name, 0) if self.name else None) if at is None else self.at(at)

    def of_specs(self) -> dict[str, SourceLocation | None]:
        """Return the lines of the table of specs by their keys, read once for all of them."""
        start = next((at for at, line in enumerate(self.lines) if _SPECS.match(line)), 0)
        found: dict[str, SourceLocation | None] = {}
        for at in range(start, len(self.lines)):
            if key := _KEY.match(self.lines[at]):
                found.setdefault(key[1] or key[2] or key[3], self.at(at))
        return found

    def of_text(self, text: str, after: str) -> SourceLocation | None:
        """Return the first line beneath the one of a key that has a text in quotes."""
        start = self.of_key(after)
        for at in range(max(0, (start.line if start else 1) - 1), len(self.lines)):
            if f'"{text}"' in self.lines[at] or f"'{text}'" in self.lines[at]:
                return self.at(at)
        return start


def _check_version(data: Mapping[str, Any], lines: _Lines) -> None:
    version = data.get("format_version", FORMAT_VERSION)
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise InvalidRules(
            f"The file has format_version {short_repr(version)}; this version reads {FORMAT_VERSION}.",
            where=str(lines.of_key("format_version") or ""),
            fix=f"format_version = {FORMAT_VERSION}, or a newer shardlab.",
        )


def _rules(data: Mapping[str, Any], lines: _Lines) -> tuple[Rule, ...]:
    tables = data.get("rules", [])
    if not isinstance(tables, list):
        raise _wrong(f"'rules' is {short_repr(tables)}.", lines.of_key("rules"), _EXAMPLE)
    where = str(lines.of_key("rules") or "")
    check_rule_count(len(tables), where)
    check_pattern_length((each.get("path") for each in tables if isinstance(each, dict)), where)
    return tuple(_rule(table, number, len(tables), lines) for number, table in enumerate(tables))


def _rule(table: Any, number: int, n_rules: int, lines: _Lines) -> Rule:
    place = lines.of_rule(number, n_rules)
    if not isinstance(table, dict):
        raise _wrong(f"Rule {number + 1} is {short_repr(table)}.", place, _EXAMPLE)
    for key in table:
        if key not in _RULE_KEYS:
            raise unknown_key(key, _RULE_KEYS, str(lines.of_rule(number, n_rules, key) or ""))
    for key in ("path", "spec"):
        if key not in table:
            raise _wrong(f"Rule {number + 1} has no {key!r}.", place, _EXAMPLE)
    if not isinstance(reason := table.get("reason", ""), str):
        at = lines.of_rule(number, n_rules, "reason")
        raise _wrong(
            f"The reason of rule {number + 1} is {short_repr(reason)}.", at, "text in quotes."
        )
    try:
        return parse_rule(table["path"], table["spec"], place, reason)
    except InvalidRules as error:
        raise _at_line(error, place, table, lines, number, n_rules) from None


def _at_line(
    error: InvalidRules,
    place: SourceLocation | None,
    table: Any,
    lines: _Lines,
    number: int,
    n_rules: int,
) -> InvalidRules:
    """Return the error with the line of the pattern or of the spec in place of the header's."""
    key = "spec" if error.what.startswith("A spec") else "path"
    line = lines.of_rule(number, n_rules, key)
    where = error.where.replace(str(place or ""), str(line or ""), 1) if place else error.where
    return InvalidRules(error.what, where=where, fix=error.fix)


def _specs(data: Mapping[str, Any], lines: _Lines) -> tuple[PathSpec, ...]:
    specs = data.get("specs", {})
    fix = '[specs], then "lm_head.weight" = "tensor,None"; a path with dots stands in quotes.'
    if not isinstance(specs, dict):
        raise _wrong(f"'specs' is {short_repr(specs)}.", lines.of_key("specs"), fix)
    places = lines.of_specs()
    found = []
    for path, spec in specs.items():
        place = places.get(path) or lines.of_key("specs")
        if isinstance(spec, dict):
            what = f"The path that begins with {path!r:.80} is not in quotes, so that TOML cuts it."
            raise _wrong(what, place, fix)
        found.append(parse_path_spec(path, spec, place))
    return tuple(found)


def _logical(data: Mapping[str, Any], lines: _Lines) -> tuple[LogicalRule, ...]:
    pairs = data.get("logical", [])
    fix = 'logical = [["embed", "fsdp"], ["mlp", ["tensor", "expert"]], ["norm", []]].'
    if not isinstance(pairs, list):
        raise _wrong(f"'logical' is {short_repr(pairs)}.", lines.of_key("logical"), fix)
    check_rule_count(len(pairs), str(lines.of_key("logical") or ""))
    found = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise _wrong(
                f"The logical rule {short_repr(pair)} is no pair.", lines.of_key("logical"), fix
            )
        place = lines.of_text(pair[0], "logical") if isinstance(pair[0], str) else None
        found.append(parse_logical_rule(pair[0], pair[1], place or lines.of_key("logical")))
    return tuple(found)


def _wrong(what: str, place: SourceLocation | None, fix: str) -> InvalidRules:
    return InvalidRules(what, where=str(place or ""), fix=fix)


def _quoted(text: str) -> str:
    """Return a TOML string: in single quotes where that needs no escapes, as patterns like it."""
    plain = text.isprintable() and "'" not in text
    if plain and ("\\" in text or '"' in text):
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _axes(axes: tuple[str, ...]) -> str:
    return _quoted(axes[0]) if len(axes) == 1 else f"[{', '.join(map(_quoted, axes))}]"


def _spec(rule: Rule) -> str:
    """Return a spec as text, or entry by entry where a name would not survive as text."""
    start = ["..."] if rule.is_trailing else []
    if all(_BARE.fullmatch(name) and name != "None" for name in rule.spec.mesh_axes):
        return _quoted(", ".join([*start, *map(_entry, rule.spec.axes)]))
    entries = [*map(_quoted, start), *(f"[{', '.join(map(_quoted, n))}]" for n in rule.spec.axes)]
    return f"[{', '.join(entries)}]"


def _entry(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return names[0]
    return f"({', '.join(names)})" if names else "None"


def spec_text(spec: Spec) -> str:
    """Return a spec as it stands in a file: `(data, fsdp), None`."""
    return ", ".join(map(_entry, spec.axes))
