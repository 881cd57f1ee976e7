"""Edits that keep every value and send less: reduce-scatter, no gather, one collective per loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shardlab.fixes.candidate_edit import CandidateEdit, Replacement, replace_node
from shardlab.fixes.hints import FixHints
from shardlab.fixes.program_source import (
    COLLECTIVES,
    ProgramSource,
    axis_argument,
    called_name,
)

_SLICES = ("dynamic_slice", "dynamic_slice_in_dim", "dynamic_index_in_dim")


def scatter_sum(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Replace a psum of which each device takes its slice by a psum_scatter."""
    for call, slice_call in _sliced_collectives(source, ("psum", "pmean")):
        axis, dimension = axis_argument(call), _sliced_dimension(slice_call)
        if axis is None or dimension is None:
            continue
        operand, axes = source.segment(call.args[0]), source.segment(axis)
        text = (
            f"{source.lax('psum_scatter')}({operand}, {axes}, "
            f"scatter_dimension={dimension}, tiled=True)"
        )
        if called_name(call) == "pmean":
            text += f" / {source.lax('axis_size')}({axes})"
        yield CandidateEdit(
            family="psum then slice",
            what="psum_scatter instead of a psum and a slice",
            line=call.lineno,
            replacements=(
                replace_node(source, call, text),
                replace_node(source, slice_call, source.segment(slice_call.args[0])),
            ),
        )


def use_own_shard(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Use the operand of an all_gather of which each device takes back its own slice."""
    for call, slice_call in _sliced_collectives(source, ("all_gather",)):
        statement = source.enclosing_statement(call)
        own = replace_node(source, slice_call, source.segment(call.args[0]))
        removed = []
        if isinstance(statement, ast.Assign) and source.owns_its_lines(statement):
            removed = [Replacement(*source.line_span(statement), "")]
        yield CandidateEdit(
            family="gather then slice",
            what="the local shard instead of a slice of all of them",
            line=call.lineno,
            replacements=(own, *removed),
        )


def _sliced_collectives(
    source: ProgramSource, names: tuple[str, ...]
) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Yield each collective whose result is assigned and used by one slice, with that slice.

    Other uses of the name may only be of its shape.
    """
    if not source.lax("psum"):
        return
    for call in source.calls(*names):
        assign, function = source.parent(call), source.enclosing_function(call)
        if not isinstance(assign, ast.Assign) or not call.args or function is None:
            continue
        target = assign.targets[0]
        if not isinstance(target, ast.Name):
            continue
        uses = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and node.id == target.id and node is not target
        ]
        slices = []
        for use in uses:
            parent = source.parent(use)
            if isinstance(parent, ast.Call) and called_name(parent) in _SLICES:
                slices.append(parent)
            elif not (isinstance(parent, ast.Attribute) and parent.attr == "shape"):
                slices = []
                break
        if len(slices) == 1 and slices[0].args[0] in uses:
            yield call, slices[0]


def _sliced_dimension(call: ast.Call) -> int | None:
    """Return the dimension that a slice cuts, if the source says it."""
    if called_name(call) == "dynamic_slice":
        starts = call.args[1] if len(call.args) > 1 else None
        if not isinstance(starts, (ast.Tuple, ast.List)):
            return None
        cut = [i for i, item in enumerate(starts.elts) if not isinstance(item, ast.Constant)]
        return cut[0] if len(cut) == 1 else None
    given = [keyword.value for keyword in call.keywords if keyword.arg == "axis"]
    position = 3 if called_name(call) == "dynamic_slice_in_dim" else 2
    given += call.args[position : position + 1]
    if not given:
        return 0
    value = given[0].value if isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, int) else None


def hoist_from_loop(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Move a collective whose operands do not change out of the function of a loop body."""
    for call in source.calls(*COLLECTIVES):
        statement, body = source.parent(call), source.enclosing_function(call)
        if not isinstance(statement, ast.Assign) or not isinstance(body, ast.FunctionDef):
            continue
        if source.enclosing_function(body) is None or not source.owns_its_lines(statement):
            continue
        if body.decorator_list or source.parent(statement) is not body or len(body.body) < 2:
            continue
        used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        if used & _local_names(body):
            continue
        start, end = source.line_span(statement)
        text = source.data[start:end].decode()
        inner, outer = source.indentation(statement), source.indentation(body)
        moved = "".join(outer + line.removeprefix(inner) for line in text.splitlines(keepends=True))
        first = source.line_span(body)[0]
        yield CandidateEdit(
            family="collective in a loop",
            what=f"the {called_name(call)} once, before the loop",
            line=call.lineno,
            replacements=(Replacement(first, first, moved), Replacement(start, end, "")),
        )


def _local_names(function: ast.FunctionDef) -> set[str]:
    arguments = {item.arg for item in ast.walk(function.args) if isinstance(item, ast.arg)}
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return arguments | stored
