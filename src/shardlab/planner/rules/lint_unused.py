"""Lint of rules that find no tensor: each with the nearest part of a path, many in one finding.

The nearest of what there is: for a pattern that finds nothing, and a path that is not there.

>>> near_words("mlp/up_porj/kernel", ["model.layers.*.mlp.up_proj.weight"])
"'up_proj' in place of 'up_porj', the nearest part of a path; no path has 'kernel'."
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from shardlab.findings.finding import Finding
from shardlab.planner.tensor_group import TensorGroup
from shardlab.planner.rules.lint_text import rule_finding
from shardlab.planner.rules.path_search import RuleMatch
from shardlab.planner.rules.rules import PathSpec, Rule, Rules

_WORD = re.compile(r"[^\W\d]\w*")
_ESCAPE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>|\(\?\w*")
_SHORTEST = 3  # letters of a word that a slip can be told from
_NEAR = 0.75  # how alike a slip and what was meant are, for difflib


def near_words(pattern: str, names: Iterable[str]) -> str:
    """Return what to try in place of a pattern that is found in none of these paths."""
    paths = list(names)
    whole = {part for path in paths for part in re.split(r"[./*\[\]'\"]+", path) if part}
    parts = sorted(whole | {piece for part in whole for piece in part.split("_") if piece})
    text = "\n".join(paths).lower()
    said, missing = [], []
    words = (word.strip("_") for word in _WORD.findall(_ESCAPE.sub(" ", pattern)))
    for word in dict.fromkeys(words):
        if len(word) < 2 or word.lower() in text:
            continue
        near = [part for part in parts if len(part) >= _SHORTEST] if len(word) >= _SHORTEST else []
        if close := get_close_matches(word, near, n=1, cutoff=_NEAR):
            said.append(f"{close[0]!r} in place of {word!r}, the nearest part of a path")
        else:
            missing.append(repr(word))
    if missing:
        said.append(f"no path has {' or '.join(missing[:3])}")
    if said:
        return "; ".join(said[:3]) + "."
    example = f", such as {paths[0]}" if paths else ""
    return f"compare it with a path{example}; or drop the rule."


def near_path(path: str, groups: Iterable[TensorGroup]) -> str:
    """Return the nearest path to one that no tensor has.

    >>> from shardlab.sharding.dtype import parse_dtype
    >>> from shardlab.planner.tensor_group import parse_tensor_group
    >>> near_path("layers.4.up", [parse_family("layers.{0..3}.up", (8, 4), parse_dtype("bf16"))])
    'layers.*.up, which there is for 0..3.'
    """
    by_name = {group.name: group for group in groups}
    wanted = re.sub(r"(?<![^./])[0-9]+(?![^./])", "*", path)
    slashes = {name.replace("/", "."): name for name in by_name}
    close = get_close_matches(wanted.replace("/", "."), slashes, n=1, cutoff=0.5)
    if not close:
        return "a path as the plan shows it; * stands for any number."
    group = by_name[slashes[close[0]]]
    numbers = f", which there is for {group.numbers_text}" if group.n_tensors > 1 else ""
    return f"{group.name}{numbers}."


_APART = 5  # rules that are told one by one; more are likely for another model
_SHOWN = 8


def unused(found: Sequence[RuleMatch], rules: Rules) -> Iterator[Finding]:
    """Yield the patterns that are found in no path."""
    used = {number for each in found for number in each.rules}
    names = [each.group.name for each in found]
    left = {n: r for n, r in enumerate(rules.rules) if n not in used and not r.reason}
    if len(left) > _APART:
        what = f"{len(left):,} of {len(rules.rules):,} rules find no tensor."
        yield _together(what, left, names)
        return
    for number, rule in left.items():
        what = f"Rule {number + 1} ({rule.pattern:.80}) finds no tensor."
        fix = near_words(rule.pattern, names)
        yield rule_finding("rule.unused", what, rule.location, fix, (), rule=number)


def unused_paths(found: Sequence[RuleMatch], rules: Rules) -> Iterator[Finding]:
    """Yield the specs for paths that no tensor has."""
    used = {number for each in found for number in each.path_specs}
    groups = [each.group for each in found]
    left = {n: spec for n, spec in enumerate(rules.specs) if n not in used}
    if len(left) > _APART:
        what = f"No tensor has the paths of {len(left):,} of {len(rules.specs):,} specs."
        yield _together(what, left, [group.name for group in groups])
        return
    for spec in left.values():
        what = f"No tensor has the path {spec.pattern!r:.120} of a spec."
        fix = near_path(spec.pattern, groups)
        yield rule_finding("rule.unused", what, spec.location, fix, ())


def _together(
    what: str, left: dict[int, Rule] | dict[int, PathSpec], names: Sequence[str]
) -> Finding:
    """Return one finding for many, which are shown beneath it."""
    first = next(iter(left.values()))
    shows = [f"{n + 1}: {rule.pattern:.80}" for n, rule in [*left.items()][:_SHOWN]]
    more = [f"and {len(left) - _SHOWN:,} more"] * (len(left) > _SHOWN)
    such = f" Its paths are such as {names[0]}." if names else ""
    fix = f"rules for this model; {near_words(first.pattern, names)}{such}"
    return rule_finding(
        "rule.unused", what, first.location, fix, (), rules=tuple(left), shows=(*shows, *more)
    )
