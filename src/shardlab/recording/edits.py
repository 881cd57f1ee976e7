"""Edits that break a program on purpose: which ones its source offers, and the source after one.

An edit changes the text of one call and leaves every other line as it is, so line numbers stay.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownEdit

EditKind = Literal["remove_collective", "swap_axis", "skip_on_one_device"]

# Collectives whose result has the shape of their operand, which can take its place.
_SAME_SHAPE = ("psum", "pmean", "pmax", "pmin", "ppermute")
_OTHERS = ("psum_scatter", "all_gather", "all_to_all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edit:
    """One way to break a program."""

    id: str
    kind: EditKind
    line: int
    label: str
    description: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclasses.dataclass(frozen=True)
class _Replacement:
    edit: Edit
    node: ast.expr
    text: str


def list_edits(source: str, mesh_axes: Sequence[str]) -> tuple[Edit, ...]:
    """Return the edits that make sense for a program on a mesh with these axes.

    >>> [edit.id for edit in list_edits("y = jax.lax.psum(x, 'data')", ["data", "model"])]
    ['remove_collective:1:4', 'skip_on_one_device:1:4', 'swap_axis:1:20:model']
    """
    return tuple(item.edit for item in _list_replacements(source, mesh_axes))


def apply_edit(source: str, edit_id: str, mesh_axes: Sequence[str]) -> str:
    """Return the source with one edit applied. Raises `UnknownEdit`.

    >>> apply_edit("y = jax.lax.psum(x + 1, 'data')", "remove_collective:1:4", ["data"])
    'y = (x + 1)'
    """
    replacements = {item.edit.id: item for item in _list_replacements(source, mesh_axes)}
    if edit_id not in replacements:
        match = nearest_name(edit_id, list(replacements))
        raise UnknownEdit(
            f"The program has no edit {edit_id[:80]!r}.",
            fix=f"Did you mean {match!r}?"
            if match
            else f"choose one of: {', '.join(replacements) or 'none, it calls no collective'}.",
        )
    item = replacements[edit_id]
    return _replace_node(source, item.node, item.text)


def allow_unchecked(source: str) -> str:
    """Return the source with `check_vma=False` in every call of shard_map.

    JAX's check of VMA types rejects most of these mistakes before anything runs. That is the best
    outcome, but it shows no values.
    """
    calls = [
        node
        for node in _calls(source)
        if _called_name(node) == "shard_map"
        and not any(keyword.arg in ("check_vma", None) for keyword in node.keywords)
    ]
    # From the end of the file to its start, so that the positions before stay valid.
    for call in sorted(
        calls, key=lambda node: (node.end_lineno, node.end_col_offset), reverse=True
    ):
        last = max([*call.args, *(k.value for k in call.keywords)], key=_end)
        source = _insert_after(source, last, ", check_vma=False")
    return source


def _list_replacements(source: str, mesh_axes: Sequence[str]) -> list[_Replacement]:
    replacements: list[_Replacement] = []
    for call in _calls(source):
        name = _called_name(call)
        axis = _axis_argument(call)
        if name not in (*_SAME_SHAPE, *_OTHERS) or not call.args or axis is None:
            continue
        axis_names = [text.value for text in _texts(axis)]
        over = f"over {', '.join(map(str, axis_names))}" if axis_names else ""
        if name in _SAME_SHAPE:
            replacements += _whole_call_replacements(source, call, name, axis, over)
        replacements += _axis_replacements(call, name, axis, mesh_axes)
    return replacements


def _whole_call_replacements(
    source: str, call: ast.Call, name: str, axis: ast.expr, over: str
) -> Iterator[_Replacement]:
    position = f"{call.lineno}:{call.col_offset}"
    operand = ast.get_source_segment(source, call.args[0]) or ""
    original = ast.get_source_segment(source, call) or ""
    yield _Replacement(
        Edit(
            id=f"remove_collective:{position}",
            kind="remove_collective",
            line=call.lineno,
            label=f"Remove the {name} in line {call.lineno}",
            description=f"Each device keeps its own operand of the {name} {over}.",
        ),
        call,
        f"({operand})",
    )
    texts = _texts(axis)
    if not texts:
        return
    axis_text = ast.get_source_segment(source, texts[0])
    lax = _lax_prefix(source, call)
    # The operand goes through the cond, so that it is computed once, as before.
    inside = original.replace(operand, "operand", 1)
    yield _Replacement(
        Edit(
            id=f"skip_on_one_device:{position}",
            kind="skip_on_one_device",
            line=call.lineno,
            label=f"Skip the {name} in line {call.lineno} on one device",
            description=f"The first device along {axis_text} does not call the {name}; the others "
            "wait for it.",
        ),
        call,
        f"{lax}.cond({lax}.axis_index({axis_text}) == 0, lambda operand: operand, "
        f"lambda operand: {inside}, {operand})",
    )


def _axis_replacements(
    call: ast.Call, name: str, axis: ast.expr, mesh_axes: Sequence[str]
) -> Iterator[_Replacement]:
    texts = _texts(axis)
    present = {node.value for node in texts}
    for node in texts:
        for other in mesh_axes:
            if other not in present:
                yield _Replacement(
                    Edit(
                        id=f"swap_axis:{node.lineno}:{node.col_offset}:{other}",
                        kind="swap_axis",
                        line=node.lineno,
                        label=f"{name} over {other} in line {node.lineno}",
                        description=f"The {name} is over {other} instead of {node.value!s}.",
                    ),
                    node,
                    repr(other),
                )


# ------------------------------------------------------------------------------------- syntax trees


def _calls(source: str) -> Iterator[ast.Call]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield from sorted(calls, key=lambda node: (node.lineno, node.col_offset))


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _axis_argument(call: ast.Call) -> ast.expr | None:
    """Return the second argument of a collective, the mesh axes."""
    if len(call.args) > 1:
        return call.args[1]
    return next((k.value for k in call.keywords if k.arg == "axis_name"), None)


def _texts(node: ast.expr) -> list[ast.Constant]:
    """Return the string literals in an expression, such as the names of mesh axes."""
    return [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def _lax_prefix(source: str, call: ast.Call) -> str:
    """Return how the program names jax.lax at this call."""
    if isinstance(call.func, ast.Attribute):
        return ast.get_source_segment(source, call.func.value) or "jax.lax"
    return '__import__("jax").lax'  # from jax.lax import psum


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _offset(lines: Sequence[bytes], line: int, column: int) -> int:
    # The columns of a syntax tree count bytes.
    return sum(map(len, lines[: line - 1])) + column


def _replace_node(source: str, node: ast.expr, text: str) -> str:
    data = source.encode()
    lines = data.splitlines(keepends=True)
    start = _offset(lines, node.lineno, node.col_offset)
    end = _offset(lines, *_end(node))
    # A call over several lines still takes as many, so that the lines after it keep their numbers.
    n_missing = data[start:end].count(b"\n") - text.count("\n")
    if n_missing > 0:
        text = f"({text}{chr(10) * n_missing})"
    return (data[:start] + text.encode() + data[end:]).decode()


def _insert_after(source: str, node: ast.expr, text: str) -> str:
    data = source.encode()
    lines = data.splitlines(keepends=True)
    end = _offset(lines, *_end(node))
    return (data[:end] + text.encode() + data[end:]).decode()
