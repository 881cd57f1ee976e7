"""Rules: an ordered list of patterns, each with the spec of the tensors whose paths it finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.layouts.spec import Spec, parse_spec


@dataclass(frozen=True)
class Rule:
    """A regular expression searched in a path, and the spec; `where` is its place in a file."""

    pattern: str
    spec: Spec
    where: str = ""


@dataclass(frozen=True)
class Rules:
    """Rules in order: the first whose pattern is found in a path gives its spec."""

    rules: tuple[Rule, ...] = ()
    source: str = ""


def parse_rules(rules: Any) -> Rules:
    """Return the rules meant by pairs of pattern and spec."""
    if isinstance(rules, Rules):
        return rules
    pairs: Iterable[Sequence[Any]] = rules
    return Rules(tuple(Rule(pattern, parse_spec(spec)) for pattern, spec in pairs))
