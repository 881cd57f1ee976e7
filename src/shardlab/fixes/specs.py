"""Edits of specs and of shard_map's options: another axis, another order, the check switched on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shardlab._text.nearest import nearest_name
from shardlab.fixes.candidate_edit import CandidateEdit, Replacement, replace_node
from shardlab.fixes.hints import FixHints
from shardlab.fixes.program_source import ProgramSource, axis_argument, called_name

_SPEC_NAMES = ("P", "PartitionSpec")


def correct_axis_name(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Replace the name of a mesh axis that does not exist, the most similar one first."""
    for node in _axis_names(source):
        name = str(node.value)
        if name in source.mesh_axes:
            continue
        match = nearest_name(name, source.mesh_axes)
        for axis in sorted(source.mesh_axes, key=lambda axis: axis != match):
            quote = source.segment(node)[0]
            yield CandidateEdit(
                family="unknown mesh axis",
                what=f"the mesh axis {axis} instead of {name}",
                line=node.lineno,
                replacements=(replace_node(source, node, f"{quote}{axis}{quote}"),),
            )


def _axis_names(source: ProgramSource) -> Iterator[ast.Constant]:
    for node in source.reachable:
        if not isinstance(node, ast.Call):
            continue
        is_spec = called_name(node) in _SPEC_NAMES
        is_collective = "lax" in source.segment(node.func) or called_name(node).startswith("p")
        places = node.args if is_spec else [axis_argument(node)] if is_collective else []
        for place in filter(None, places):
            for item in ast.walk(place):
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    yield item


def change_spec(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Shard an argument or result in another way: over another axis, in another order, not."""
    for call in source.calls(*_SPEC_NAMES):
        head = source.segment(call.func)
        choices = []
        for item in call.args:
            if isinstance(item, ast.Tuple) and len(item.elts) > 1:
                turned = ", ".join(source.segment(axis) for axis in reversed(item.elts))
                choices.append(f"{head}(({turned}))")
        if len(call.args) > 1:
            turned = ", ".join(source.segment(item) for item in reversed(call.args))
            choices.append(f"{head}({turned})")
            # One entry less, for an array with fewer dimensions.
            for index in reversed(range(len(call.args))):
                rest = [a for i, a in enumerate(call.args) if i != index]
                choices.append(f"{head}({', '.join(source.segment(item) for item in rest)})")
        for axes in hints.axes:
            text = ", ".join(f'"{axis}"' for axis in axes)
            entry = text if len(axes) == 1 else f"({text})"
            choices += [f"{head}({entry})", f"{head}(None, {entry})"]
        # Last, because it replicates: right, and rarely what was meant.
        choices.append(f"{head}()")
        old = source.segment(call)
        for text in dict.fromkeys(choices):
            if text != old:
                yield CandidateEdit(
                    family="spec",
                    what=f"{text} instead of {old}",
                    line=call.lineno,
                    replacements=(replace_node(source, call, text),),
                )


def check_varying_axes(source: ProgramSource, hints: FixHints) -> Iterator[CandidateEdit]:
    """Remove `check_vma=False`, with which JAX neither checks nor sums gradients."""
    for node in source.reachable:
        if not isinstance(node, ast.Call):
            continue
        for index, keyword in enumerate(node.keywords):
            is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "check_vma" and is_off:
                before = [*node.args, *(item.value for item in node.keywords[:index])]
                start = source.span(before[-1])[1] if before else source.span(keyword)[0]
                yield CandidateEdit(
                    family="check_vma",
                    what="without check_vma=False",
                    line=keyword.lineno,
                    replacements=(Replacement(start, source.span(keyword)[1], ""),),
                )
