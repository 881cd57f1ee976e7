"""The answer as text to paste: Python, rules for `shardlab plan`, and what to constrain where."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardlab.autoshard.answer import Autosharding, ConstraintSpec
from shardlab.errors import LabError
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.rules.rules import Rules, parse_rule
from shardlab.planner.rules.rules_file import rules_text
from shardlab.planner.rules.strategy_rules import derive_rules
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import parse_mesh


def spec_lines(answer: Autosharding) -> Iterator[str]:
    """Yield the specs as Python: a dict from the path of each group, and the constraints."""
    mesh = parse_mesh(answer.mesh)
    yield f"mesh = jax.make_mesh({mesh.axis_sizes}, {mesh.axis_names}, " + (
        f"axis_types=(jax.sharding.AxisType.Auto,) * {len(mesh.axis_names)})"
    )
    yield "specs = {"
    for group in answer.groups:
        yield f"    {group.name!r}: {group.spec},"
    yield "}"


def constraint_line(constraint: ConstraintSpec, source: str) -> str:
    """Return where to write a constraint, and the call."""
    call = f"jax.lax.with_sharding_constraint(x, {constraint.spec})"
    value = f"[{','.join(map(str, constraint.shape))}]"
    if constraint.is_carry:
        return f"{source}: at the start of the scan's body, carry x {value}: x = {call}"
    return f"{source}: on the product x {value}: x = {call}"


def rules_of(answer: Autosharding) -> Rules:
    """Return the specs of the parameters as rules in the format of `shardlab plan --rules`."""
    sharded = []
    for group in answer.groups:
        path = ".".join(re.findall(r"\w+|\*", group.name)).replace("*", "{0..1}")
        tensor = parse_tensor_group(path, group.shape, parse_dtype(group.dtype))
        sharded.append(ShardedGroup(group=tensor, spec=group.spec, rule="autoshard"))
    return Rules(rules=tuple(parse_rule(line.pattern, line.spec) for line in derive_rules(sharded)))


def rules_file_text(answer: Autosharding) -> str:
    """Return the rules as a file for `shardlab plan --rules`; empty if no rule says it."""
    try:
        return rules_text(rules_of(answer))
    except LabError:
        return ""
