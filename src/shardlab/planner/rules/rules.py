r"""Rules: which spec a tensor gets by its path, or by the names of its array axes.

>>> rules = parse_rules([("mlp/.*kernel", "fsdp,tensor"), (".*", "")])
>>> rules.rules[0].pattern, rules.rules[0].spec_for(2)
('mlp/.*kernel', Spec('fsdp', 'tensor'))
>>> parse_rules([("kernel", "..., tensor")]).rules[0].spec_for(3)
Spec(None, None, 'tensor')
>>> parse_rules({"logical": [("embed", "fsdp"), ("mlp", ("tensor", "expert"))]}).logical[1].axes
('tensor', 'expert')

Specs given for a path come first, then patterns, the first that is found in a path, then logical
rules for tensors whose array axes have names, then the model's own spec.
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
FORMS = ("rules", "specs", "logical", "logical_semantics", "stack")
MAX_LETTERS = 100_000  # of all patterns
MAX_RULES = 2000  # patterns; specs by path have no limit
_NAME = re.compile(r"[^\W\d]\w*")
_PAIRS = 'pairs of pattern and spec, such as ("mlp/.*kernel", "fsdp,tensor").'


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A regular expression searched in a path, and the spec.

    With `is_trailing` the spec is that of the last array axes, those before being whole: one rule then
    serves a layer's tensor and the same tensors stacked. A `reason` says why lint may be silent.
    """

    pattern: str
    spec: Spec
    is_trailing: bool = False
    reason: str = ""
    location: SourceLocation | None = None

    @property
    def where(self) -> str:
        """Its place in a file, as `rules.toml:12`; nothing where it came from Python."""
        return str(self.location or "")

    @property
    def spec_text(self) -> str:
        """The spec as a person writes it."""
        return f"P(..., {str(self.spec)[2:]}" if self.is_trailing else str(self.spec)

    def spec_for(self, rank: int) -> Spec:
        """Return the spec of a tensor of that many array axes."""
        if not self.is_trailing:
            return self.spec
        return Spec(*(None,) * (rank - len(self.spec)), *self.spec.entries)


@dataclass(frozen=True)
class PathSpec(Rule):
    """A spec for one tensor by its path; `*` in the path stands for any number."""


@dataclass(frozen=True)
class LogicalRule:
    """The mesh axes that cut the array axes of a logical name, as in Flax; none: left whole."""

    name: str
    axes: tuple[str, ...]
    location: SourceLocation | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Everything that was said about specs."""

    rules: tuple[Rule, ...] = ()
    source: str = ""
    specs: tuple[PathSpec, ...] = ()
    logical: tuple[LogicalRule, ...] = ()
    # whose reading of logical rules, flax.linen's or flax.nnx's; None: as fits the model
    semantics: Semantics | None = None
    stack: str | None = None  # what the rules take to be in one array: experts, layers, all of both

    @property
    def is_empty(self) -> bool:
        return not (self.rules or self.specs or self.logical)


def parse_rules(rules: Any) -> Rules:
    """Return the rules meant by pairs, a mapping, a TOML file, or several of them in a list.

    Pairs are (pattern, spec). A mapping of paths to specs gives those tensors theirs. A mapping
    with the keys `rules`, `specs` and `logical` says of each part what it is.

    >>> parse_rules([("embed", "fsdp"), ("mlp", "tensor")])
    Traceback (most recent call last):
        ...
    shardlab.errors.InvalidRules: [plan.invalid_rules] These pairs may be patterns, or Flax's logical rules.
      where: ('embed', 'fsdp'), ('mlp', 'tensor')
      try:   {"rules": [...]} for patterns, {"logical": [...]} for logical axis names.
    """
    if rules is None:
        return Rules()
    if isinstance(rules, Rules):
        return rules
    if isinstance(rules, (str, Path)):
        from shardlab.planner.rules.rules_file import load_rules

        return load_rules(rules)
    if isinstance(rules, Mapping):
        return _of_mapping(rules)
    if isinstance(rules, (list, tuple)):
        return _of_list(rules)
    raise InvalidRules(f"{short_repr(rules)} is not a list of rules.", fix=_PAIRS)


def parse_rule(
    pattern: Any, spec: Any, place: SourceLocation | None = None, reason: str = ""
) -> Rule:
    """Return a rule whose pattern and spec can be read."""
    where = str(place or "")
    _text(pattern, "The pattern of a rule", where)
    parse_pattern(pattern, where)
    read, ends = parse_rule_spec(spec, f"pattern {pattern:.80}", where)
    return Rule(pattern=pattern, spec=read, is_trailing=ends, reason=reason, location=place)


def parse_path_spec(path: Any, spec: Any, place: SourceLocation | None = None) -> PathSpec:
    """Return the spec for a path."""
    where = str(place or "")
    _text(path, "The path of a tensor", where)
    read, ends = parse_rule_spec(spec, f"path {path:.80}", where)
    return PathSpec(pattern=path, spec=read, is_trailing=ends, location=place)


def parse_logical_rule(name: Any, axes: Any, place: SourceLocation | None = None) -> LogicalRule:
    """Return the mesh axes for a logical name: one, several, or none."""
    where = str(place or "")
    _text(name, "The logical name of a rule", where)
    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
    if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) and n for n in names):
        raise InvalidRules(
            f"The mesh axes for the logical name {name!r:.80} are {short_repr(axes)}.",
            where=where,
            fix="a mesh axis, a list of mesh axes, or None.",
        )
    return LogicalRule(name, tuple(names), place)


def parse_rule_spec(spec: Any, of: str, where: str) -> tuple[Spec, bool]:
    """Return the spec, and whether `...` stood first."""
    try:
        if isinstance(spec, str):
            return _of_text(spec)
        entries = getattr(spec, "partitions", spec)
        if not isinstance(entries, (tuple, list)) or isinstance(spec, Spec):
            return parse_spec(spec), False
        ends = bool(entries) and entries[0] in (..., "...")
        entries = [None if entry == "None" else entry for entry in entries[ends:]]
        if ... in entries or "..." in entries:
            raise InvalidRules("'...' stands for the leading array axes, so it comes first.")
        return (Spec(*entries) if ends or entries != list(spec) else parse_spec(spec)), ends
    except LabError as error:
        place = "\n         ".join(filter(None, (where, of, error.where)))
        fix = error.fix or "..., tensor for the last array axis; None for one left whole."
        raise InvalidRules(f"A spec cannot be read: {error.what}", where=place, fix=fix) from None


def parse_semantics(value: Any, where: str = "") -> Semantics | None:
    """Return whose reading of logical rules is meant; None where that was not said."""
    if value is None:
        return None
    if value not in get_args(Semantics):
        raise InvalidRules(
            f"'logical_semantics' is {short_repr(value)}.",
            where=where,
            fix='"linen", as flax.linen and MaxText read logical rules, or "nnx".',
        )
    return "linen" if value == "linen" else "nnx"


def parse_stack(value: Any, where: str = "") -> str | None:
    """Return what rules take to be stacked."""
    try:
        return merge_stack_options(value)
    except UnknownOption as error:
        raise InvalidRules(error.what, where=where, fix=error.fix) from None


def check_rule_count(n_rules: int, where: str = "") -> None:
    """Refuse more patterns, or logical rules, than anybody writes by hand."""
    if n_rules > MAX_RULES:
        fix = f"at most {MAX_RULES:,}: one pattern serves many tensors, and specs may go by path."
        raise InvalidRules(f"There are {n_rules:,} rules.", where=where, fix=fix)


def check_pattern_length(patterns: Iterable[Any], where: str = "") -> None:
    """Refuse patterns that take more than a few seconds to be read, all together."""
    n = sum(len(each) for each in patterns if isinstance(each, str))
    if n > MAX_LETTERS:
        fix = f"at most {MAX_LETTERS:,}: one pattern serves many tensors, and specs may go by path."
        raise InvalidRules(f"The patterns have {n:,} characters.", where=where, fix=fix)


def unknown_key(key: Any, known: Iterable[str], where: str = "") -> InvalidRules:
    """Return the error for a key that means nothing, with the nearest that does."""
    names = tuple(known)
    near = nearest_name(str(key), names)
    return InvalidRules(
        f"There is no entry {short_repr(key)}; there is {', '.join(names)}.",
        where=where,
        fix=f"{near!r}, the nearest name." if near else f"one of {', '.join(names)}.",
    )


def merge_rules(parts: Iterable[Rules]) -> Rules:
    """Return several rules as one, in their order; a path can have one spec only."""
    rules: list[Rule] = []
    logical: list[LogicalRule] = []
    specs: dict[str, PathSpec] = {}
    sources, semantics, stack = [], set(), None
    for part in parts:
        stack = merge_stack_options(stack, part.stack)
        rules += part.rules
        logical += part.logical
        for each in part.specs:
            known = specs.setdefault(each.pattern, each)
            if (known.spec, known.is_trailing) != (each.spec, each.is_trailing):
                raise InvalidRules(
                    f"Path {each.pattern!r:.80} is given {known.spec_text} and {each.spec_text}.",
                    where=", ".join(filter(None, (known.where, each.where))),
                    fix="one spec for a path.",
                )
        sources += [part.source] * bool(part.source)
        semantics |= {part.semantics} if part.logical and part.semantics else set()
    if len(semantics) > 1:
        fix = "one of them for all logical rules."
        raise InvalidRules("Logical rules are to be read as linen and as nnx do.", fix=fix)
    check_rule_count(max(len(rules), len(logical)))
    check_pattern_length(each.pattern for each in rules)
    reading = semantics.pop() if semantics else None
    by_path = tuple(specs.values())
    return Rules(
        rules=tuple(rules),
        source=", ".join(sources),
        specs=by_path,
        logical=tuple(logical),
        semantics=reading,
        stack=stack,
    )


def _of_text(text: str) -> tuple[Spec, bool]:
    """Read `..., tensor` and `P(..., 'tensor')`; the rest is for `parse_spec`."""
    start = re.match(r"\s*((?:[\w.]+\()?)\s*(?:\.\.\.|…)\s*,?", text)
    if start is None:
        return parse_spec(text), False
    return parse_spec(start[1] + text[start.end() :]), True


def _of_mapping(rules: Mapping[Any, Any]) -> Rules:
    known = [key for key in rules if key in FORMS]
    if not known:
        return Rules(specs=tuple(parse_path_spec(path, spec) for path, spec in rules.items()))
    if len(known) < len(rules):
        other = next(key for key in rules if key not in FORMS)
        raise InvalidRules(
            f"The mapping has the key {known[0]!r}, a part of rules, and {short_repr(other)}.",
            fix='{"specs": {path: spec}} for paths; the parts are ' + ", ".join(FORMS) + ".",
        )
    logical = (parse_logical_rule(*pair) for pair in _pairs(rules.get("logical", ()), "logical"))
    specs = rules.get("specs", {})
    if not isinstance(specs, Mapping):
        raise InvalidRules(
            f"'specs' is {short_repr(specs)}.", fix='a mapping such as {"lm_head": "tensor"}.'
        )
    return Rules(
        rules=tuple(parse_rule(*pair) for pair in _pairs(rules.get("rules", ()), "rules")),
        source="",
        specs=tuple(parse_path_spec(path, spec) for path, spec in specs.items()),
        logical=tuple(logical),
        semantics=parse_semantics(rules.get("logical_semantics")),
        stack=parse_stack(rules.get("stack")),
    )


def _of_list(rules: list[Any] | tuple[Any, ...]) -> Rules:
    """Read pairs, or several sources; pairs that follow each other are one source."""
    parts: list[Rules] = []
    pairs: list[Any] = []
    for item in rules:
        if _is_pair(item):
            pairs.append(item)
        elif isinstance(item, (str, Path, Mapping, Rules)) or _is_pairs(item):
            parts += [_of_pairs(pairs), parse_rules(item)]
            pairs = []
        else:
            raise InvalidRules(f"{short_repr(item)} is not a rule.", fix=_PAIRS)
    return merge_rules([*parts, _of_pairs(pairs)])


def _of_pairs(pairs: list[Any]) -> Rules:
    """Read a bare list of pairs as patterns, unless it may as well be logical rules."""
    check_rule_count(len(pairs))
    check_pattern_length(name for name, _ in pairs)
    if pairs and not any(map(_is_clear, pairs)):
        shown = ", ".join(f"({name!r:.40}, {short_repr(spec, 40)})" for name, spec in pairs[:3])
        raise InvalidRules(
            "These pairs may be patterns, or Flax's logical rules.",
            where=shown + (", ..." if len(pairs) > 3 else ""),
            fix='{"rules": [...]} for patterns, {"logical": [...]} for logical axis names.',
        )
    return Rules(rules=tuple(parse_rule(*pair) for pair in pairs))


def _is_clear(pair: Any) -> bool:
    """Tell whether a pair can only be a pattern with a spec, and not a logical rule."""
    name, spec = pair
    if not _NAME.fullmatch(name) or isinstance(spec, Spec) or hasattr(spec, "partitions"):
        return True
    if isinstance(spec, str):
        return not _NAME.fullmatch(spec.strip())
    return isinstance(spec, (tuple, list)) and not all(isinstance(each, str) for each in spec)


def _pairs(pairs: Any, of: str) -> list[Any]:
    if not isinstance(pairs, (list, tuple)) or not all(map(_is_two, pairs)):
        raise InvalidRules(f"{of!r} is {short_repr(pairs)}.", fix=f"a list of {_PAIRS}")
    check_rule_count(len(pairs))
    check_pattern_length(name for name, _ in pairs)
    return list(pairs)


def _is_two(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and len(item) == 2


def _is_pair(item: Any) -> bool:
    return _is_two(item) and isinstance(item[0], str)


def _is_pairs(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and all(map(_is_pair, item))


def _text(value: Any, what: str, where: str) -> None:
    if not isinstance(value, str):
        raise InvalidRules(f"{what} is {short_repr(value)}.", where=where, fix="text in quotes.")
    if not value.isprintable() and any("\ud800" <= each <= "\udfff" for each in value):
        fix = "text that UTF-8 can hold."
        raise InvalidRules(
            f"{what} is {short_repr(value)}, which is no text.", where=where, fix=fix
        )
