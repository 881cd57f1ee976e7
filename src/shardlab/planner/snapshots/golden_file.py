"""Golden files: a saved plan, or MaxText's shardings, against which a plan is compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardlab.errors import InvalidPlan, InvalidRules
from shardlab.planner.models.maxtext import (
    ArraySharding,
    ShardingDump,
    is_sharding_dump,
    read_sharding_dump,
)
from shardlab.planner.plan import Plan, PlanRow
from shardlab.planner.rules.rule_line import RULE_KINDS
from shardlab.planner.rules.rules import (
    LogicalRule,
    PathSpec,
    Rule,
    Rules,
    parse_semantics,
    parse_stack,
)
from shardlab.planner.snapshots.compare import compare
from shardlab.planner.snapshots.comparison import Change, Comparison
from shardlab.planner.snapshots.saved_plan import parse_json, plan_of_data, read_text
from shardlab.sharding.spec import Spec

_SPLIT = re.compile(r"[./]")


@dataclass(frozen=True)
class GoldenFile:
    """What a file holds: a whole plan, or specs by path."""

    where: str
    plan: Plan | None = None
    shardings: ShardingDump | None = None

    def compare(self, plan: Plan) -> Comparison:
        """Return what differs in a plan from the file."""
        if self.plan is not None:
            return compare(self.plan, plan)
        assert self.shardings is not None
        return compare_specs(self.shardings, plan, self.where)


def load_golden(path: str | Path) -> GoldenFile:
    """Return what a golden file holds, of either kind."""
    where = str(path)
    data = parse_json(read_text(path), where)
    if is_sharding_dump(data):
        return GoldenFile(where, shardings=read_sharding_dump(data, where, InvalidPlan))
    return GoldenFile(where, plan_of_data(data, where))


def load_specs(path: str | Path) -> Rules:
    """Return the specs of MaxText's `named_shardings.json` as rules, one for each path."""
    where = str(path)
    found = read_sharding_dump(parse_json(read_text(path), where), where, InvalidRules)
    if found.mesh is None:
        raise InvalidRules(
            "The file has logical names of array axes, not the mesh axes that cut them.",
            where=where,
            fix="named_shardings.json, which lies beside it.",
        )
    specs = tuple(PathSpec(pattern=entry.path, spec=entry.spec) for entry in found.parameters)
    return Rules(specs=specs, source=where)


def rules_of_plan(plan: Plan) -> Rules:
    """Return the rules that a plan was made by, a strategy's too; without any, specs by path."""
    if not plan.rules:
        specs = {row.path: PathSpec(pattern=row.path, spec=row.parameter.spec) for row in plan.rows}
        return Rules(specs=tuple(specs.values()), stack=parse_stack(plan.choices.get("stack")))
    of = {kind: [line for line in plan.rules if line.kind == kind] for kind in RULE_KINDS}
    return Rules(
        rules=tuple(
            Rule(
                pattern=each.pattern,
                spec=each.spec,
                is_trailing=each.is_trailing,
                reason=each.reason,
            )
            for each in of["pattern"]
        ),
        source="",
        specs=tuple(
            PathSpec(pattern=each.pattern, spec=each.spec, is_trailing=each.is_trailing)
            for each in of["path"]
        ),
        logical=tuple(LogicalRule(each.pattern, each.spec.mesh_axes) for each in of["logical"]),
        semantics=parse_semantics(plan.choices.get("logical_semantics")),
        stack=parse_stack(plan.choices.get("stack")),
    )


def compare_specs(golden: ShardingDump, plan: Plan, where: str) -> Comparison:
    """Return the tensors whose specs or shapes differ from those of a file, family by family."""
    rows = [(_pattern(row.path), row) for row in plan.rows]
    changes: dict[tuple[str, str, str], list[str]] = {}
    n_shared, seen = 0, set()
    for entry in golden.entries:
        row = next((row for found, row in rows if found.fullmatch(entry.path)), None)
        if row is not None:
            n_shared += entry.name == "parameter"
            seen.add(id(row))
        for change in _differences(entry, row, plan):
            changes.setdefault(change, []).append(entry.path)
    if not n_shared:
        raise InvalidPlan(
            f"No tensor of the plan has a path of the file; it has {golden.entries[0].path!r:.80}, "
            f"the plan {plan.rows[0].path if plan.rows else 'nothing'!r:.80}.",
            where=where,
            fix="plan the model that the file is of: the file itself can be the MODEL.",
        )
    new = [row for row in plan.rows if id(row) not in seen]
    return Comparison(
        f"{plan.model} on {plan.mesh_words}",
        (
            *_mesh_change(golden, plan),
            *(Change("tensor", _few(paths), *key[1:]) for key, paths in changes.items()),
            *(Change("tensor", row.path, "", str(row.parameter.spec)) for row in new),
        ),
        n_shared,
    )


def _differences(
    entry: ArraySharding, row: PlanRow | None, plan: Plan
) -> Iterator[tuple[str, str, str]]:
    """Yield a name for the kind of difference, what the file says, and what the plan says."""
    star = re.sub(r"[0-9]+", "*", entry.path)
    if row is None:
        yield star, _shown(entry, ""), ""
        return
    held = next((each for each in row.held if each.name == entry.name), None)
    if held is None:  # the plan keeps no such array: another optimizer, or none
        return
    name = "" if entry.name == "parameter" else f"{entry.name} "
    if entry.shape is not None and entry.shape != held.shape:
        yield star, f"{name}shape {list(entry.shape)}", f"{name}shape {list(held.shape)}"
    if _cut(entry.spec) != _cut(held.spec):
        yield star, f"{name}{entry.spec}", f"{name}{held.spec}"


def _shown(entry: ArraySharding, name: str) -> str:
    shape = "" if entry.shape is None else f"{list(entry.shape)} "
    return f"{name}{shape}{entry.spec}"


def _mesh_change(golden: ShardingDump, plan: Plan) -> Iterator[Change]:
    if golden.mesh is not None and golden.mesh != plan.mesh:
        yield Change("question", "mesh", golden.mesh_text, plan.mesh_text)


def _cut(spec: Spec) -> tuple[tuple[str, ...], ...]:
    axes = spec.axes
    while axes and not axes[-1]:
        axes = axes[:-1]
    return axes


def _few(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"


def _pattern(path: str) -> re.Pattern[str]:
    """Return what finds the paths of a row, with dots or slashes, without a first `params`."""
    keys = _SPLIT.split(path)
    while len(keys) > 1 and keys[0] in ("params", "model", ""):
        keys = keys[1:]
    return re.compile("[./]".join("[0-9]+".join(map(re.escape, key.split("*"))) for key in keys))
