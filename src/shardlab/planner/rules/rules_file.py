r"""Rule files: TOML that users keep in their repository; every error names file and line.

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
from shardlab._text.units import bytes_text
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
    parse_semantics,
    parse_stack,
    unknown_key_error,
)

FORMAT_VERSION = 1
MAX_BYTES = 8 * 2**20
_KEYS = ("format_version", "stack", "logical", "logical_semantics", "rules", "specs")
_RULE_KEYS = ("path", "spec", "reason")
_RULE_EXAMPLE = "write [[rules]], then path = 'mlp/.*kernel' and spec = \"fsdp,tensor\"."
_MAXTEXT_FIX = (
    "write a TOML file with the list after logical_axis_rules unchanged: logical = [...]."
)
_RULES_HEADER = re.compile(r"\s*\[\[\s*rules\s*\]\]")
_SPECS_HEADER = re.compile(r"\s*\[\s*specs\s*\]")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*[.=]""")
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def load_rules(path: str | Path) -> Rules:
    """Return the rules of a file."""
    try:
        content = read_regular_file(Path(path), MAX_BYTES)
        if len(content) > MAX_BYTES:
            raise InvalidRules(
                f"The rule file is larger than {bytes_text(MAX_BYTES)}.",
                where=str(path),
                fix="use fewer rules: one pattern serves many tensors.",
            )
        # Windows editors write a byte-order mark and CRLF; neither is valid TOML.
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        return parse_rules_text(text, str(path))
    except FileNotFoundError:
        raise InvalidRules(
            "The rule file does not exist.",
            where=f"{path!s:.200}",
            fix="give the path of a TOML file with rules, or the rules themselves as a list.",
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidRules):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRules(
            f"The rule file cannot be read: {reason:.200}.",
            where=f"{path!s:.200}",
            fix="use a TOML file in UTF-8.",
        ) from None


def parse_rules_text(text: str, name: str = "") -> Rules:
    """Return the rules in the text of a file."""
    try:
        data = parse_toml(text)
    except (ValueError, RecursionError) as error:
        line = re.search(r"at line ([0-9]+)", str(error))  # tomllib has no field for the line
        where = str(SourceLocation(name, int(line[1]) if line else 0))
        fix = _MAXTEXT_FIX if "logical_axis_rules:" in text else _RULE_EXAMPLE
        raise InvalidRules(f"The file is not valid TOML: {error}.", where=where, fix=fix) from None
    locations = _Locations(text, name)
    for key in data:
        if key not in _KEYS:
            raise unknown_key_error(key, _KEYS, str(locations.find_key(key)))
    _check_version(data, locations)
    return Rules(
        rules=_parse_rules_section(data, locations),
        source=name,
        specs=_parse_specs_section(data, locations),
        logical=_parse_logical_section(data, locations),
        semantics=parse_semantics(
            data.get("logical_semantics"), str(locations.find_key("logical_semantics"))
        ),
        stack=parse_stack(data.get("stack"), str(locations.find_key("stack"))),
    )


class _Locations:
    """Lines of keys in a file, found by regular expression because `tomllib` does not tell them."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines = text.splitlines()
        self.rule_headers = [
            index for index, line in enumerate(self.lines) if _RULES_HEADER.match(line)
        ]

    def line_location(self, index: int) -> SourceLocation | None:
        """Return the location of a line; None for text that is no file."""
        return SourceLocation(self.name, index + 1) if self.name else None

    def file_location(self) -> SourceLocation | None:
        """Return the location of the file, without a line."""
        return SourceLocation(self.name, 0) if self.name else None

    def find_rule(self, number: int, n_rules: int, key: str = "") -> SourceLocation | None:
        """Return the line of a rule's header, or of one of its keys; else of the file alone."""
        # A header inside a multi-line string is counted too. If the count is off, any line could
        # be wrong, so none is given.
        if len(self.rule_headers) != n_rules:
            return self.file_location()
        start = self.rule_headers[number]
        for index in range(start + 1, len(self.lines)):
            if re.match(r"\s*\[", self.lines[index]):
                break
            if key and re.match(rf"\s*[\"']?{re.escape(key)}\b", self.lines[index]):
                return self.line_location(index)
        return self.line_location(start)

    def find_key(self, key: str) -> SourceLocation | None:
        """Return the first line that begins with a key, or with a table of that name."""
        pattern = re.compile(rf"\s*(?:\[+\s*)?[\"']?{re.escape(key)}")
        for index, line in enumerate(self.lines):
            if pattern.match(line):
                return self.line_location(index)
        return self.file_location()

    def find_specs(self) -> dict[str, SourceLocation | None]:
        """Return the lines of the specs table by key, in one pass for tables of any length."""
        start = next(
            (index for index, line in enumerate(self.lines) if _SPECS_HEADER.match(line)), 0
        )
        by_key: dict[str, SourceLocation | None] = {}
        for index in range(start, len(self.lines)):
            if key := _KEY.match(self.lines[index]):
                by_key.setdefault(key[1] or key[2] or key[3], self.line_location(index))
        return by_key

    def find_string(self, text: str, section: str) -> SourceLocation | None:
        """Return the first line of a section that has this text in quotes."""
        start = self.find_key(section)
        for index in range(max(0, (start.line if start else 1) - 1), len(self.lines)):
            if f'"{text}"' in self.lines[index] or f"'{text}'" in self.lines[index]:
                return self.line_location(index)
        return start


def _check_version(data: Mapping[str, Any], locations: _Locations) -> None:
    version = data.get("format_version", FORMAT_VERSION)
    if isinstance(version, bool) or version != FORMAT_VERSION:
        raise InvalidRules(
            f"The file has format_version {short_repr(version)}; this shardlab reads "
            f"{FORMAT_VERSION}.",
            where=str(locations.find_key("format_version") or ""),
            fix=f"write format_version = {FORMAT_VERSION}, or install a newer shardlab.",
        )


def _parse_rules_section(data: Mapping[str, Any], locations: _Locations) -> tuple[Rule, ...]:
    tables = data.get("rules", [])
    if not isinstance(tables, list):
        raise _rules_error(
            f"'rules' is {short_repr(tables)}.", locations.find_key("rules"), _RULE_EXAMPLE
        )
    # Before any pattern is parsed, because parsing is what the limits are for.
    where = str(locations.find_key("rules") or "")
    check_rule_count(len(tables), where)
    check_pattern_length((table.get("path") for table in tables if isinstance(table, dict)), where)
    return tuple(
        _parse_rule_table(table, number, len(tables), locations)
        for number, table in enumerate(tables)
    )


def _parse_rule_table(table: Any, number: int, n_rules: int, locations: _Locations) -> Rule:
    location = locations.find_rule(number, n_rules)
    if not isinstance(table, dict):
        raise _rules_error(f"Rule {number + 1} is {short_repr(table)}.", location, _RULE_EXAMPLE)
    for key in table:
        if key not in _RULE_KEYS:
            where = str(locations.find_rule(number, n_rules, key) or "")
            raise unknown_key_error(key, _RULE_KEYS, where)
    for key in ("path", "spec"):
        if key not in table:
            raise _rules_error(f"Rule {number + 1} has no {key!r}.", location, _RULE_EXAMPLE)
    if not isinstance(reason := table.get("reason", ""), str):
        raise _rules_error(
            f"The reason of rule {number + 1} is {short_repr(reason)}.",
            locations.find_rule(number, n_rules, "reason"),
            "write text in quotes.",
        )
    return parse_rule(
        table["path"],
        table["spec"],
        location,
        reason,
        pattern_where=str(locations.find_rule(number, n_rules, "path") or ""),
        spec_where=str(locations.find_rule(number, n_rules, "spec") or ""),
    )


def _parse_specs_section(data: Mapping[str, Any], locations: _Locations) -> tuple[PathSpec, ...]:
    specs = data.get("specs", {})
    fix = 'write [specs], then "lm_head.weight" = "tensor,None"; quote a path with dots.'
    if not isinstance(specs, dict):
        raise _rules_error(f"'specs' is {short_repr(specs)}.", locations.find_key("specs"), fix)
    by_key = locations.find_specs()
    path_specs = []
    for path, spec in specs.items():
        location = by_key.get(path) or locations.find_key("specs")
        if isinstance(spec, dict):
            # TOML parses lm_head.weight = ... as a table lm_head with a key weight.
            message = f"The path that begins with {path!r:.80} is not in quotes, so TOML splits it."
            raise _rules_error(message, location, fix)
        path_specs.append(parse_path_spec(path, spec, location))
    return tuple(path_specs)


def _parse_logical_section(
    data: Mapping[str, Any], locations: _Locations
) -> tuple[LogicalRule, ...]:
    pairs = data.get("logical", [])
    fix = 'write logical = [["embed", "fsdp"], ["mlp", ["tensor", "expert"]], ["norm", []]].'
    section = locations.find_key("logical")
    if not isinstance(pairs, list):
        raise _rules_error(f"'logical' is {short_repr(pairs)}.", section, fix)
    check_rule_count(len(pairs), str(section or ""))
    logical_rules = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise _rules_error(f"The logical rule {short_repr(pair)} is not a pair.", section, fix)
        name, axes = pair
        location = locations.find_string(name, "logical") if isinstance(name, str) else None
        logical_rules.append(parse_logical_rule(name, axes, location or section))
    return tuple(logical_rules)


def _rules_error(message: str, location: SourceLocation | None, fix: str) -> InvalidRules:
    return InvalidRules(message, where=str(location or ""), fix=fix)


def rules_text(rules: Rules) -> str:
    """Return the text of a file that reads back as these rules."""
    sections = [f"format_version = {FORMAT_VERSION}\n"]
    if rules.stack:
        sections.append(f"stack = {_quote_toml(rules.stack)}\n")
    if rules.logical:
        rows = [
            f"  [{_quote_toml(rule.name)}, {_axes_toml(rule.axes)}],\n" for rule in rules.logical
        ]
        sections.append(f"logical = [\n{''.join(rows)}]\n")
        if rules.semantics is not None:
            sections.append(f"logical_semantics = {_quote_toml(rules.semantics)}\n")
    for rule in rules.rules:
        reason = f"reason = {_quote_toml(rule.reason)}\n" if rule.reason else ""
        sections.append(
            f"\n[[rules]]\npath = {_quote_toml(rule.pattern)}\nspec = {_spec_toml(rule)}\n{reason}"
        )
    if rules.specs:
        rows = [f"{_quote_toml(spec.pattern)} = {_spec_toml(spec)}\n" for spec in rules.specs]
        sections.append(f"\n[specs]\n{''.join(rows)}")
    return "".join(sections)


def _quote_toml(text: str) -> str:
    """Return a TOML string, in single quotes if that avoids escapes in a pattern."""
    is_literal = text.isprintable() and "'" not in text
    if is_literal and ("\\" in text or '"' in text):
        return f"'{text}'"
    # A JSON string is a TOML basic string, except that TOML also requires DEL to be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _axes_toml(axes: tuple[str, ...]) -> str:
    return _quote_toml(axes[0]) if len(axes) == 1 else f"[{', '.join(map(_quote_toml, axes))}]"


def _spec_toml(rule: Rule) -> str:
    """Return a spec as text, or entry by entry if a name would not survive as text."""
    ellipsis = ["..."] if rule.is_trailing else []
    if all(_BARE_NAME.fullmatch(name) and name != "None" for name in rule.spec.mesh_axes):
        return _quote_toml(", ".join([*ellipsis, *map(_entry_text, rule.spec.axes)]))
    entries = [f"[{', '.join(map(_quote_toml, names))}]" for names in rule.spec.axes]
    return f"[{', '.join([*map(_quote_toml, ellipsis), *entries])}]"


def _entry_text(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return names[0]
    return f"({', '.join(names)})" if names else "None"
