"""Edits of a cond whose branches call collectives: decide together, or select afterwards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shardlab.fixes.candidate_edit import CandidateEdit, replace_node, wrap_node
from shardlab.fixes.hints import FixHints
from shardlab.fixes.program_source import ProgramSource, axes_text


def decide_together(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Make the predicate of a cond the same on all devices: `pmax(predicate, axes)`."""
    for call in source.calls("cond", "switch"):
        if not call.args:
            continue
        for operation in ("pmax", "pmin"):
            name = source.lax(operation) or f"jax.lax.{operation}"
            for axes in hints.axes:
                replacements = wrap_node(source, call.args[0], f"{name}(", f", {axes_text(axes)})")
                yield CandidateEdit(
                    family="collective under a varying branch",
                    what=f"the condition made equal with {operation} over {', '.join(axes)}",
                    line=call.args[0].lineno,
                    replacements=replacements,
                )


def select_afterwards(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Compute both branches on every device, and select: `where(predicate, f(x), g(x))`."""
    if not (where := source.numpy("where")):
        return
    for call in source.calls("cond"):
        if len(call.args) < 4 or call.keywords:
            continue
        predicate, *branches = call.args[:3]
        operands = ", ".join(source.segment(item) for item in call.args[3:])
        results = [f"{_callable_text(source, item)}({operands})" for item in branches]
        text = f"{where}({source.segment(predicate)}, {', '.join(results)})"
        yield CandidateEdit(
            family="collective under a varying branch",
            what="both branches computed on every device, and one selected with where",
            line=call.lineno,
            replacements=(replace_node(source, call, text),),
        )


def _callable_text(source: ProgramSource, function: ast.expr) -> str:
    text = source.segment(function)
    return text if isinstance(function, (ast.Name, ast.Attribute)) else f"({text})"
