r"""Sharding rules: which spec a tensor gets, by its path or by the logical names of its dimensions.

>>> rules = parse_rules([("mlp/.*kernel", "fsdp,tensor"), (".*", "")])
>>> rules.rules[0].pattern, rules.rules[0].spec_for(2)
('mlp/.*kernel', Spec('fsdp', 'tensor'))
>>> parse_rules([("kernel", "..., tensor")]).rules[0].spec_for(3)
Spec(None, None, 'tensor')
>>> parse_rules({"logical": [("embed", "fsdp"), ("mlp", ("tensor", "expert"))]}).logical[1].axes
('tensor', 'expert')

A spec for the tensor's path comes first, then the first pattern that matches the path, then logical
rules if the dimensions of the tensor have names, then the spec that the model itself declares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidRules, LabError, UnknownOption, short_repr
from shardlab.findings.source import SourceLocation
from shardlab.planner.rules.pattern import parse_pattern
from shardlab.planner.strategies.layer_stack import merge_stack_options
from shardlab.sharding.spec import Spec, parse_spec

Semantics = Literal["linen", "nnx"]
SECTIONS = ("rules", "specs", "logical", "logical_semantics", "stack")
MAX_PATTERN_CHARACTERS = 100_000  # all patterns together: analyzing them takes a few seconds
MAX_RULES = 2000  # patterns or logical rules; specs by path are not limited
_NAME = re.compile(r"[^\W\d]\w*")
_EXAMPLE_PAIRS = 'pairs of pattern and spec, such as ("mlp/.*kernel", "fsdp,tensor").'


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A regular expression searched in the path of a tensor, and the spec of matching tensors.

    With `is_trailing` the spec is for the last dimensions and leading ones are replicated, so that
    one rule serves the tensor of one layer and the stacked tensors of all layers. A `reason`
    documents the rule and suppresses lint about it.
    """

    pattern: str
    spec: Spec
    is_trailing: bool = False
    reason: str = ""
    location: SourceLocation | None = None

    @property
    def where(self) -> str:
        """The location in a file, as `rules.toml:12`; empty if the rule came from Python."""
        return str(self.location or "")

    @property
    def spec_text(self) -> str:
        """The spec as JAX prints it."""
        return f"P(..., {str(self.spec)[2:]}" if self.is_trailing else str(self.spec)

    def spec_for(self, rank: int) -> Spec:
        """Return the spec of a tensor with that many dimensions."""
        if not self.is_trailing:
            return self.spec
        return Spec(*(None,) * (rank - len(self.spec)), *self.spec.entries)


@dataclass(frozen=True)
class PathSpec(Rule):
    """A spec for one tensor by its path; `*` in the path stands for any number."""


@dataclass(frozen=True)
class LogicalRule:
    """The mesh axes that shard dimensions with a logical name, as in Flax; none: replicated."""

    name: str
    axes: tuple[str, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules of a plan: patterns, specs by path, logical rules."""

    rules: tuple[Rule, ...] = ()
    source: str = ""
    specs: tuple[PathSpec, ...] = ()
    logical: tuple[LogicalRule, ...] = ()
    # whether logical rules apply as in flax.linen or flax.nnx; None: as fits the model
    semantics: Semantics | None = None
    stack: str | None = None  # what the rules expect in one array: experts, layers, all of both

    @property
    def is_empty(self) -> bool:
        """Whether no rule gives a spec to any tensor."""
        return not (self.rules or self.specs or self.logical)


def parse_rules(rules: Any) -> Rules:
    """Return the rules given as pairs, a mapping, a TOML file, or a list of several of these.

    Pairs are (pattern, spec). A mapping of paths to specs gives specs to those tensors. A mapping
    with the keys `rules`, `specs` and `logical` names each kind of rule.

    >>> parse_rules([("embed", "fsdp"), ("mlp", "tensor")])
    Traceback (most recent call last):
        ...
    shardlab.errors.InvalidRules: [plan.invalid_rules] These pairs may be patterns or logical rules.
      where: ('embed', 'fsdp'), ('mlp', 'tensor')
      try:   write {"rules": [...]} for patterns, {"logical": [...]} for logical axis names.
    """
    if rules is None:
        return Rules()
    if isinstance(rules, Rules):
        return rules
    if isinstance(rules, (str, Path)):
        from shardlab.planner.rules.rules_file import load_rules

        return load_rules(rules)
    if isinstance(rules, Mapping):
        return _parse_mapping(rules)
    if isinstance(rules, (list, tuple)):
        return _parse_list(rules)
    raise InvalidRules(f"{short_repr(rules)} is not a list of rules.", fix=f"use {_EXAMPLE_PAIRS}")


def parse_rule(
    pattern: Any,
    spec: Any,
    location: SourceLocation | None = None,
    reason: str = "",
    *,
    pattern_where: str | None = None,
    spec_where: str | None = None,
) -> Rule:
    """Return a rule with a valid pattern and spec.

    Errors name the location of the rule, or the more exact lines of pattern and spec.
    """
    pattern_where = str(location or "") if pattern_where is None else pattern_where
    spec_where = str(location or "") if spec_where is None else spec_where
    _check_text(pattern, "The pattern of a rule", pattern_where)
    parse_pattern(pattern, pattern_where)
    parsed_spec, is_trailing = parse_rule_spec(spec, f"pattern {pattern:.80}", spec_where)
    return Rule(
        pattern=pattern, spec=parsed_spec, is_trailing=is_trailing, reason=reason, location=location
    )


def parse_path_spec(path: Any, spec: Any, location: SourceLocation | None = None) -> PathSpec:
    """Return the spec for a path."""
    where = str(location or "")
    _check_text(path, "The path of a tensor", where)
    parsed_spec, is_trailing = parse_rule_spec(spec, f"path {path:.80}", where)
    return PathSpec(pattern=path, spec=parsed_spec, is_trailing=is_trailing, location=location)


def parse_logical_rule(name: Any, axes: Any, location: SourceLocation | None = None) -> LogicalRule:
    """Return the mesh axes for a logical name: one, several, or none."""
    where = str(location or "")
    _check_text(name, "The logical name of a rule", where)
    # MaxText writes ["norm", []], Flax ("norm", None): both leave the dimension replicated.
    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
    if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) and n for n in names):
        raise InvalidRules(
            f"The mesh axes for the logical name {name!r:.80} are {short_repr(axes)}.",
            where=where,
            fix="use a mesh axis, a list of mesh axes, or None.",
        )
    return LogicalRule(name, tuple(names), location)


def parse_rule_spec(spec: Any, owner: str, where: str) -> tuple[Spec, bool]:
    """Return the spec, and whether it starts with `...`; `owner` is the pattern or path."""
    try:
        if isinstance(spec, str):
            return _parse_spec_text(spec)
        # A jax.sharding.PartitionSpec is recognized by its attribute: JAX is not imported here.
        entries = getattr(spec, "partitions", spec)
        if not isinstance(entries, (tuple, list)) or isinstance(spec, Spec):
            return parse_spec(spec), False
        is_trailing = bool(entries) and entries[0] in (..., "...")
        entries = [None if entry == "None" else entry for entry in entries[is_trailing:]]
        if ... in entries or "..." in entries:
            raise InvalidRules("'...' stands for the leading dimensions, so it must come first.")
        is_rewritten = is_trailing or entries != list(spec)
        return (Spec(*entries) if is_rewritten else parse_spec(spec)), is_trailing
    except LabError as error:
        context = "\n         ".join(filter(None, (where, owner, error.where)))
        fix = error.fix or "write '..., tensor' for the last dimension, None for a replicated one."
        raise InvalidRules(f"Invalid spec: {error.what}", where=context, fix=fix) from None


def parse_semantics(value: Any, where: str = "") -> Semantics | None:
    """Return how logical rules apply, as in flax.linen or flax.nnx; None if not stated."""
    if value is None:
        return None
    if value not in get_args(Semantics):
        raise InvalidRules(
            f"'logical_semantics' is {short_repr(value)}.",
            where=where,
            fix='use "linen", as in flax.linen and MaxText, or "nnx".',
        )
    return "linen" if value == "linen" else "nnx"


def parse_stack(value: Any, where: str = "") -> str | None:
    """Return what the rules expect to be stacked."""
    try:
        return merge_stack_options(value)
    except UnknownOption as error:
        raise InvalidRules(error.what, where=where, fix=error.fix) from None


def check_rule_count(n_rules: int, where: str = "") -> None:
    """Raise for more patterns, or logical rules, than anyone writes by hand."""
    if n_rules > MAX_RULES:
        raise InvalidRules(
            f"There are {n_rules:,} rules.",
            where=where,
            fix=f"use at most {MAX_RULES:,}: one pattern serves many tensors, and specs by path "
            "are not limited.",
        )


def check_pattern_length(patterns: Iterable[Any], where: str = "") -> None:
    """Raise for patterns that take more than a few seconds to analyze, all together."""
    n_characters = sum(len(pattern) for pattern in patterns if isinstance(pattern, str))
    if n_characters > MAX_PATTERN_CHARACTERS:
        raise InvalidRules(
            f"The patterns have {n_characters:,} characters.",
            where=where,
            fix=f"use at most {MAX_PATTERN_CHARACTERS:,}: one pattern serves many tensors, and "
            "specs by path are not limited.",
        )


def unknown_key_error(key: Any, known_keys: Iterable[str], where: str = "") -> InvalidRules:
    """Return the error for an unknown key, with the nearest known one."""
    names = tuple(known_keys)
    suggestion = nearest_name(str(key), names)
    return InvalidRules(
        f"Unknown key {short_repr(key)}. Known keys: {', '.join(names)}.",
        where=where,
        fix=f"Did you mean {suggestion!r}?" if suggestion else "use one of these keys.",
    )


def merge_rules(parts: Iterable[Rules]) -> Rules:
    """Return several sets of rules as one, in their order; a path can have only one spec."""
    rules: list[Rule] = []
    logical: list[LogicalRule] = []
    specs: dict[str, PathSpec] = {}
    sources, semantics, stack = [], set(), None
    for part in parts:
        stack = merge_stack_options(stack, part.stack)
        rules += part.rules
        logical += part.logical
        for path_spec in part.specs:
            first = specs.setdefault(path_spec.pattern, path_spec)
            if (first.spec, first.is_trailing) != (path_spec.spec, path_spec.is_trailing):
                raise InvalidRules(
                    f"Path {path_spec.pattern!r:.80} has two specs: {first.spec_text} and "
                    f"{path_spec.spec_text}.",
                    where=", ".join(filter(None, (first.where, path_spec.where))),
                    fix="keep one spec for this path.",
                )
        sources += [part.source] * bool(part.source)
        semantics |= {part.semantics} if part.logical and part.semantics else set()
    if len(semantics) > 1:
        raise InvalidRules(
            "Logical rules with linen semantics and with nnx semantics are combined.",
            fix="use one logical_semantics for all logical rules.",
        )
    # Checked again for the sum: each part may be below the limits on its own.
    check_rule_count(max(len(rules), len(logical)))
    check_pattern_length(rule.pattern for rule in rules)
    return Rules(
        rules=tuple(rules),
        source=", ".join(sources),
        specs=tuple(specs.values()),
        logical=tuple(logical),
        semantics=semantics.pop() if semantics else None,
        stack=stack,
    )


def _parse_spec_text(text: str) -> tuple[Spec, bool]:
    """Parse `..., tensor` and `P(..., 'tensor')`; anything else is for `parse_spec`."""
    ellipsis = re.match(r"\s*((?:[\w.]+\()?)\s*(?:\.\.\.|…)\s*,?", text)
    if ellipsis is None:
        return parse_spec(text), False
    return parse_spec(ellipsis[1] + text[ellipsis.end() :]), True


def _parse_mapping(rules: Mapping[Any, Any]) -> Rules:
    # If one key is a section, all must be: a path called "rules" would be ambiguous.
    sections = [key for key in rules if key in SECTIONS]
    if not sections:
        return Rules(specs=tuple(parse_path_spec(path, spec) for path, spec in rules.items()))
    if len(sections) < len(rules):
        unknown = next(key for key in rules if key not in SECTIONS)
        raise InvalidRules(
            f"The mapping mixes the section {sections[0]!r} with the key {short_repr(unknown)}.",
            fix='write {"specs": {path: spec}} for paths; sections are '
            + ", ".join(SECTIONS)
            + ".",
        )
    logical = (
        parse_logical_rule(*pair) for pair in _check_pairs(rules.get("logical", ()), "logical")
    )
    specs = rules.get("specs", {})
    if not isinstance(specs, Mapping):
        raise InvalidRules(
            f"'specs' is {short_repr(specs)}.", fix='use a mapping such as {"lm_head": "tensor"}.'
        )
    return Rules(
        rules=tuple(parse_rule(*pair) for pair in _check_pairs(rules.get("rules", ()), "rules")),
        source="",
        specs=tuple(parse_path_spec(path, spec) for path, spec in specs.items()),
        logical=tuple(logical),
        semantics=parse_semantics(rules.get("logical_semantics")),
        stack=parse_stack(rules.get("stack")),
    )


def _parse_list(rules: list[Any] | tuple[Any, ...]) -> Rules:
    """Parse pairs, or several sources; consecutive pairs are one source."""
    parts: list[Rules] = []
    pairs: list[Any] = []
    for item in rules:
        if _is_pair(item):
            pairs.append(item)
        elif isinstance(item, (str, Path, Mapping, Rules)) or _is_pair_list(item):
            parts += [_parse_pairs(pairs), parse_rules(item)]
            pairs = []
        else:
            raise InvalidRules(f"{short_repr(item)} is not a rule.", fix=f"use {_EXAMPLE_PAIRS}")
    return merge_rules([*parts, _parse_pairs(pairs)])


def _parse_pairs(pairs: list[Any]) -> Rules:
    """Parse a bare list of pairs as patterns, unless they could just as well be logical rules."""
    check_rule_count(len(pairs))
    check_pattern_length(name for name, _ in pairs)
    # Flax's logical rules are pairs of a name and mesh axes too. Guessing wrong would silently
    # replicate the whole model, so an ambiguous list is an error.
    if pairs and not any(map(_is_pattern_pair, pairs)):
        examples = ", ".join(f"({name!r:.40}, {short_repr(spec, 40)})" for name, spec in pairs[:3])
        raise InvalidRules(
            "These pairs may be patterns or logical rules.",
            where=examples + (", ..." if len(pairs) > 3 else ""),
            fix='write {"rules": [...]} for patterns, {"logical": [...]} for logical axis names.',
        )
    return Rules(rules=tuple(parse_rule(*pair) for pair in pairs))


def _is_pattern_pair(pair: Any) -> bool:
    """Return whether a pair can only be a pattern with a spec, and not a logical rule."""
    name, spec = pair
    if not _NAME.fullmatch(name) or isinstance(spec, Spec) or hasattr(spec, "partitions"):
        return True
    if isinstance(spec, str):
        return not _NAME.fullmatch(spec.strip())
    return isinstance(spec, (tuple, list)) and not all(isinstance(entry, str) for entry in spec)


def _check_pairs(pairs: Any, section: str) -> list[Any]:
    if not isinstance(pairs, (list, tuple)) or not all(map(_has_two_items, pairs)):
        raise InvalidRules(
            f"{section!r} is {short_repr(pairs)}.", fix=f"use a list of {_EXAMPLE_PAIRS}"
        )
    check_rule_count(len(pairs))
    check_pattern_length(name for name, _ in pairs)
    return list(pairs)


def _has_two_items(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and len(item) == 2


def _is_pair(item: Any) -> bool:
    return _has_two_items(item) and isinstance(item[0], str)


def _is_pair_list(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and all(map(_is_pair, item))


def _check_text(value: Any, subject: str, where: str) -> None:
    if not isinstance(value, str):
        raise InvalidRules(
            f"{subject} is {short_repr(value)}.", where=where, fix="write text in quotes."
        )
    # A lone surrogate cannot be encoded, so it could be neither printed nor saved.
    if not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidRules(
            f"{subject} is {short_repr(value)}, which is not valid text.",
            where=where,
            fix="use text that is valid UTF-8.",
        )
