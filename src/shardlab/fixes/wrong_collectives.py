"""Edits of a collective that is there: a mean for a sum, another mesh axis, a ring turned round."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from shardlab.fixes.candidate_edit import CandidateEdit, Replacement, replace_node, wrap_node
from shardlab.fixes.hints import FixHints
from shardlab.fixes.program_source import (
    COLLECTIVES,
    REDUCTIONS,
    ProgramSource,
    axes_text,
    axis_argument,
    called_name,
    constant_axes,
    needs_parentheses,
)

_OTHER = {"psum": "pmean", "pmean": "psum"}


def swap_sum_and_mean(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Replace a psum by a pmean or the reverse, at one place, and at all of them."""
    everywhere: dict[str, list[Replacement]] = {}
    for call in source.calls(*_OTHER):
        old, new = called_name(call), _OTHER[called_name(call)]
        end = source.span(call.func)[1]
        replacement = Replacement(end - len(old), end, new)
        everywhere.setdefault(old, []).append(replacement)
        yield CandidateEdit(
            family=f"{new} for {old}",
            what=f"{new} instead of {old}",
            line=call.lineno,
            replacements=(replacement,),
        )
    for old, replacements in everywhere.items():
        if len(replacements) > 1:
            yield CandidateEdit(
                family=f"{_OTHER[old]} for {old}",
                what=f"{_OTHER[old]} instead of every {old}",
                line=source.data[: replacements[0].start].count(b"\n") + 1,
                replacements=tuple(replacements),
            )


def divide_by_axis_size(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Divide what a reduce-scatter sums by the number of devices, or multiply a mean."""
    if not (name := source.lax("axis_size")):
        return
    for call in source.calls("psum_scatter", "all_gather"):
        if (axis := axis_argument(call)) is not None:
            for sign in "/*":
                after = f" {sign} {name}({source.segment(axis)})"
                yield CandidateEdit(
                    family="scaled by n",
                    what=f"{called_name(call)} {sign} size of {source.segment(axis)}",
                    line=call.lineno,
                    replacements=wrap_node(source, call, "", after),
                )


def change_scale(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Remove a factor that is a number of devices, or take it from the mesh."""
    name = source.lax("axis_size")
    for node in source.reachable:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
            continue
        factor = node.right
        is_count = isinstance(factor, ast.Call) and called_name(factor) in (
            "axis_size",
            "device_count",
        )
        is_number = isinstance(factor, ast.Constant) and isinstance(factor.value, int)
        if not is_count and not is_number:
            continue
        if is_count:
            (_, start), (_, end) = source.span(node.left), source.span(node)
            # A parenthesis after the left operand belongs to it.
            while source.data[start : start + 1] == b")":
                start += 1
            yield CandidateEdit(
                family="scaled by n",
                what=f"without the factor {source.segment(factor)}",
                line=node.lineno,
                replacements=(Replacement(start, end, ""),),
            )
        for axes in hints.axes if name else ():
            yield CandidateEdit(
                family="scaled by n",
                what=f"the size of {', '.join(axes)} instead of {source.segment(factor)}",
                line=node.lineno,
                replacements=(replace_node(source, factor, f"{name}({axes_text(axes)})"),),
                is_identity=is_count,
            )


def change_axes(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Let a collective, or an index, run over other mesh axes, or over the same in mesh order."""
    for call in source.calls(*COLLECTIVES, "axis_index", "axis_size"):
        axis = axis_argument(call)
        if axis is None or source.enclosing_function(call) is None:
            continue
        current = constant_axes(axis)
        choices = [axes for axes in hints.axes if axes != current]
        if len(current) > 1:
            choices.insert(0, tuple(reversed(current)))
            choices.insert(0, tuple(sorted(current, key=_mesh_order(source))))
        for axes in dict.fromkeys(choices):
            if current and axes != current:
                yield CandidateEdit(
                    family="wrong mesh axis",
                    what=f"{called_name(call)} over {', '.join(axes)}",
                    line=call.lineno,
                    replacements=(replace_node(source, axis, axes_text(axes)),),
                )


def _mesh_order(source: ProgramSource) -> Callable[[str], int]:
    order = {axis: position for position, axis in enumerate(source.mesh_axes)}
    return lambda axis: order.get(axis, len(order))


def remove_collective(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Use the operand of a collective that has its shape."""
    for call in source.calls(*REDUCTIONS, "ppermute"):
        if not call.args:
            continue
        operand = call.args[0]
        start, end = source.span(call)
        first, last = source.span(operand)
        opened, closed = ("(", ")") if _needs_own_parentheses(source, call, operand) else ("", "")
        yield CandidateEdit(
            family=f"redundant {called_name(call)}",
            what=f"without the {called_name(call)}",
            line=call.lineno,
            replacements=(Replacement(start, first, opened), Replacement(last, end, closed)),
        )


def _needs_own_parentheses(source: ProgramSource, call: ast.Call, operand: ast.expr) -> bool:
    is_part = isinstance(source.parent(call), (ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Compare))
    spans_lines = operand.lineno != operand.end_lineno or call.lineno != operand.lineno
    return spans_lines or (is_part and needs_parentheses(operand))


def turn_ring(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Send to the other neighbor: the pairs of a ppermute, and the index of the block it brings."""
    for node in source.reachable:
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            pair = node.elt
            if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2:
                continue
            first, second = pair.elts
            yield CandidateEdit(
                family="ring direction",
                what="the pairs (destination, source) of the ppermute the other way round",
                line=node.lineno,
                replacements=(
                    replace_node(source, first, source.segment(second)),
                    replace_node(source, second, source.segment(first)),
                ),
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            inner = node.left
            if isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Add, ast.Sub)):
                sign = " - " if isinstance(inner.op, ast.Add) else " + "
                gap = Replacement(source.span(inner.left)[1], source.span(inner.right)[0], sign)
                yield CandidateEdit(
                    family="ring direction",
                    what="the index of the block in the other direction",
                    line=node.lineno,
                    replacements=(gap,),
                )
