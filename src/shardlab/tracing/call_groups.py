"""Groups the calls of a trace: equal calls from one line become one group with a count.

24 layers written one after the other are then as short as the same layers in a scan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.collectives.call import CollectiveCall, ControlScope
from shardlab.hardware.estimate import Estimate
from shardlab.sharding.dtype import parse_dtype
from shardlab.tracing.trace import Trace, most_expensive_branches

PHASES = ("forward", "recompute", "backward")


@dataclass(frozen=True, kw_only=True)
class CallGroup:
    """Equal calls: the first of them, their total count, and whether they count in the totals.

    `count` is None inside a while loop; bytes and seconds are then those of one iteration. A branch
    that sends less than another one is not counted.
    """

    call: CollectiveCall
    count: int | None
    is_counted: bool
    n_bytes: int
    seconds: float | None


def group_calls(trace: Trace, estimate: Estimate | None = None) -> list[CallGroup]:
    """Return the calls in groups, in the order of the first call of each."""
    # By identity: equal calls may be in a branch that counts and in one that does not.
    counted_ids = {id(call) for call in most_expensive_branches(trace.collectives)}
    groups: dict[object, CallGroup] = {}
    for index, call in enumerate(trace.collectives):
        times = 1 if call.count is None else call.count
        seconds = None if estimate is None else estimate.calls[index].seconds * times
        group = CallGroup(
            call=call,
            count=call.count,
            is_counted=id(call) in counted_ids,
            n_bytes=call.wire_bytes * times,
            seconds=seconds,
        )
        key = (_group_key(call), group.is_counted)
        groups[key] = _merge_groups(groups[key], group) if key in groups else group
    return list(groups.values())


def _group_key(call: CollectiveCall) -> object:
    # Without the scope id: the same cond of an unrolled layer has another id each time.
    scopes = tuple((s.kind, s.source, s.branch, s.n_branches, s.varies) for s in call.within)
    operand = (call.shape, call.dtype, call.payload_bytes, call.wire_bytes)
    position = (call.source, call.phase, call.origin, scopes)
    return (call.op, call.mesh_axes, call.group_size, operand, position, call.count is None)


def _merge_groups(first: CallGroup, second: CallGroup) -> CallGroup:
    # In a while loop the count is unknown, and so is that of the group.
    are_counted = first.count is not None and second.count is not None
    seconds = (
        None if first.seconds is None or second.seconds is None else first.seconds + second.seconds
    )
    return replace(
        first,
        count=(first.count or 0) + (second.count or 0) if are_counted else None,
        n_bytes=first.n_bytes + second.n_bytes,
        seconds=seconds,
    )


def operand_text(call: CollectiveCall) -> str:
    """Return the operand on one device as a jaxpr prints it: `bf16[8,2048]`."""
    return f"{parse_dtype(call.dtype).short}[{','.join(map(str, call.shape))}]"


def scope_text(scope: ControlScope) -> str:
    """Return the branch or loop around a call as text."""
    varies = f", varies over {', '.join(scope.varies)}" if scope.varies else ""
    if scope.kind == "cond":
        which = "a branch" if scope.branch is None else scope.branch_name(scope.branch)
        return f"{which} of the cond at {scope_location_text(scope)}{varies}"
    if scope.kind == "while":
        return f"per iteration of the while loop at {scope_location_text(scope)}{varies}"
    return f"scan of {scope.length} at {scope_location_text(scope)}"


def scope_location_text(scope: ControlScope) -> str:
    return f"{short_path(scope.source.file)}:{scope.source.line}"


def short_path(path: str) -> str:
    """Return the last folder and the file name of a path.

    >>> short_path("/home/ada/project/model/layers.py"), short_path("train.py")
    ('model/layers.py', 'train.py')
    """
    return "/".join(path.replace("\\", "/").split("/")[-2:])
