"""Folds the calls of a trace: what is called alike from one line becomes one entry, counted.

24 layers written out one after the other are then as short as the same layers in a scan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.collectives.call import CollectiveCall, ControlScope
from shardlab.hardware.estimate import Estimate
from shardlab.sharding.dtype import parse_dtype
from shardlab.tracing.trace import Trace, worst

PHASES = ("forward", "recompute", "backward")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Calls that are alike: the first of them, how often in all, and whether they are counted.

    `count` is None inside a while loop; bytes and seconds are then those of one turn.
    """

    call: CollectiveCall
    count: int | None
    counted: bool
    n_bytes: int
    seconds: float | None


def entries(trace: Trace, estimate: Estimate | None = None) -> list[Entry]:
    """Return the calls folded, in the order in which each kind is first met."""
    kept = {id(call) for call in worst(trace.collectives)}
    found: dict[object, Entry] = {}
    for at, call in enumerate(trace.collectives):
        times = 1 if call.count is None else call.count
        seconds = None if estimate is None else estimate.calls[at].seconds * times
        entry = Entry(
            call=call,
            count=call.count,
            counted=id(call) in kept,
            n_bytes=call.wire_bytes * times,
            seconds=seconds,
        )
        key = (_key(call), entry.counted)
        found[key] = _joined(found[key], entry) if key in found else entry
    return list(found.values())


def _key(call: CollectiveCall) -> object:
    scopes = tuple((s.kind, s.source, s.branch, s.n_branches, s.varies) for s in call.within)
    operand = (call.shape, call.dtype, call.payload_bytes, call.wire_bytes)
    where = (call.source, call.phase, call.origin, scopes)
    return (call.op, call.mesh_axes, call.group_size, operand, where, call.count is None)


def _joined(one: Entry, other: Entry) -> Entry:
    both = one.count is not None and other.count is not None
    seconds = None if one.seconds is None or other.seconds is None else one.seconds + other.seconds
    return replace(
        one,
        count=(one.count or 0) + (other.count or 0) if both else None,
        n_bytes=one.n_bytes + other.n_bytes,
        seconds=seconds,
    )


def operand_text(call: CollectiveCall) -> str:
    """Return the operand on one device as a jaxpr prints it: `bf16[8,2048]`."""
    return f"{parse_dtype(call.dtype).short}[{','.join(map(str, call.shape))}]"


def scope_text(scope: ControlScope) -> str:
    """Return the branch or loop that a call stands in, in words."""
    varies = f", taken differently along {', '.join(scope.varies)}" if scope.varies else ""
    if scope.kind == "cond":
        which = "a branch" if scope.branch is None else scope.branch_name(scope.branch)
        return f"{which} of the cond at {place_text(scope)}{varies}"
    if scope.kind == "while":
        return f"per turn of the while loop at {place_text(scope)}{varies}"
    return f"scan of {scope.length} at {place_text(scope)}"


def place_text(scope: ControlScope) -> str:
    return f"{short_path(scope.source.file)}:{scope.source.line}"


def short_path(path: str) -> str:
    """Return the last folder and the file: enough to know it by.

    >>> short_path("/home/ada/project/model/layers.py"), short_path("train.py")
    ('model/layers.py', 'train.py')
    """
    return "/".join(path.replace("\\", "/").split("/")[-2:])
