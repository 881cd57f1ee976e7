"""Two plans side by side: totals that moved, tensors and specs, findings that are new or gone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.plan import KINDS, DeviceBytes, Plan, PlanRow
from shardlab.planner.rules.rule_line import RuleLine
from shardlab.planner.snapshots.comparison import Change, Comparison

_NUMBER = re.compile(r"[0-9][0-9.,]*")


def compare(old: Plan, new: Plan) -> Comparison:
    """Return what differs, in the order in which a person asks: what was planned, then what moved.

    Where a model was read from does not count, nor do notes: the same model may lie elsewhere.
    """
    changes = (
        *_questions(old, new),
        *_totals(old, new),
        *_tensors(old, new),
        *_items(old, new),
        *_rules(old, new),
        *_findings(old, new),
    )
    shared = {row.path for row in old.rows} & {row.path for row in new.rows}
    n_compared = sum(row.n_tensors for row in new.rows if row.path in shared)
    return Comparison(f"{new.model} on {new.mesh_words}", changes, n_compared)


def _questions(old: Plan, new: Plan) -> Iterator[Change]:
    pairs: list[tuple[str, str, str]] = [
        ("model", old.model, new.model),
        ("parameters in all", f"{old.n_parameters:,}", f"{new.n_parameters:,}"),
        ("mesh", old.mesh_text, new.mesh_text),
    ]
    for name in sorted({*old.choices, *new.choices}):
        pairs.append((name, old.choice_text(name), new.choice_text(name)))
    pairs.append(("hardware", _room_text(old), _room_text(new)))
    yield from (Change("question", name, a, b) for name, a, b in pairs if a != b)


def _room_text(plan: Plan) -> str:
    if plan.room is None:
        return ""
    room = plan.room
    return f"{room.hardware}, {bytes_text(room.hbm_bytes)}, {room.headroom:.0%} headroom"


def _totals(old: Plan, new: Plan) -> Iterator[Change]:
    for kind in KINDS:
        a, b = old.bytes_of(kind), new.bytes_of(kind)
        if a != b:
            name = kind.replace("_", " ")
            yield Change("total", name, bytes_text(a), bytes_text(b), a, b)
    a, b = old.bytes_per_device, new.bytes_per_device
    if a != b:
        yield Change("total", "in all", bytes_text(a), bytes_text(b), a, b)
    if old.fits != new.fits and None not in (old.fits, new.fits):
        said = {True: "fits", False: "does not fit", None: ""}
        yield Change("total", "verdict", said[old.fits], said[new.fits])


def _tensors(old: Plan, new: Plan) -> Iterator[Change]:
    before, after = _by_path(old), _by_path(new)
    found = []
    for path in {**before, **after}:
        a, b = before.get(path, []), after.get(path, [])
        if (change := _tensor_change(path, a, b, old, new)) is not None:
            found.append(change)
    # the largest move first; ties by name, so that the text is stable
    yield from sorted(found, key=lambda change: (-_moved(change), change.name))


def _moved(change: Change) -> int:
    return abs((change.new_bytes or 0) - (change.old_bytes or 0))


def _by_path(plan: Plan) -> dict[str, list[PlanRow]]:
    found: dict[str, list[PlanRow]] = {}
    for row in sorted(plan.rows, key=lambda row: (row.path, row.numbers)):
        found.setdefault(row.path, []).append(row)
    return found


def _tensor_change(
    path: str, a: Sequence[PlanRow], b: Sequence[PlanRow], old: Plan, new: Plan
) -> Change | None:
    """Return how a tensor changed: its array, its spec, its shards, or what is kept beside it."""
    n_old = sum(row.bytes_per_device for row in a) if a else None
    n_new = sum(row.bytes_per_device for row in b) if b else None
    if not a or not b:
        return Change("tensor", path, _arrays(a, old), _arrays(b, new), n_old, n_new)
    ways: tuple[Callable[[Sequence[PlanRow], Plan], str], ...] = (_arrays, _specs, _shards)
    for way in ways:
        if (was := way(a, old)) != (now := way(b, new)):
            return Change("tensor", path, was, now, n_old, n_new)
    # as arrays, or to the byte where these look alike
    for texts in ((old.array_text, new.array_text), (_held_text, _held_text)):
        was, now = _beside(a, b, *texts)
        if was != now:
            return Change("tensor", path, was, now, n_old, n_new)
    return None


def _held_text(held: DeviceBytes) -> str:
    shard = ",".join(map(str, held.shard_shape))
    return f"{held.dtype}[{shard}] on {_devices(held)}, {held.bytes_per_device:,} bytes"


def _devices(held: DeviceBytes) -> str:
    return f"{held.n_copies:,} device{'s' * (held.n_copies != 1)}"


def _beside(
    a: Sequence[PlanRow],
    b: Sequence[PlanRow],
    was: Callable[[DeviceBytes], str],
    now: Callable[[DeviceBytes], str],
) -> tuple[str, str]:
    """Return the arrays beside a parameter that are not the same, as they were and as they are."""
    before = [[(held.name, was(held)) for held in row.held[1:]] for row in a]
    after = [[(held.name, now(held)) for held in row.held[1:]] for row in b]
    same = set.intersection(*map(set, (*before, *after)))

    def said(rows: list[list[tuple[str, str]]]) -> str:
        parts = (", ".join(" ".join(each) for each in row if each not in same) for row in rows)
        return "; ".join(part or "nothing" for part in parts)

    return said(before), said(after)


def _each(rows: Sequence[PlanRow], said: Callable[[PlanRow], str]) -> str:
    """Return what is said of a family's parts, with their numbers where there are several."""
    if len(rows) == 1:
        times = f" ×{rows[0].n_tensors:,}" if rows[0].n_tensors > 1 else ""
        return said(rows[0]) + times
    return "; ".join(f"{row.numbers or f'×{row.n_tensors:,}'}: {said(row)}" for row in rows)


def _arrays(rows: Sequence[PlanRow], plan: Plan) -> str:
    return _each(rows, lambda row: plan.array_text(row.parameter)) if rows else ""


def _specs(rows: Sequence[PlanRow], plan: Plan) -> str:
    return _each(rows, lambda row: str(row.parameter.spec))


def _shards(rows: Sequence[PlanRow], plan: Plan) -> str:
    def said(row: PlanRow) -> str:
        held = row.parameter
        shard = ",".join(map(str, held.shard_shape))
        return f"shard [{shard}] on {_devices(held)}, {held.bytes_per_device:,} bytes"

    return _each(rows, said)


def _items(old: Plan, new: Plan) -> Iterator[Change]:
    before = {(item.kind, item.name): item for item in old.items}
    after = {(item.kind, item.name): item for item in new.items}
    for key in {**before, **after}:
        a, b = before.get(key), after.get(key)
        if a == b:
            continue
        n_old = None if a is None else a.bytes_per_device
        n_new = None if b is None else b.bytes_per_device
        if n_old == n_new and a is not None and b is not None:
            yield Change("item", key[1], a.formula, b.formula, n_old, n_new)
        else:
            was, now = ("" if n is None else bytes_text(n) for n in (n_old, n_new))
            yield Change("item", key[1], was, now, n_old, n_new)


def _rules(old: Plan, new: Plan) -> Iterator[Change]:
    a, b = _rule_texts(old.rules), _rule_texts(new.rules)
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            yield Change("rule", name, a.get(name, ""), b.get(name, ""))
    kept = [name for name in a if name in b]
    if kept != [name for name in b if name in a]:
        yield Change("rule", "order", "as it was", "the same rules in another order")


def _rule_texts(rules: Sequence[RuleLine]) -> dict[str, str]:
    """Return specs by what they are for; what is given again has its number."""
    found: dict[str, str] = {}
    times: Counter[str] = Counter()
    for rule in rules:
        name = rule.pattern if rule.kind == "pattern" else f"{rule.kind} {rule.pattern}"
        times[name] += 1
        found[f"{name} ({times[name]})" if times[name] > 1 else name] = rule.spec_text
    return found


def _findings(old: Plan, new: Plan) -> Iterator[Change]:
    before, after = _said(old.findings), _said(new.findings)
    for key in {**before, **after}:
        if (key in before) != (key in after):
            yield Change("finding", key[0], before.get(key, ""), after.get(key, ""))


def _said(findings: Sequence[Finding]) -> dict[tuple[str, ...], str]:
    """Return the words of findings by what they are about: numbers and wording may change."""
    return {_about(each): f"{each.severity}: {each.what}" for each in findings}


def _about(found: Finding) -> tuple[str, ...]:
    paths = found.details.get("paths")
    about = sorted(map(str, paths)) if isinstance(paths, (list, tuple)) else None
    return found.code, found.severity, *(about or [_NUMBER.sub("#", found.what)])
