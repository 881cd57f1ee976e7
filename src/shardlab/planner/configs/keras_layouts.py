"""Keras `LayoutMap`: regular expressions of variable paths with layouts, and those without a match.

A `LayoutMap` says nothing about a key that matches no variable: the variable is replicated, and
the first sign is memory that runs out. `check_layouts` lists these keys, with the nearest path.

>>> map_ = parse_layouts({"q_prj/weight": ["model", None]}, "layouts.json")
>>> from shardlab.planner.models.presets import load_preset
>>> for problem in check_layouts(map_.rules, load_preset("llama3-8b")):
...     print(problem)
Layout 1, 'q_prj/weight', matches no variable; the nearest path is \
'model/layers/0/self_attn/q_proj/weight'.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import read_bounded_text
from shardlab._files.json_reader import reject_duplicate_keys
from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidRunConfig, LabError, short_repr
from shardlab.findings.source import SourceLocation
from shardlab.planner.configs.run_config import ConfigOptions, RunConfig
from shardlab.planner.model import Model
from shardlab.planner.rules.path_search import match_paths, with_separator
from shardlab.planner.rules.rules import (
    Rules,
    check_pattern_length,
    check_rule_count,
    parse_rule,
)
from shardlab.sharding.mesh import Mesh, parse_mesh

FORMAT = "Keras LayoutMap"
_MAX_BYTES = 1_000_000
_MAX_PROBLEMS = 100
_MAP_CLASS, _MESH_CLASS, _LAYOUT_CLASS = "LayoutMap", "DeviceMesh", "TensorLayout"
_JSON_FIX = 'write {"layout_map": {"dense.*kernel": [null, "model"]}, "mesh": {"model": 8}}.'
_NO_WORDS = str.maketrans(dict.fromkeys("^$.*+?()[]{}|\\", " "))


@dataclass(frozen=True, kw_only=True)
class LayoutMap:
    """The layouts in their order, and the device mesh if the source has one."""

    rules: Rules
    mesh: Mesh | None = None
    notes: tuple[str, ...] = ()


def load_layouts(file: Path, options: ConfigOptions) -> RunConfig:
    """Return the layouts of a Python file, which is not run, or of a JSON file."""
    text = read_bounded_text(file, _MAX_BYTES)
    if file.name.lower().endswith(".py"):
        layouts = read_python_layouts(text, str(file))
    else:
        try:
            data = json.loads(text, object_pairs_hook=reject_duplicate_keys)
        except (ValueError, RecursionError) as error:
            raise InvalidRunConfig(
                f"The file is not valid JSON: {error!s:.200}.", where=str(file), fix=_JSON_FIX
            ) from None
        layouts = parse_layouts(data, str(file))
    return run_of_layouts(layouts, str(file), options)


def run_of_layouts(layouts: LayoutMap, where: str, options: ConfigOptions) -> RunConfig:
    """Return the run of a layout map: rules, and a mesh if there is one."""
    return RunConfig(
        format=FORMAT,
        source=where,
        mesh=options.mesh or layouts.mesh,
        rules=layouts.rules,
        settings_read=tuple(f"{rule.pattern}: {rule.spec}" for rule in layouts.rules.rules),
        notes=layouts.notes,
    )


def parse_layouts(data: Any, where: str) -> LayoutMap:
    """Return the layouts of a mapping of regular expressions to lists of mesh axes."""
    if not isinstance(data, Mapping):
        raise InvalidRunConfig(
            f"{short_repr(data)} is not a mapping of layouts.", where=where, fix=_JSON_FIX
        )
    mapping = data.get("layout_map", data)
    if not isinstance(mapping, Mapping) or not mapping:
        raise InvalidRunConfig("There are no layouts.", where=where, fix=_JSON_FIX)
    mesh = None
    if mapping is not data and data.get("mesh") is not None:
        mesh = _parse_mesh(data["mesh"], where)
    entries = [(key, axes, SourceLocation(where, 0)) for key, axes in mapping.items()]
    return LayoutMap(rules=_parse_entries(entries, where), mesh=mesh)


def _parse_entries(entries: list[tuple[Any, Any, SourceLocation]], where: str) -> Rules:
    check_rule_count(len(entries), where)
    check_pattern_length((key for key, _, _ in entries), where)
    rules = []
    for key, axes, location in entries:
        if not isinstance(axes, (list, tuple)):
            raise InvalidRunConfig(
                f"The layout of {short_repr(key)} is {short_repr(axes)}.",
                where=str(location),
                fix='one mesh axis or None for each dimension: (None, "model").',
            )
        rules.append(parse_rule(key, tuple(axes), location))
    return Rules(rules=tuple(rules), source=where)


def _parse_mesh(value: Any, where: str) -> Mesh:
    try:
        return parse_mesh(value if not isinstance(value, list) else dict(value))
    except (LabError, TypeError, ValueError) as error:
        reason = error.what if isinstance(error, LabError) else "it is no mesh."
        raise InvalidRunConfig(
            f"The mesh is {short_repr(value)}: {reason}", where=where, fix=_JSON_FIX
        ) from None


# ------------------------------------------------------------------------------- layouts in Python


def read_python_layouts(text: str, where: str) -> LayoutMap:
    """Return the layouts that a program assigns: `layout_map["dense.*kernel"] = (None, "model")`.

    The program is parsed, not run. Names in layouts may be constants of the file or defaults of
    parameters; a key or a layout that is computed is left out, and a note says so.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRunConfig(
            f"The file is not valid Python: {error!s:.200}.", where=where, fix="fix the syntax."
        ) from None
    reader = _LayoutReader(where)
    try:
        reader.visit(tree)
    except RecursionError:
        raise InvalidRunConfig(
            "The file is nested too deeply.", where=where, fix="a file with the layouts alone."
        ) from None
    if not reader.entries:
        raise InvalidRunConfig(
            "The file assigns no layout to a LayoutMap.",
            where=where,
            fix='layout_map = LayoutMap(mesh); layout_map["dense.*kernel"] = (None, "model").',
        )
    notes: tuple[str, ...] = ()
    if reader.skipped_lines:
        lines = ", ".join(map(str, reader.skipped_lines[:10]))
        notes = (f"Layouts that the program computes are not read: line {lines}.",)
    rules = _parse_entries(reader.entries, where)
    return LayoutMap(rules=rules, mesh=reader.mesh, notes=notes)


class _LayoutReader(ast.NodeVisitor):
    """Collects assignments to layout maps, and the device mesh."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.entries: list[tuple[Any, Any, SourceLocation]] = []
        self.mesh: Mesh | None = None
        self.skipped_lines: list[int] = []
        self._maps: set[str] = set()
        self._constants: dict[str, Any] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        with_defaults = positional[len(positional) - len(arguments.defaults) :]
        pairs = [*zip(with_defaults, arguments.defaults, strict=True)]
        pairs += [
            (argument, default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        ]
        for argument, default in pairs:
            if isinstance(default, ast.Constant):
                self._constants[argument.arg] = default.value
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _name(target.value) in self._maps:
                self._add_layout(target.slice, node.value, node.lineno)
            elif isinstance(target, (ast.Name, ast.Attribute)):
                self._assign(_name(target), node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _name(node.func) == _MESH_CLASS and self.mesh is None:
            self.mesh = self._read_mesh(node)
        self.generic_visit(node)

    def _assign(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and _name(value.func) == _MAP_CLASS:
            self._maps.add(name)
        elif isinstance(value, ast.Constant):
            self._constants[name] = value.value

    def _add_layout(self, key: ast.expr, layout: ast.expr, line: int) -> None:
        if isinstance(layout, ast.Call) and _name(layout.func) == _LAYOUT_CLASS and layout.args:
            layout = layout.args[0]
        try:
            entry = (self._evaluate(key), self._evaluate(layout))
        except _NotConstant:
            self.skipped_lines.append(line)
            return
        self.entries.append((*entry, SourceLocation(self.where, line)))

    def _read_mesh(self, call: ast.Call) -> Mesh | None:
        arguments = {word.arg: word.value for word in call.keywords}
        for name, value in zip(("shape", "axis_names"), call.args, strict=False):
            arguments.setdefault(name, value)
        try:
            shape = self._evaluate(arguments["shape"])
            names = self._evaluate(arguments["axis_names"])
            return parse_mesh(dict(zip(names, shape, strict=True)))
        except (KeyError, TypeError, ValueError, _NotConstant):  # LabError is a ValueError here
            return None

    def _evaluate(self, node: ast.expr) -> Any:
        """Return the value of a constant, a name of one, or a tuple or list of them."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._constants:
            return self._constants[node.id]
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self._evaluate(item) for item in node.elts)
        raise _NotConstant


class _NotConstant(Exception):
    """An expression whose value is only known when the program runs."""


def _name(node: ast.expr) -> str:
    """Return the last word of a name such as keras.distribution.LayoutMap."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# ------------------------------------------------------------------------- layouts without a match


def check_layouts(rules: Rules, model: Model) -> tuple[str, ...]:
    """Return a sentence for each layout that matches no variable, or that Keras rejects."""
    problems = list(_iterate_problems(rules, model))
    n_more = len(problems) - _MAX_PROBLEMS
    more = (f"There are {n_more:,} more.",) if n_more > 0 else ()
    return (*problems[:_MAX_PROBLEMS], *more)


def _iterate_problems(rules: Rules, model: Model) -> Iterator[str]:
    matches = match_paths(model, rules)
    used = {number for match in matches for number in match.rules}
    paths = [with_separator(next(group.paths(), group.name), "/") for group in model.groups]
    for number, rule in enumerate(rules.rules):
        if number in used:
            continue
        words = rule.pattern.translate(_NO_WORDS).strip()
        # A key is often the end of a path, so it is compared with the ends of the paths too.
        n_parts = rule.pattern.count("/") + 1
        by_text = {"/".join(path.split("/")[-n_parts:]): path for path in reversed(paths)}
        by_text |= {path: path for path in paths}
        text = nearest_name(words, by_text, cutoff=0.0)
        nearest = f"; the nearest path is {by_text[text]!r:.200}" if text is not None else ""
        yield f"Layout {number + 1}, {rule.pattern!r:.120}, matches no variable{nearest}."
    for match in matches:
        path = with_separator(next(match.group.paths(), match.group.name), "/")
        exact = [n for n in match.rules if rules.rules[n].pattern == path]
        if len(match.rules) > 1 and not exact:
            keys = " and ".join(repr(rules.rules[n].pattern)[:80] for n in match.rules[:3])
            yield f"Keras raises an error for {path!r:.200}: {keys} both match it."
