"""Edits of what stands inside a sum over devices: terms counted n times, quotients, indices."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shardlab.fixes.candidate_edit import CandidateEdit, Replacement, replace_node, wrap_node
from shardlab.fixes.hints import FixHints
from shardlab.fixes.program_source import (
    ProgramSource,
    axes_text,
    axis_argument,
    called_name,
    needs_parentheses,
)

_REDUCING = ("psum", "pmean", "psum_scatter")


def move_term_out(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Rewrite `psum(a + b, axes)` as `psum(a, axes) + b`, and as `psum(b, axes) + a`."""
    for call in _calls_of_sums(source):
        sum_node = call.args[0]
        assert isinstance(sum_node, ast.BinOp)
        start, end = source.span(call)
        before, after = source.span(sum_node)
        sign = "-" if isinstance(sum_node.op, ast.Sub) else "+"
        head, tail = source.data[start:before].decode(), source.data[after:end].decode()
        for inside, outside in ((sum_node.left, sum_node.right), (sum_node.right, sum_node.left)):
            if sign == "-" and inside is sum_node.right:
                continue
            text = f"{head}{source.segment(inside)}{tail} {sign} {source.segment(outside)}"
            if isinstance(source.parent(call), (ast.BinOp, ast.Attribute, ast.Subscript)):
                text = f"({text})"
            yield CandidateEdit(
                family="term counted n times",
                what=f"{_words(source, outside)} added after the {called_name(call)}",
                line=call.lineno,
                replacements=(Replacement(start, end, text),),
            )


def _calls_of_sums(source: ProgramSource) -> Iterator[ast.Call]:
    """Yield calls of collectives, and of functions in this file that may call them, of a sum."""
    for node in source.reachable:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        # A function that this file passes around, such as Megatron's g, may end in a psum.
        is_own = isinstance(node.func, ast.Name) and len(node.args) == 1
        operand = node.args[0]
        is_sum = isinstance(operand, ast.BinOp) and isinstance(operand.op, (ast.Add, ast.Sub))
        if is_sum and (called_name(node) in _REDUCING or is_own):
            yield node


def count_term_once(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Divide a term by the number of devices that add it."""
    if not (name := source.lax("axis_size")):
        return
    for node in source.reachable:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
            continue
        if source.enclosing_function(node) is None:
            continue
        for term in (node.right, node.left):
            for axes in hints.axes:
                after = f" / {name}({axes_text(axes)})"
                opened, closed = ("(", ")") if needs_parentheses(term) else ("", "")
                yield CandidateEdit(
                    family="term counted n times",
                    what=f"{_words(source, term)} divided by the size of {', '.join(axes)}",
                    line=node.lineno,
                    replacements=wrap_node(source, term, opened, closed + after),
                )


def sum_before_dividing(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Rewrite `pmean(a / b, axes)` as `psum(a, axes) / psum(b, axes)`."""
    for call in source.calls("psum", "pmean"):
        axis = axis_argument(call)
        quotient = call.args[0] if call.args else None
        if axis is None or not isinstance(quotient, ast.BinOp):
            continue
        if isinstance(quotient.op, ast.Div):
            name, axes = source.lax("psum") or "jax.lax.psum", source.segment(axis)
            parts = [
                f"{name}({source.segment(item)}, {axes})"
                for item in (quotient.left, quotient.right)
            ]
            text = " / ".join(parts)
            if isinstance(source.parent(call), (ast.BinOp, ast.Attribute, ast.Subscript)):
                text = f"({text})"
            yield CandidateEdit(
                family="mean of means",
                what="sum both operands over the devices, then divide",
                line=call.lineno,
                replacements=(replace_node(source, call, text),),
            )


def reduce_before_function(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Rewrite `psum(sqrt(a), axes)` as `sqrt(psum(a, axes))`."""
    for call in source.calls("psum", "pmean"):
        inner = call.args[0] if call.args else None
        axis = axis_argument(call)
        if axis is None or not isinstance(inner, ast.Call) or len(inner.args) != 1:
            continue
        if inner.keywords or isinstance(inner.args[0], ast.Starred):
            continue
        for operation in ("psum", "pmean"):
            name = source.lax(operation) or f"jax.lax.{operation}"
            operand = f"{name}({source.segment(inner.args[0])}, {source.segment(axis)})"
            yield CandidateEdit(
                family="reduced too late",
                what=f"{operation} first, then {called_name(inner)}",
                line=call.lineno,
                replacements=(
                    replace_node(source, call, f"{source.segment(inner.func)}({operand})"),
                ),
            )


def offset_indices(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Add the position of the shard to indices that start at 0 on every device."""
    if not (name := source.lax("axis_index")):
        return
    for call in source.calls("arange"):
        if len(call.args) != 1 or source.enclosing_function(call) is None:
            continue
        size = call.args[0]
        count = source.segment(size)
        if needs_parentheses(size):
            count = f"({count})"
        for axes in hints.axes:
            before = f"{name}({axes_text(axes)}) * {count} + "
            is_part = isinstance(source.parent(call), (ast.BinOp, ast.Attribute))
            opened, closed = ("(", ")") if is_part else ("", "")
            yield CandidateEdit(
                family="local indices",
                what=f"indices with the offset of the shard over {', '.join(axes)}",
                line=call.lineno,
                replacements=wrap_node(source, call, opened + before, closed),
            )


def _words(source: ProgramSource, node: ast.AST) -> str:
    text = " ".join(source.segment(node).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
