"""What a program must have in it, and how much it may send and hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardlab.judge.protocol.run_result import Seen
from shardlab.judge.verdict import Verdict

# Keys of a budget that are figures; all others are kinds of collectives.
FIGURES = ("calls", "payload_bytes", "wire_bytes", "peak_bytes", "eager_bytes")

_UNCHECKED = (
    "The shard_map has check_vma=False, so that nobody asks whether outputs called replicated are."
)
_CHECK_AGAIN = (
    "leave check_vma out, and give JAX what it needs to see it: a psum, or to='invarying'."
)

_LESS = "exchange less: compute on each device first, and exchange what is left, once."
_INSERTED = (
    "the compiler puts one in where data does not lie as the next step wants it; choose specs that "
    "fit each other, or write the exchange in a shard_map."
)


def required(names: Sequence[str], seen: Seen, n_devices: int) -> list[Verdict]:
    """Return a verdict for each construct that is asked for and absent.

    On one device nothing is exchanged, and a compiled program has no collectives. What the compiler
    puts in is not the answer's own, and what it has folded away is not there. `check_vma` is there
    unless a shard_map turns it off.
    """
    own = [call for call in seen.calls if not call.get("is_inserted")]
    have = {str(call["op"]) for call in own if not call.get("is_folded")}
    if seen.has_shard_map:
        have.add("shard_map")
    if seen.is_checked:
        have.add("check_vma")
    elif "check_vma" in names and n_devices > 1:
        return [
            Verdict(code="API", what=_UNCHECKED, fix=_CHECK_AGAIN, details={"missing": "check_vma"})
        ]
    asked = [name for name in names if name == "shard_map" or n_devices > 1]
    return [
        Verdict(
            code="API",
            what=f"There is no {name} in the program{_instead(name, have, seen)}.",
            fix=_write_it(name),
            details={"missing": name},
        )
        for name in asked
        if name not in have
    ]


def _write_it(name: str) -> str:
    if name == "shard_map":
        return "write what each device does as a function, and call it with jax.shard_map."
    return f"call jax.lax.{name} inside of the shard_map, and use what it returns."


def _instead(name: str, have: set[str], seen: Seen) -> str:
    same = [call for call in seen.calls if call["op"] == name]
    if same and all(call.get("is_folded") for call in same):
        return " once it is compiled: its result changes nothing"
    if same:
        return " itself, and the compiler has put one in"
    there = sorted(have - {"shard_map", "check_vma"})
    if name == "shard_map" or not there:
        return ""
    return f", which has {', '.join(there)}"


def over_budget(seen: Seen, budget: Mapping[str, int]) -> list[Verdict]:
    """Compare calls and bytes with what is allowed.

    Where a kind of collective is named, all kinds that are not are forbidden. `calls` counts all of
    them, loops multiplied; `payload_bytes` is what one device puts into all of them together,
    `wire_bytes` what it sends on a ring; `peak_bytes` is the most that one device holds at a time,
    `eager_bytes` the largest array that an operation outside of any jit leaves whole on one device.
    """
    found = _endless(seen, budget) or _kinds(seen, budget)
    totals = totals_of(seen)
    for key, noun in (
        ("calls", "collectives"),
        ("payload_bytes", "B put into collectives by each device"),
        ("wire_bytes", "B sent by each device"),
    ):
        allowed = budget.get(key)
        if allowed is not None and totals[key] > allowed and not (key == "calls" and found):
            found.append(
                Verdict(
                    code="COMM",
                    what=f"{totals[key]:,} {noun}; budget {allowed:,}: {_calls_text(seen)}.",
                    fix=_LESS,
                    details={key: totals[key], "budget": allowed},
                )
            )
    peak = budget.get("peak_bytes")
    if peak is not None and seen.peak_bytes > peak:
        found.append(
            Verdict(
                code="MEM",
                what=f"A device holds {seen.peak_bytes:,} B at its peak; budget {peak:,} B.",
                fix="work on pieces: what is gathered or replicated is whole on every device.",
                details={"peak_bytes": seen.peak_bytes, "budget": peak},
            )
        )
    return found + _made_whole(seen, budget)


def _endless(seen: Seen, budget: Mapping[str, int]) -> list[Verdict]:
    """Return a verdict where nobody knows how often a call is made, and it matters."""
    if not set(budget) - {"peak_bytes", "eager_bytes"}:
        return []
    ops = sorted({str(call["op"]) for call in seen.calls if call["count"] is None})
    return [
        Verdict(
            code="COMM",
            what=f"A {op} is in a loop whose length is not known before it runs.",
            fix="let the loop's length be a Python number: a lax.scan, or a lax.fori_loop with "
            "bounds that depend on shapes alone.",
            details={"op": op, "count": None},
        )
        for op in ops
    ]


def _made_whole(seen: Seen, budget: Mapping[str, int]) -> list[Verdict]:
    most = budget.get("eager_bytes", seen.eager_bytes)
    if seen.eager_bytes <= most:
        return []
    return [
        Verdict(
            code="MEM",
            what=f"An array of {seen.eager_bytes:,} B is made whole on one device before it is placed; "
            f"budget {most:,} B.",
            fix="make and place it in one jax.jit: with out_shardings no device makes more than "
            "its own part.",
            details={"eager_bytes": seen.eager_bytes, "budget": most},
        )
    ]


def _kinds(seen: Seen, budget: Mapping[str, int]) -> list[Verdict]:
    """Return a verdict for each kind of collective of which there are more than are allowed."""
    is_limited = bool(set(budget) - set(FIGURES)) or budget.get("calls") == 0
    if not is_limited:
        return []
    found = []
    for op, calls in by_kind(seen).items():
        count, allowed = sum(map(times, calls)), budget.get(op, 0)
        if count > allowed:
            whose = " put in by the compiler" if all(c.get("is_inserted") for c in calls) else ""
            found.append(
                Verdict(
                    code="COMM",
                    what=f"{count} {op} of {_sizes(calls)}{whose}; budget {allowed}.",
                    fix=_INSERTED if whose else _LESS if allowed else _do_without(op, budget),
                    details={"op": op, "count": count, "budget": allowed},
                )
            )
    return found


def _do_without(op: str, budget: Mapping[str, int]) -> str:
    kinds = [kind for kind in budget if kind not in FIGURES and budget[kind]]
    if not kinds:
        return "leave it out: nothing need be exchanged here."
    return f"do without {op}: {' and '.join(kinds)} is what the task allows."


def by_kind(seen: Seen) -> dict[str, list[Mapping[str, Any]]]:
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for call in seen.calls:
        kinds.setdefault(str(call["op"]), []).append(call)
    return kinds


def totals_of(seen: Seen) -> dict[str, int]:
    """Return the figures of all calls together, per device."""
    return {
        "calls": sum(map(times, seen.calls)),
        "payload_bytes": sum(times(call) * payload(call) for call in seen.calls),
        "wire_bytes": sum(times(call) * wire(call) for call in seen.calls),
    }


def times(call: Mapping[str, Any]) -> int:
    """Return how often a call is executed; once where nobody knows."""
    return 1 if call["count"] is None else int(call["count"])


def payload(call: Mapping[str, Any]) -> int:
    """Return the bytes that one device puts into a call: its operand."""
    return int(call["payload_bytes"])


def wire(call: Mapping[str, Any]) -> int:
    """Return the bytes that one device sends in a call."""
    return int(call["wire_bytes"])


def _calls_text(seen: Seen) -> str:
    told = [
        f"{sum(map(times, calls))} {op} of {_sizes(calls)}" for op, calls in by_kind(seen).items()
    ]
    return ", ".join(told)


def _sizes(calls: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{size:,} B" for size in sorted({payload(call) for call in calls}))
