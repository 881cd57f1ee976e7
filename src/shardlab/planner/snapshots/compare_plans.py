"""Compares two plans: totals that moved, tensors and specs, findings that are new or gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.plan import KINDS, DeviceBytes, Plan, PlanRow
from shardlab.planner.rules.rule_line import RuleLine
from shardlab.planner.snapshots.plan_comparison import Change, Comparison

_RowText = Callable[[PlanRow], str]
# Details that say what a finding is about; its other details are numbers, which may change.
_SUBJECT_DETAILS = ("paths", "path", "mesh_axes", "subject")


def compare_plans(old: Plan, new: Plan) -> Comparison:
    """Return the differences in the order in which a reader asks: what was planned, what moved.

    Where a model was read from is ignored, and so are notes: they differ between machines.
    """
    changes = (
        *_compare_requests(old, new),
        *_compare_totals(old, new),
        *_compare_tensors(old, new),
        *_compare_items(old, new),
        *_compare_rules(old, new),
        *_compare_findings(old, new),
    )
    shared = {row.path for row in old.rows} & {row.path for row in new.rows}
    n_compared = sum(row.n_tensors for row in new.rows if row.path in shared)
    return Comparison(f"{new.model} on {new.mesh_summary}", changes, n_compared)


def _compare_requests(old: Plan, new: Plan) -> Iterator[Change]:
    values: list[tuple[str, str, str]] = [
        ("model", old.model, new.model),
        ("total parameters", f"{old.n_parameters:,}", f"{new.n_parameters:,}"),
        ("mesh", old.mesh_text, new.mesh_text),
    ]
    for name in sorted({*old.choices, *new.choices}):
        values.append((name, old.choice_text(name), new.choice_text(name)))
    values.append(("hardware", _budget_text(old), _budget_text(new)))
    for name, old_value, new_value in values:
        if old_value != new_value:
            yield Change(topic="question", name=name, old=old_value, new=new_value)


def _budget_text(plan: Plan) -> str:
    if (budget := plan.budget) is None:
        return ""
    return f"{budget.hardware}, {bytes_text(budget.hbm_bytes)}, {budget.headroom:.0%} headroom"


def _compare_totals(old: Plan, new: Plan) -> Iterator[Change]:
    totals = [(kind.replace("_", " "), old.bytes_of(kind), new.bytes_of(kind)) for kind in KINDS]
    totals.append(("total", old.bytes_per_device, new.bytes_per_device))
    for name, old_bytes, new_bytes in totals:
        if old_bytes != new_bytes:
            yield Change(
                topic="total",
                name=name,
                old=bytes_text(old_bytes),
                new=bytes_text(new_bytes),
                old_bytes=old_bytes,
                new_bytes=new_bytes,
            )
    # Without hardware in one of them there is no verdict to compare.
    if old.fits != new.fits and None not in (old.fits, new.fits):
        old_verdict, new_verdict = ("fits" if plan.fits else "does not fit" for plan in (old, new))
        yield Change(topic="total", name="verdict", old=old_verdict, new=new_verdict)


def _compare_tensors(old: Plan, new: Plan) -> Iterator[Change]:
    before, after = _rows_by_path(old), _rows_by_path(new)
    changes = []
    for path in {**before, **after}:
        change = _tensor_change(path, before.get(path, []), after.get(path, []), old, new)
        if change is not None:
            changes.append(change)
    # Largest difference first; ties by name, so that the text is reproducible.
    yield from sorted(changes, key=lambda change: (-_byte_difference(change), change.name))


def _byte_difference(change: Change) -> int:
    return abs((change.new_bytes or 0) - (change.old_bytes or 0))


def _rows_by_path(plan: Plan) -> dict[str, list[PlanRow]]:
    by_path: dict[str, list[PlanRow]] = {}
    for row in sorted(plan.rows, key=lambda row: (row.path, row.numbers)):
        by_path.setdefault(row.path, []).append(row)
    return by_path


def _tensor_change(
    path: str, old_rows: Sequence[PlanRow], new_rows: Sequence[PlanRow], old: Plan, new: Plan
) -> Change | None:
    """Return how a tensor changed: its array, spec, shards, or optimizer states."""
    values = _tensor_values(old_rows, new_rows, old, new)
    if values is None:
        return None
    return Change(
        topic="tensor",
        name=path,
        old=values[0],
        new=values[1],
        old_bytes=sum(row.bytes_per_device for row in old_rows) if old_rows else None,
        new_bytes=sum(row.bytes_per_device for row in new_rows) if new_rows else None,
    )


def _tensor_values(
    old_rows: Sequence[PlanRow], new_rows: Sequence[PlanRow], old: Plan, new: Plan
) -> tuple[str, str] | None:
    """Return the first property that differs, as text: the most readable one is tried first."""
    if not old_rows or not new_rows:
        return _arrays_text(old_rows, old), _arrays_text(new_rows, new)
    for describe in (_arrays_text, _specs_text, _shards_text):
        old_text, new_text = describe(old_rows, old), describe(new_rows, new)
        if old_text != new_text:
            return old_text, new_text
    # Gradients and states: as arrays, or with every byte if these look alike.
    for describe_old, describe_new in (
        (old.array_text, new.array_text),
        (_shard_text, _shard_text),
    ):
        old_text, new_text = _states_text(old_rows, new_rows, describe_old, describe_new)
        if old_text != new_text:
            return old_text, new_text
    return None


def _shard_text(array: DeviceBytes) -> str:
    shard = ",".join(map(str, array.shard_shape))
    return f"{array.dtype}[{shard}] on {_devices_text(array)}, {array.bytes_per_device:,} bytes"


def _devices_text(array: DeviceBytes) -> str:
    return f"{array.n_replicas:,} device{'s' * (array.n_replicas != 1)}"


def _states_text(
    old_rows: Sequence[PlanRow],
    new_rows: Sequence[PlanRow],
    describe_old: Callable[[DeviceBytes], str],
    describe_new: Callable[[DeviceBytes], str],
) -> tuple[str, str]:
    """Return the gradients and states that differ, before and now."""
    before = [[(array.name, describe_old(array)) for array in row.arrays[1:]] for row in old_rows]
    after = [[(array.name, describe_new(array)) for array in row.arrays[1:]] for row in new_rows]
    # States that are equal everywhere are not mentioned.
    common = set.intersection(*map(set, (*before, *after)))

    def join_rows(rows: list[list[tuple[str, str]]]) -> str:
        texts = (", ".join(" ".join(state) for state in row if state not in common) for row in rows)
        return "; ".join(text or "nothing" for text in texts)

    return join_rows(before), join_rows(after)


def _rows_text(rows: Sequence[PlanRow], describe: _RowText) -> str:
    """Return the text of each row of a group, with its numbers if there are several."""
    if len(rows) == 1:
        count = f" ×{rows[0].n_tensors:,}" if rows[0].n_tensors > 1 else ""
        return describe(rows[0]) + count
    return "; ".join(f"{row.numbers or f'×{row.n_tensors:,}'}: {describe(row)}" for row in rows)


def _arrays_text(rows: Sequence[PlanRow], plan: Plan) -> str:
    return _rows_text(rows, lambda row: plan.array_text(row.parameter)) if rows else ""


def _specs_text(rows: Sequence[PlanRow], plan: Plan) -> str:
    return _rows_text(rows, lambda row: str(row.parameter.spec))


def _shards_text(rows: Sequence[PlanRow], plan: Plan) -> str:
    def describe(row: PlanRow) -> str:
        shard = ",".join(map(str, row.parameter.shard_shape))
        devices = _devices_text(row.parameter)
        return f"shard [{shard}] on {devices}, {row.parameter.bytes_per_device:,} bytes"

    return _rows_text(rows, describe)


def _compare_items(old: Plan, new: Plan) -> Iterator[Change]:
    before = {(item.kind, item.name): item for item in old.items}
    after = {(item.kind, item.name): item for item in new.items}
    for key in {**before, **after}:
        old_item, new_item = before.get(key), after.get(key)
        if old_item == new_item:
            continue
        old_bytes = None if old_item is None else old_item.bytes_per_device
        new_bytes = None if new_item is None else new_item.bytes_per_device
        # The same bytes by another formula: show the formulas, the bytes would look equal.
        if old_bytes == new_bytes and old_item is not None and new_item is not None:
            values = (old_item.formula, new_item.formula)
        else:
            values = (_optional_bytes_text(old_bytes), _optional_bytes_text(new_bytes))
        yield Change(
            topic="item",
            name=key[1],
            old=values[0],
            new=values[1],
            old_bytes=old_bytes,
            new_bytes=new_bytes,
        )


def _optional_bytes_text(n_bytes: int | None) -> str:
    return "" if n_bytes is None else bytes_text(n_bytes)


def _compare_rules(old: Plan, new: Plan) -> Iterator[Change]:
    before, after = _spec_by_rule(old.rules), _spec_by_rule(new.rules)
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield Change(topic="rule", name=name, old=before.get(name, ""), new=after.get(name, ""))
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        # The first rule that matches wins, so the order matters.
        yield Change(
            topic="rule", name="order", old="as before", new="the same rules in another order"
        )


def _spec_by_rule(rules: Sequence[RuleLine]) -> dict[str, str]:
    """Return specs by the pattern of their rule; repeated patterns are numbered."""
    specs: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for rule in rules:
        name = rule.pattern if rule.kind == "pattern" else f"{rule.kind} {rule.pattern}"
        counts[name] += 1
        specs[f"{name} ({counts[name]})" if counts[name] > 1 else name] = rule.spec_text
    return specs


def _compare_findings(old: Plan, new: Plan) -> Iterator[Change]:
    before, after = _findings_by_subject(old), _findings_by_subject(new)
    for subject in {**before, **after}:
        if (subject in before) != (subject in after):
            yield Change(
                topic="finding",
                name=subject[0],
                old=before.get(subject, ""),
                new=after.get(subject, ""),
            )


def _findings_by_subject(plan: Plan) -> dict[tuple[str, ...], str]:
    """Return the text of findings by what identifies them: their numbers may change."""
    return {
        (finding.code, finding.severity, *_finding_subject(finding, plan)): (
            f"{finding.severity}: {finding.what}"
        )
        for finding in plan.findings
    }


def _finding_subject(finding: Finding, plan: Plan) -> tuple[str, ...]:
    """Return what a finding is about: tensors, mesh axes, or a rule by its pattern.

    Not the number of a rule: one that is inserted before it would look like a new finding.
    """
    for name in _SUBJECT_DETAILS:
        value = finding.details.get(name)
        if isinstance(value, (list, tuple)) and value:
            return tuple(sorted(map(str, value)))
        if isinstance(value, str):
            return (value,)
    patterns = [line.pattern for line in plan.rules if line.kind == "pattern"]
    number = finding.details.get("rule")
    if isinstance(number, int) and 0 < number <= len(patterns):
        return (patterns[number - 1],)
    # Lint without tensors and rule, such as a spec for a path that no tensor has: its text names
    # it. The other findings are about the whole plan, and their text has its amounts.
    return (finding.what,) if finding.code.startswith("rule.") else ()
