"""What a program must contain, and how much it may communicate and store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shardlab.catalogue.problem_schema import CONSTRUCTS
from shardlab.collectives.program_flow import (
    MATRIX_PRODUCTS,
    SHARD_MAP,
    UNSHARDED_SHARD_MAP,
)
from shardlab.judge.protocol.run_result import CollectiveRecord, RunResult
from shardlab.judge.verdict import Verdict

# Keys of a budget that are figures; all others are operations.
_MEMORY_FIGURES = ("peak_bytes", "eager_bytes", "body_elements", "matmul_elements")
FIGURES = ("calls", "payload_bytes", "wire_bytes", *_MEMORY_FIGURES)
# These make a key from others, and draw nothing.
_KEY_PRIMITIVES = ("random_clone", "random_fold_in", "random_seed", "random_split")

_UNCHECKED = (
    "The shard_map has check_vma=False, so JAX does not check that outputs declared replicated are."
)
_UNCHECKED_FIX = (
    "remove check_vma=False, and give JAX what it needs for the proof: a psum, or to='invarying'."
)
_UNSHARDED = (
    "The shard_map gets full arrays and returns full arrays, so every device computes the same."
)
_UNSHARDED_FIX = "name the mesh axis in in_specs, so that each device gets its shard."
_BODY_FIX = (
    "move it into the function that jax.shard_map calls: there each device computes on its shard."
)
_PLACEMENT_FIX = (
    "place the argument with jax.device_put(x, NamedSharding(mesh, spec)), and compute from that."
)
_ONE_MAP_FIX = (
    "do all of it in one function, and call that with jax.shard_map: values that one device "
    "computes for itself need not leave the body."
)
_DRAWN_FIX = (
    "draw inside of the function that jax.shard_map calls, from a key that is different on each "
    "device."
)
_MATMUL_FIX = "slice the argument first, and apply the model to each slice."
_MAX_LISTED = 4
_LESS_FIX = "communicate less: compute on each device first, then communicate the result once."
_INSERTED_FIX = (
    "the compiler inserts one if an array is not sharded as the next operation needs it; choose "
    "specs that match, or write the collective in a shard_map."
)


def probed_constructs(names: Sequence[str]) -> tuple[str, ...]:
    """Return the requirements for which a run without them must return something else.

    Each costs a compilation. A shard_map with a required collective in it has influence if that one
    has, and so has one outside of which nothing is computed.
    """
    collectives = tuple(name for name in names if name not in CONSTRUCTS)
    if collectives or "shard_map" not in names or "in_body" in names:
        return collectives
    return ("shard_map",)


def find_missing(
    names: Sequence[str], run: RunResult, n_devices: int, axes: Sequence[str] = ()
) -> list[Verdict]:
    """Return a verdict for each requirement that is not met.

    Data flow decides, not presence: an argument must reach the result through a construct, and
    without it the result must be another one. A program for one device has no collectives, so none
    is required there. A collective that the compiler inserted is not the program's own, and one
    that it folded away does not count. `axes` are the names of the part's own mesh axes.
    """
    # The check comes first: once it is on, JAX itself reports what is missing.
    if "check_vma" in names and not run.is_checked and n_devices > 1:
        return [_missing_verdict("check_vma", _UNCHECKED, _UNCHECKED_FIX)]
    verdicts: list[Verdict] = []
    for name in names:
        find = _FINDERS.get(name)
        is_collective = name not in CONSTRUCTS
        if find is not None:
            verdicts += find(run, n_devices)
        elif name == "mesh_axes":
            verdicts += _wrong_mesh_axes(run, axes)
        elif name in ("shard_map", "axis_index") or (is_collective and n_devices > 1):
            verdicts += _missing_construct(name, run)
    return verdicts


def _missing_verdict(name: str, what: str, fix: str) -> Verdict:
    return Verdict(code="API", what=what, fix=fix, details={"missing": name})


def _missing_construct(name: str, run: RunResult) -> list[Verdict]:
    """Return the verdict on a construct that is absent, unused or without influence."""
    fix = _CONSTRUCT_FIXES.get(
        name, f"call jax.lax.{name} inside the shard_map, and use its result."
    )
    constructs = run.flow.constructs
    if name == SHARD_MAP and UNSHARDED_SHARD_MAP in constructs:
        return []  # whether its body works on shards is another requirement
    if name in run.flow.unused:
        sentence = (
            f"There is a {name} in the program, but no argument reaches the result through it."
        )
        return [_missing_verdict(name, sentence, fix)]
    present = {call.op for call in run.collectives if not (call.is_inserted or call.is_folded)}
    is_absent = name not in (constructs if name in CONSTRUCTS else present)
    if is_absent or name not in constructs:
        sentence = f"There is no {name} in the program{_alternative_text(name, present, run)}."
        return [_missing_verdict(name, sentence, fix)]
    if name in run.ineffective:
        sentence = f"There is a {name} in the program, but without it the result is the same."
        return [_missing_verdict(name, sentence, fix)]
    return []


_CONSTRUCT_FIXES = {
    "shard_map": "write what each device does as a function, and call it with jax.shard_map.",
    "axis_index": "compute from jax.lax.axis_index in the shard_map's body which part is its own.",
}


def _outside_body(run: RunResult, n_devices: int) -> list[Verdict]:
    constructs = run.flow.constructs
    is_unsharded = SHARD_MAP not in constructs and UNSHARDED_SHARD_MAP in constructs
    # On one device the shard is the array.
    if is_unsharded and n_devices > 1:
        return [_missing_verdict("in_body", _UNSHARDED, _UNSHARDED_FIX)]
    return _outside_verdicts("in_body", run.flow.outside)


def _matmul_outside_body(run: RunResult, n_devices: int) -> list[Verdict]:
    outside = [name for name in run.flow.outside if name in MATRIX_PRODUCTS]
    return _outside_verdicts("matmul_in_body", outside)


def _drawn_outside_body(run: RunResult, n_devices: int) -> list[Verdict]:
    outside = [name for name in run.traced_outside_arrays if name not in _KEY_PRIMITIVES]
    if not outside:
        return []
    # One that draws is named before the arithmetic on what it has drawn.
    outside.sort(key=lambda name: not name.startswith(("random", "threefry", "rng")))
    sentence = f"The program computes outside of the shard_map: {_listed_text(outside)}."
    return [_missing_verdict("drawn_in_body", sentence, _DRAWN_FIX)]


def _several_shard_maps(run: RunResult, n_devices: int) -> list[Verdict]:
    count = run.flow.n_shard_maps
    if count <= 1:
        return []  # that there is one is another requirement
    sentence = f"The result is computed by {count} shard_maps; the task asks for one."
    return [_missing_verdict("one_shard_map", sentence, _ONE_MAP_FIX)]


def _full_operand(run: RunResult, n_devices: int) -> list[Verdict]:
    if not run.flow.has_full_operand or n_devices == 1:
        return []
    sentence = "The shard_map gets an argument in full, on every device."
    return [_missing_verdict("sharded_input", sentence, _UNSHARDED_FIX)]


def _wrong_mesh_axes(run: RunResult, axes: Sequence[str]) -> list[Verdict]:
    names = run.flow.mesh_axes
    if not names or set(names) == set(axes):
        return []
    required, actual = (", ".join(map(repr, group)) for group in (axes, names))
    sentence = f"The mesh of the shard_map has the axis {actual}; the task asks for {required}."
    fix = f"name the mesh axis {required} if no mesh is passed."
    return [_missing_verdict("mesh_axes", sentence, fix)]


def _listed_text(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (" and more" if names[_MAX_LISTED:] else "")


def _outside_verdicts(name: str, operations: Sequence[str]) -> list[Verdict]:
    if not operations:
        return []
    listed = _listed_text(operations)
    sentence = f"The program computes on full arrays, outside of the shard_map: {listed}."
    return [_missing_verdict(name, sentence, _BODY_FIX)]


def _inserted_collectives(run: RunResult, n_devices: int) -> list[Verdict]:
    operations = sorted({call.op for call in run.collectives if call.is_inserted})
    if not operations:
        return []
    sentence = f"The compiler inserts {' and '.join(operations)}, which the program does not call."
    return [_missing_verdict("explicit_collectives", sentence, _INSERTED_FIX)]


def _unplaced_result(run: RunResult, n_devices: int) -> list[Verdict]:
    if run.flow.is_placed:
        return []
    sentence = "The result is computed from an argument that was not placed on the devices."
    return [_missing_verdict("placement", sentence, _PLACEMENT_FIX)]


_FINDERS: Mapping[str, Callable[[RunResult, int], list[Verdict]]] = {
    "one_shard_map": _several_shard_maps,
    "sharded_input": _full_operand,
    "in_body": _outside_body,
    "matmul_in_body": _matmul_outside_body,
    "drawn_in_body": _drawn_outside_body,
    "explicit_collectives": _inserted_collectives,
    "placement": _unplaced_result,
}


def _alternative_text(name: str, present: set[str], run: RunResult) -> str:
    """Return what the program has instead of a missing construct."""
    same = [call for call in run.collectives if call.op == name]
    if same and all(call.is_folded for call in same):
        return " once it is compiled: its result changes nothing"
    if same:
        return " itself; the compiler has inserted one"
    others = sorted(present)
    if name in CONSTRUCTS or not others:
        return ""
    return f", which has {', '.join(others)}"


def find_exceeded(run: RunResult, budget: Mapping[str, int]) -> list[Verdict]:
    """Return a verdict for each limit of a budget that is exceeded.

    If one operation is named, all that are not are forbidden. `calls` counts all of them, times the
    iterations of loops; `payload_bytes` is what one device passes to all of them together,
    `wire_bytes` what it sends on a ring; `peak_bytes` is the most that one device stores at a time,
    `eager_bytes` the largest array that an operation outside of any jit creates unsharded.
    `body_elements` and `matmul_elements` are read from the program, before a compiler fuses what
    it computes: an array that is never stored counts, too.
    """
    verdicts = _unbounded_verdicts(run, budget) or _operation_verdicts(run, budget)
    totals = sum_figures(run)
    for key, noun in (
        ("calls", "collectives"),
        ("payload_bytes", "B passed to collectives by each device"),
        ("wire_bytes", "B sent by each device"),
    ):
        limit = budget.get(key)
        is_repeated = key == "calls" and verdicts
        if limit is not None and totals[key] > limit and not is_repeated:
            verdicts.append(
                Verdict(
                    code="COMM",
                    what=f"{totals[key]:,} {noun}; budget {limit:,}: {_calls_text(run)}.",
                    fix=_LESS_FIX,
                    details={key: totals[key], "budget": limit},
                )
            )
    return verdicts + _memory_verdicts(run, budget) + _element_verdicts(run, budget)


def _element_verdicts(run: RunResult, budget: Mapping[str, int]) -> list[Verdict]:
    """Return verdicts on arrays of the program that are larger than one device's part."""
    verdicts = []
    limit, size = budget.get("body_elements"), run.flow.body_elements
    if limit is not None and size > limit:
        verdicts.append(
            Verdict(
                code="MEM",
                what=f"A device creates an array of {size:,} elements in the shard_map's body; "
                f"budget {limit:,}.",
                fix="create only the elements of this device; axis_index tells which they are.",
                details={"body_elements": size, "budget": limit},
            )
        )
    limit, size = budget.get("matmul_elements"), run.flow.matmul_elements
    if limit is not None and not 0 < size <= limit:
        text = f"takes {size:,} elements of an argument" if size else "takes no argument"
        verdicts.append(
            Verdict(
                code="API",
                what=f"A matrix product {text}; the task asks for slices of {limit:,}.",
                fix=_MATMUL_FIX,
                details={"missing": "matmul_elements", "elements": size, "budget": limit},
            )
        )
    return verdicts


def _memory_verdicts(run: RunResult, budget: Mapping[str, int]) -> list[Verdict]:
    verdicts = []
    peak = budget.get("peak_bytes")
    if peak is not None and run.peak_bytes > peak:
        verdicts.append(
            Verdict(
                code="MEM",
                what=f"A device stores {run.peak_bytes:,} B at its peak; budget {peak:,} B.",
                fix="work on shards: what is gathered or replicated is stored in full on every "
                "device.",
                details={"peak_bytes": run.peak_bytes, "budget": peak},
            )
        )
    eager = budget.get("eager_bytes")
    if eager is not None and run.eager_bytes > eager:
        verdicts.append(
            Verdict(
                code="MEM",
                what=f"An array of {run.eager_bytes:,} B is created unsharded on one device before "
                f"it is sharded; budget {eager:,} B.",
                fix="create and shard it in one jax.jit: with out_shardings each device creates "
                "its own shard only.",
                details={"eager_bytes": run.eager_bytes, "budget": eager},
            )
        )
    return verdicts


def _unbounded_verdicts(run: RunResult, budget: Mapping[str, int]) -> list[Verdict]:
    """Return a verdict for each call in a loop of unknown length, if calls or bytes are limited."""
    if not set(budget) - set(_MEMORY_FIGURES):
        return []
    operations = sorted({call.op for call in run.collectives if call.count is None})
    return [
        Verdict(
            code="COMM",
            what=f"A {op} is in a loop whose length is not known before it runs.",
            fix="give the loop a length that is a Python number: lax.scan, or lax.fori_loop with "
            "bounds that depend on shapes alone.",
            details={"op": op, "count": None},
        )
        for op in operations
    ]


def _operation_verdicts(run: RunResult, budget: Mapping[str, int]) -> list[Verdict]:
    """Return a verdict for each operation that is called more often than allowed."""
    # A budget of figures alone limits how much is communicated, and not by which operation.
    is_limited = bool(set(budget) - set(FIGURES)) or budget.get("calls") == 0
    if not is_limited:
        return []
    verdicts = []
    for op, calls in group_by_operation(run).items():
        count, limit = sum(call.times for call in calls), budget.get(op, 0)
        if count > limit:
            is_inserted = all(call.is_inserted for call in calls)
            origin = " inserted by the compiler" if is_inserted else ""
            fix = _LESS_FIX if limit else _forbidden_fix(op, budget)
            verdicts.append(
                Verdict(
                    code="COMM",
                    what=f"{count} {op} of {_payload_text(calls)}{origin}; budget {limit}.",
                    fix=_INSERTED_FIX if is_inserted else fix,
                    details={"op": op, "count": count, "budget": limit},
                )
            )
    return verdicts


def _forbidden_fix(op: str, budget: Mapping[str, int]) -> str:
    allowed = [key for key in budget if key not in FIGURES and budget[key]]
    if not allowed:
        return "remove it: no communication is needed here."
    return f"do without {op}: the task allows {' and '.join(allowed)}."


def group_by_operation(run: RunResult) -> dict[str, list[CollectiveRecord]]:
    groups: dict[str, list[CollectiveRecord]] = {}
    for call in run.collectives:
        groups.setdefault(call.op, []).append(call)
    return groups


def sum_figures(run: RunResult) -> dict[str, int]:
    """Return the figures of all calls together, per device."""
    return {
        "calls": sum(call.times for call in run.collectives),
        "payload_bytes": sum(call.times * call.payload_bytes for call in run.collectives),
        "wire_bytes": sum(call.times * call.wire_bytes for call in run.collectives),
    }


def _calls_text(run: RunResult) -> str:
    return ", ".join(
        f"{sum(call.times for call in calls)} {op} of {_payload_text(calls)}"
        for op, calls in group_by_operation(run).items()
    )


def _payload_text(calls: Sequence[CollectiveRecord]) -> str:
    return ", ".join(f"{size:,} B" for size in sorted({call.payload_bytes for call in calls}))
