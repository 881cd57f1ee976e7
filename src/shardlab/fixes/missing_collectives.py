"""Edits that add a collective where one may be missing: psum, pmean, pmax, or a pcast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shardlab.fixes.candidate_edit import CandidateEdit, Replacement, wrap_node
from shardlab.fixes.hints import FixHints
from shardlab.fixes.program_source import COLLECTIVES, ProgramSource, axes_text, called_name

_NOT_ARRAYS = {"P", "PartitionSpec", "range", "len", "isinstance", "partial", "shard_map", "jit"}
_OPERATION_OF_CAUSE = {"missing_psum": "psum", "missing_pmean": "pmean", "missing_pmax": "pmax"}


def add_collective(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Wrap a value in `psum(value, axes)` and the like."""
    operations = [_OPERATION_OF_CAUSE[c] for c in hints.causes if c in _OPERATION_OF_CAUSE]
    # A maximum is rarely meant, unless the numbers say so.
    operations += [name for name in ("pmean", "psum") if name not in operations]
    if hints.causes & {"missing_pmin"}:
        operations.insert(0, "pmin")
    places = array_places(source)
    for operation in operations:
        for place in places:
            for axes in hints.axes:
                yield _wrap(source, place, operation, axes)
        for axes in hints.axes:
            yield from _statements_after_unpacking(source, operation, axes)


def average_before_branch(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Take the mean of a value that is computed before a branch that depends on it."""
    for place in array_places(source):
        if isinstance(source.parent(place), ast.Assign):
            for axes in hints.axes:
                yield _wrap(source, place, "pmean", axes)
    for axes in hints.axes:
        yield from _statements_after_unpacking(source, "pmean", axes)


def add_pcast(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Cast a value that JAX takes for replicated to varying."""
    if not (name := source.lax("pcast")):
        return
    for place in array_places(source):
        for axes in hints.axes:
            after = f', {axes_text(axes)}, to="varying")'
            yield CandidateEdit(
                family="pcast",
                what=f"cast {_short(source, place)} to varying over {', '.join(axes)}",
                line=place.lineno,
                replacements=wrap_node(source, place, f"{name}(", after),
            )


def _wrap(
    source: ProgramSource, place: ast.expr, operation: str, axes: tuple[str, ...]
) -> CandidateEdit:
    name = source.lax(operation) or f"jax.lax.{operation}"
    return CandidateEdit(
        family=f"missing {operation}",
        what=f"{operation} of {_short(source, place)} over {', '.join(axes)}",
        line=place.lineno,
        replacements=wrap_node(source, place, f"{name}(", f", {axes_text(axes)})"),
    )


def _statements_after_unpacking(
    source: ProgramSource, operation: str, axes: tuple[str, ...]
) -> Iterator[CandidateEdit]:
    """Reduce one of several results of a call, in a line of its own."""
    name = source.lax(operation) or f"jax.lax.{operation}"
    for node in source.reachable:
        if not isinstance(node, ast.Assign) or not source.owns_its_lines(node):
            continue
        target = node.targets[0]
        if not isinstance(target, ast.Tuple) or source.enclosing_function(node) is None:
            continue
        end = source.line_span(node)[1]
        if not source.data[:end].endswith((b"\n", b"\r")):
            continue
        for item in ast.walk(target):
            if isinstance(item, ast.Name) and item.id != "_":
                line = f"{item.id} = {name}({item.id}, {axes_text(axes)})"
                text = f"{source.indentation(node)}{line}{source.line_break()}"
                yield CandidateEdit(
                    family=f"missing {operation}",
                    what=f"{operation} of {item.id} over {', '.join(axes)}",
                    line=node.lineno,
                    replacements=(Replacement(end, end, text),),
                )


def array_places(source: ProgramSource) -> list[ast.expr]:
    """Return the expressions that may be arrays of one device, those nearest to a result first."""
    ranked: dict[tuple[int, int], tuple[int, int, ast.expr]] = {}
    for node in source.reachable:
        for priority, place in _places_of(node):
            if _is_array_place(source, place):
                ranked.setdefault(source.span(place), (priority, -place.lineno, place))
    return [item[2] for item in sorted(ranked.values(), key=lambda item: item[:2])]


def _places_of(node: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    if isinstance(node, ast.Return) and node.value is not None:
        yield from ((0, item) for item in _results(node.value))
    elif isinstance(node, ast.Lambda):
        yield from ((1, item) for item in _results(node.body))
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Name, ast.Tuple)):
        yield from ((1, item) for item in _results(node.value))
    elif isinstance(node, ast.AugAssign):
        yield 1, node.value
    elif isinstance(node, ast.BinOp):
        yield from ((2, item) for item in (node.left, node.right))
    elif isinstance(node, ast.Call) and called_name(node) not in (_NOT_ARRAYS | set(COLLECTIVES)):
        yield from ((3, item) for item in node.args)
        if isinstance(node.func, ast.Attribute):
            yield 3, node.func.value


def _results(value: ast.expr) -> list[ast.expr]:
    if isinstance(value, (ast.Tuple, ast.List)):
        return [part for item in value.elts for part in _results(item)]
    if isinstance(value, ast.Dict):
        return [part for item in value.values for part in _results(item)]
    return [value]


def _is_array_place(source: ProgramSource, node: ast.expr) -> bool:
    if not isinstance(node, (ast.Name, ast.Call, ast.BinOp, ast.Subscript, ast.Attribute)):
        return False
    if isinstance(node, ast.Call) and called_name(node) in (_NOT_ARRAYS | set(COLLECTIVES)):
        return False
    # `jnp.linalg` is a module; `x.T` is an array.
    if isinstance(node, (ast.Name, ast.Attribute)) and _root_name(node) in _modules(source):
        return False
    # At the top of a file there are no devices; annotations and decorators are no values.
    if source.enclosing_function(node) is None or source.is_type_or_decorator(node):
        return False
    # The operand of a collective is reduced already.
    parent = source.parent(node)
    return not (isinstance(parent, ast.Call) and called_name(parent) in COLLECTIVES)


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _modules(source: ProgramSource) -> set[str]:
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def _short(source: ProgramSource, node: ast.AST) -> str:
    text = " ".join(source.segment(node).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
