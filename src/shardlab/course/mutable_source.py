"""A source file whose functions can be mutated: every edit in order, and the program with one.

An expression that a loop evaluates several times is also mutated the first time only, the last
time only, and every time but the first: a mistake in one stage of a pipeline is one of these.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal

from shardlab.course.mutation_operators import (
    condition_replacements,
    expression_replacements,
    iterable_replacements,
    statement_replacements,
)

When = Literal["always", "first", "last", "after first"]
# Names that a mutated program calls; no program has them.
_SELECT, _TICK, _RECORD = "__select__", "__tick__", "__record__"
# A changed bound or condition can make a loop endless.
_MAX_TICKS = 200_000
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """One node of the tree and what replaces it."""

    function: str
    line: int
    before: str
    after: str
    parent: ast.AST
    field: str
    position: int | None  # within a list of nodes
    replacement: ast.AST
    when: When = "always"

    @property
    def original(self) -> Any:
        """Return the node in the tree, which is not edited between two compilations."""
        value = getattr(self.parent, self.field)
        return value if self.position is None else value[self.position]

    @property
    def name(self) -> str:
        """Return the edit as an author lists it in audit.toml."""
        suffix = {"always": "", "first": ", first time", "last": ", last time"}
        text = f"{self.function}: {self.before} -> {self.after}"
        return text + suffix.get(self.when, ", after the first time")


class TooManyIterations(Exception):
    """A loop of a mutated program does not end."""


@dataclass
class Execution:
    """What a mutated program calls while it runs: it counts iterations and chooses values."""

    when: When = "always"
    n_times: int = 0  # of the mutated expression in a run before, to recognize the last one
    count: int = 0
    ticks: int = 0
    values: dict[int, list[Any]] = field(default_factory=dict)

    def restart(self) -> None:
        self.count = self.ticks = 0

    @property
    def names(self) -> dict[str, Any]:
        return {_SELECT: self._select, _TICK: self._tick, _RECORD: self._record}

    def _tick(self) -> None:
        self.ticks += 1
        if self.ticks > _MAX_TICKS:
            raise TooManyIterations

    def _select(self, original: Callable[[], Any], mutated: Callable[[], Any]) -> Any:
        self.count += 1
        is_mutated = {
            "always": True,
            "first": self.count == 1,
            "last": self.count == self.n_times,
            "after first": self.count > 1,
        }[self.when]
        return mutated() if is_mutated else original()

    def _record(self, number: int, value: Any) -> Any:
        self.values.setdefault(number, []).append(value)
        return value


class MutableSource:
    """The functions of a file that `roots` reach, and their edits."""

    def __init__(
        self,
        text: str,
        file: str,
        roots: Sequence[str],
        *,
        name_mutants: Sequence[str] | None = None,
    ) -> None:
        self.file, self.lines = file, text.splitlines()
        # None: variables are not replaced, which is most of the mutants.
        self._name_mutants = name_mutants
        self._tree = ast.parse(text)
        self._targets = list(_reachable_statements(self._tree, roots))
        self._parents = {
            child: (parent, name, position)
            for target in self._targets
            for parent, name, position, child in _iterate_children(target)
        }
        self._add_ticks()

    def line_text(self, number: int) -> str:
        return self.lines[number - 1].strip()

    def compile_original(self) -> CodeType:
        return compile(self._tree, self.file, "exec")

    def compile_edit(self, edit: Edit) -> CodeType:
        """Return the program with one edit; the tree is as before afterwards."""
        original = edit.original
        replacement = edit.replacement
        if edit.when != "always":
            assert isinstance(original, ast.expr)
            assert isinstance(replacement, ast.expr)
            arguments: list[ast.expr] = [_make_lambda(original), _make_lambda(replacement)]
            replacement = ast.Call(ast.Name(_SELECT, ast.Load()), arguments, [])
            ast.fix_missing_locations(ast.copy_location(replacement, original))
        _set_node(edit, replacement)
        try:
            return compile(self._tree, self.file, "exec")
        finally:
            _set_node(edit, original)

    def unparse_edit(self, edit: Edit) -> str:
        """Return the program with one edit as text, without what only the audit needs."""
        original = edit.original
        _set_node(edit, edit.replacement)
        try:
            tree = copy.deepcopy(self._tree)
        finally:
            _set_node(edit, original)
        for node in ast.walk(tree):
            if isinstance(node, (ast.For, ast.While)):
                node.body = [child for child in node.body if not _is_tick(child)]
        return ast.unparse(tree)

    def compile_recorder(self) -> tuple[CodeType, dict[int, ast.expr]]:
        """Return the program that records the value of every expression, and these by number."""
        expressions = dict(enumerate(node for node, _ in self._iterate_expressions()))
        for number, node in expressions.items():
            # An attribute of ours, which mypy does not know; it survives the copy below.
            node._number = number  # type: ignore[attr-defined]
        tree = copy.deepcopy(self._tree)
        for node in expressions.values():
            del node._number  # type: ignore[attr-defined]  # the same attribute
        recorded = ast.fix_missing_locations(_Recorder().visit(tree))
        return compile(recorded, self.file, "exec"), expressions

    # ------------------------------------------------------------------------------------ edits

    def iterate_edits(self) -> Iterator[Edit]:
        """Yield every edit that the operators give, in the order of the source."""
        for target in self._targets:
            has_names = self._name_mutants is not None
            names = _value_names(target, self._targets) if has_names else []
            for node in _walk_in_order(target):
                yield from self._node_edits(target, node, names)

    def _node_edits(self, target: ast.stmt, node: ast.AST, names: Sequence[str]) -> Iterator[Edit]:
        function = _target_name(target)
        for original, replacement in _structure_replacements(node, target):
            yield self._make_edit(function, original, replacement)
        if not self._is_mutable_expression(node):
            return
        assert isinstance(node, ast.expr)
        for other in expression_replacements(node, names, self._name_mutants or ()):
            edit = self._make_edit(function, node, other)
            yield edit
            # A variable with another value has too many variants to try each of them thrice.
            is_variable = isinstance(node, ast.Name)
            if not is_variable and self._is_repeated(node, target) and _is_movable(node):
                yield from (_edit_at(edit, when) for when in _TIMES)

    def edits_to_value(self, node: ast.expr, value: Any) -> Edit:
        """Return the edit that replaces an expression by a constant."""
        target = next(t for t in self._targets if any(n is node for n in ast.walk(t)))
        return self._make_edit(_target_name(target), node, ast.Constant(value))

    def _make_edit(self, function: str, node: ast.AST, replacement: ast.AST) -> Edit:
        parent, name, position = self._parents[node]
        # A copy, because a replacement can be a part of the original. The compiler requires
        # locations, and only those of the original mean something.
        replacement = ast.copy_location(copy.copy(replacement), node)
        ast.fix_missing_locations(replacement)
        after = "nothing" if isinstance(replacement, ast.Pass) else ast.unparse(replacement)
        return Edit(
            function=function,
            line=getattr(node, "lineno", 0),
            before=ast.unparse(node),
            after=" ".join(after.split()),
            parent=parent,
            field=name,
            position=position,
            replacement=replacement,
        )

    def _is_mutable_expression(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.expr) or isinstance(node, (ast.Slice, ast.Starred)):
            return False
        if not isinstance(getattr(node, "ctx", None), (ast.Load, type(None))):
            return False
        parent, name, _ = self._parents.get(node, (None, "", None))
        is_called = isinstance(parent, ast.Call) and name == "func"
        is_module = isinstance(parent, ast.Attribute) and isinstance(node, ast.Name)
        is_text = isinstance(parent, (ast.JoinedStr, ast.FormattedValue))
        is_docstring = isinstance(parent, ast.Expr) and isinstance(node, ast.Constant)
        is_raised = isinstance(parent, ast.Raise)
        if is_module and isinstance(node, ast.Name):
            is_module = node.id in (
                "np",
                "math",
                "jnp",
                "jax",
                "itertools",
                "P",
                "nnx",
                "functools",
            )
        unused = (is_called, is_module, is_text, is_docstring, is_raised)
        return parent is not None and not any(unused)

    def _iterate_expressions(self) -> Iterator[tuple[ast.expr, ast.stmt]]:
        for target in self._targets:
            if isinstance(target, ast.FunctionDef):
                for node in _walk_in_order(target):
                    if self._is_mutable_expression(node) and _is_movable(node):
                        assert isinstance(node, ast.expr)
                        yield node, target

    def _is_repeated(self, node: ast.AST, target: ast.stmt) -> bool:
        """Return whether an expression can be evaluated several times in one call of the root."""
        if target is not self._targets[0]:
            return isinstance(target, ast.FunctionDef)
        while node in self._parents:
            node = self._parents[node][0]
            if isinstance(node, _LOOPS):
                return True
        return False

    def _add_ticks(self) -> None:
        for target in self._targets:
            for node in ast.walk(target):
                if isinstance(node, (ast.For, ast.While)):
                    call = ast.Call(ast.Name(_TICK, ast.Load()), [], [])
                    tick = ast.copy_location(ast.Expr(call), node)
                    node.body.append(ast.fix_missing_locations(tick))


def _structure_replacements(node: ast.AST, target: ast.stmt) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield replacements of statements, conditions and loops, each with the original."""
    if isinstance(node, ast.stmt) and node is not target and not _is_tick(node):
        yield from ((node, other) for other in statement_replacements(node))
    if isinstance(node, (ast.If, ast.IfExp)):
        yield from ((node.test, other) for other in condition_replacements(node.test))
    if isinstance(node, (ast.For, ast.comprehension)):
        yield from ((node.iter, other) for other in iterable_replacements(node.iter))
    if isinstance(node, ast.comprehension):
        yield from ((condition, ast.Constant(True)) for condition in node.ifs)


_TIMES: tuple[When, ...] = ("first", "last", "after first")


def _edit_at(edit: Edit, when: When) -> Edit:
    fields = {name: getattr(edit, name) for name in edit.__dataclass_fields__}
    return Edit(**{**fields, "when": when})


class _Recorder(ast.NodeTransformer):
    """Wraps every numbered expression in a call that records its value."""

    def visit(self, node: ast.AST) -> Any:
        number = getattr(node, "_number", None)
        self.generic_visit(node)
        if number is None or not isinstance(node, ast.expr):
            return node
        return ast.Call(ast.Name(_RECORD, ast.Load()), [ast.Constant(number), node], [])


def _make_lambda(body: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, body)


def _is_movable(node: ast.AST) -> bool:
    """Return whether an expression can be moved into a lambda: it assigns no name."""
    return not any(
        isinstance(child, (ast.NamedExpr, ast.Yield, ast.YieldFrom)) for child in ast.walk(node)
    )


def _is_tick(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == _TICK
    )


def _set_node(edit: Edit, node: ast.AST) -> None:
    if edit.position is None:
        setattr(edit.parent, edit.field, node)
    else:
        getattr(edit.parent, edit.field)[edit.position] = node


def _iterate_children(root: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    for parent in ast.walk(root):
        for name, value in ast.iter_fields(parent):
            if isinstance(value, ast.AST):
                yield parent, name, None, value
            elif isinstance(value, list):
                for position, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        yield parent, name, position, item


def _walk_in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not _is_tick(child) and not isinstance(child, ast.arguments):
            yield from _walk_in_order(child)


def _target_name(target: ast.stmt) -> str:
    return target.name if isinstance(target, ast.FunctionDef) else "module"


def _reachable_statements(tree: ast.Module, roots: Iterable[str]) -> Iterator[ast.stmt]:
    """Yield the functions and constants that the roots use, directly or not."""
    by_name: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            by_name[statement.name] = statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        by_name[name.id] = statement
    pending, seen = list(roots), set()
    while pending:
        statement_or_none = by_name.get(pending.pop(0))
        if statement_or_none is None or id(statement_or_none) in seen:
            continue
        seen.add(id(statement_or_none))
        yield statement_or_none
        pending += [node.id for node in ast.walk(statement_or_none) if isinstance(node, ast.Name)]


def _value_names(target: ast.stmt, targets: Sequence[ast.stmt]) -> list[str]:
    """Return the names in a function that hold values: parameters, variables, constants."""
    names: Counter[str] = Counter()
    constants = [statement for statement in targets if isinstance(statement, ast.Assign)]
    for root in (target, *constants):
        for node in ast.walk(root):
            if isinstance(node, ast.arg) or (
                isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            ):
                names[node.arg if isinstance(node, ast.arg) else node.id] += 1
    return [name for name in names if name != "mesh"]
