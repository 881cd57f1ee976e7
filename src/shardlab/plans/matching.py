"""Matching: which rule takes which tensors of a family."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardlab.layouts.mesh import Mesh
from shardlab.layouts.spec import Spec
from shardlab.plans.family import Family, Numbers
from shardlab.plans.model import Model
from shardlab.plans.rules import Rules
from shardlab.records.declined import Declined


@dataclass(frozen=True)
class Placed:
    """A family, or the part of one, whose tensors all have the same spec for the same reason."""

    family: Family
    spec: Spec
    rule: str  # in words: "rule 3: mlp/.*kernel", "strategy fsdp", "no rule"
    number: int | None = None  # of the rule, from 0; None where no rule matched
    gradient_spec: Spec | None = None  # where not that of the parameter: ZeRO stage 2
    state_spec: Spec | None = None  # of the optimizer's arrays, where not that: ZeRO stages 1 and 2
    declined: tuple[Declined, ...] = ()  # what a strategy would have cut, were it divisible


def match(model: Model, rules: Rules, mesh: Mesh) -> Iterator[Placed]:
    """Yield every tensor of the model once, in families split by the rule that takes them."""
    patterns = [re.compile(rule.pattern) for rule in rules.rules]
    for family in model.families:
        taken: dict[int | None, list[Numbers]] = {}
        for numbers in family.numbers():
            path = family.path(numbers)
            first = next((at for at, found in enumerate(patterns) if found.search(path)), None)
            taken.setdefault(first, []).append(numbers)
        for at, members in taken.items():
            part = family if len(taken) == 1 else family.only(members)
            if at is None:
                yield Placed(part, Spec(), "no rule")
            else:
                rule = rules.rules[at]
                yield Placed(part, rule.spec, f"rule {at + 1}: {rule.pattern}", at)
