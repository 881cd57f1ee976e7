"""Golden files: a saved plan, or MaxText's shardings, that a plan is compared with."""

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
from shardlab.planner.plan import Plan, PlanRow, strip_unsharded
from shardlab.planner.rules.rule_line import RULE_KINDS
from shardlab.planner.rules.rules import (
    LogicalRule,
    PathSpec,
    Rule,
    Rules,
    parse_semantics,
    parse_stack,
)
from shardlab.planner.snapshots.compare_plans import compare_plans
from shardlab.planner.snapshots.plan_comparison import Change, Comparison
from shardlab.planner.snapshots.saved_plan import parse_plan_data, parse_plan_json, read_plan_file

_PATH_SEPARATOR = re.compile(r"[./]")
_NUMBER = re.compile(r"[0-9]+")
_ROOT_KEYS = ("params", "model", "")  # the first keys of a path, which frameworks add or omit


@dataclass(frozen=True)
class GoldenFile:
    """The content of a golden file: a plan, or specs by path."""

    where: str
    plan: Plan | None = None
    shardings: ShardingDump | None = None

    def compare(self, plan: Plan) -> Comparison:
        """Return how a plan differs from the file."""
        if self.plan is not None:
            return compare_plans(self.plan, plan)
        assert self.shardings is not None
        return compare_specs(self.shardings, plan, self.where)


def load_golden(path: str | Path) -> GoldenFile:
    """Return the content of a golden file, of either kind."""
    where = str(path)
    data = parse_plan_json(read_plan_file(path), where)
    if is_sharding_dump(data):
        return GoldenFile(where, shardings=read_sharding_dump(data, where, InvalidPlan))
    return GoldenFile(where, parse_plan_data(data, where))


def load_specs(path: str | Path) -> Rules:
    """Return the specs of MaxText's `named_shardings.json` as rules, one per path."""
    where = str(path)
    shardings = read_sharding_dump(
        parse_plan_json(read_plan_file(path), where), where, InvalidRules
    )
    if shardings.mesh is None:
        raise InvalidRules(
            "The file has logical names of dimensions, not the mesh axes that shard them.",
            where=where,
            fix="named_shardings.json, which MaxText writes to the same folder.",
        )
    specs = tuple(PathSpec(pattern=entry.path, spec=entry.spec) for entry in shardings.parameters)
    return Rules(specs=specs, source=where)


def rules_of_plan(plan: Plan) -> Rules:
    """Return the rules that a plan was made with, or those of its strategy; else specs by path."""
    stack = parse_stack(plan.choices.get("stack"))
    if not plan.rules:
        specs = {row.path: PathSpec(pattern=row.path, spec=row.parameter.spec) for row in plan.rows}
        return Rules(specs=tuple(specs.values()), stack=stack)
    by_kind = {kind: [line for line in plan.rules if line.kind == kind] for kind in RULE_KINDS}
    return Rules(
        rules=tuple(
            Rule(
                pattern=line.pattern,
                spec=line.spec,
                is_trailing=line.is_trailing,
                reason=line.reason,
            )
            for line in by_kind["pattern"]
        ),
        source="",
        specs=tuple(
            PathSpec(pattern=line.pattern, spec=line.spec, is_trailing=line.is_trailing)
            for line in by_kind["path"]
        ),
        logical=tuple(
            LogicalRule(line.pattern, line.spec.mesh_axes) for line in by_kind["logical"]
        ),
        semantics=parse_semantics(plan.choices.get("logical_semantics")),
        stack=stack,
    )


def compare_specs(golden: ShardingDump, plan: Plan, where: str) -> Comparison:
    """Return the tensors whose specs or shapes differ from those of a file, group by group."""
    patterns = [(_path_pattern(row.path), row) for row in plan.rows]
    changes: dict[tuple[str, str, str], list[str]] = {}
    n_shared, matched_rows = 0, set()
    for entry in golden.entries:
        row = next((row for pattern, row in patterns if pattern.fullmatch(entry.path)), None)
        if row is not None:
            n_shared += entry.name == "parameter"
            matched_rows.add(id(row))
        for difference in _differences(entry, row):
            changes.setdefault(difference, []).append(entry.path)
    if not n_shared:
        plan_path = plan.rows[0].path if plan.rows else "nothing"
        raise InvalidPlan(
            f"No tensor of the plan has a path of the file; it has {golden.entries[0].path!r:.80}, "
            f"the plan {plan_path!r:.80}.",
            where=where,
            fix="plan the model of the file: the file itself can be the MODEL.",
        )
    # Tensors of the plan that the file lacks.
    new_rows = [row for row in plan.rows if id(row) not in matched_rows]
    return Comparison(
        f"{plan.model} on {plan.mesh_summary}",
        (
            *_mesh_change(golden, plan),
            *(
                Change(topic="tensor", name=_paths_text(paths), old=old, new=new)
                for (_, old, new), paths in changes.items()
            ),
            *(
                Change(topic="tensor", name=row.path, old="", new=str(row.parameter.spec))
                for row in new_rows
            ),
        ),
        n_shared,
    )


def _differences(entry: ArraySharding, row: PlanRow | None) -> Iterator[tuple[str, str, str]]:
    """Yield the group of the tensor, the value of the file, and the value of the plan."""
    group = _NUMBER.sub("*", entry.path)
    if row is None:
        shape = "" if entry.shape is None else f"{list(entry.shape)} "
        yield group, f"{shape}{entry.spec}", ""
        return
    array = next((array for array in row.arrays if array.name == entry.name), None)
    if array is None:  # the plan has another optimizer, or none
        return
    name = "" if entry.name == "parameter" else f"{entry.name} "
    if entry.shape is not None and entry.shape != array.shape:
        yield group, f"{name}shape {list(entry.shape)}", f"{name}shape {list(array.shape)}"
    if strip_unsharded(entry.spec) != array.sharded_dims:
        yield group, f"{name}{entry.spec}", f"{name}{array.spec}"


def _mesh_change(golden: ShardingDump, plan: Plan) -> Iterator[Change]:
    if golden.mesh is not None and golden.mesh != plan.mesh:
        yield Change(topic="question", name="mesh", old=golden.mesh_text, new=plan.mesh_text)


def _paths_text(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"


def _path_pattern(path: str) -> re.Pattern[str]:
    """Return a pattern for the paths of a row, with dots or slashes, without a leading `params`."""
    keys = _PATH_SEPARATOR.split(path)
    while len(keys) > 1 and keys[0] in _ROOT_KEYS:
        keys = keys[1:]
    return re.compile("[./]".join("[0-9]+".join(map(re.escape, key.split("*"))) for key in keys))
