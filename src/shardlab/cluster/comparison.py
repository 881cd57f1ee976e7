"""Compares what real processes computed with the simulation: values, shardings, collectives."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from shardlab.checks.tolerance import compare_arrays, rounding_tolerance
from shardlab.cluster.records import OutputRecord, ProgramRecord, ShardRecord
from shardlab.collectives.call import CollectiveCall

DifferenceKind = Literal["program", "values", "sharding", "collectives"]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which the real run and the simulation differ."""

    kind: DifferenceKind
    subject: str  # a program, or an output with its call
    sentence: str
    devices: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "devices": list(self.devices)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Difference:
        return cls(**{**data, "devices": tuple(data["devices"])})


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The comparison of a launch with its simulation."""

    n_outputs: int
    n_shards: int
    n_elements: int
    n_collectives: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "differences": [difference.to_json() for difference in self.differences],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verification:
        differences = tuple(map(Difference.from_json, data["differences"]))
        return cls(**{**data, "differences": differences, "notes": tuple(data["notes"])})


def compare_runs(
    real: Sequence[ProgramRecord], simulated: Sequence[ProgramRecord], notes: Sequence[str] = ()
) -> Verification:
    """Return in which programs, outputs and collectives both runs agree and differ."""
    by_key = {program.key: program for program in simulated}
    differences = list(_missing_programs(real, simulated))
    n_collectives, all_notes = 0, list(notes)
    outputs: list[OutputRecord] = []
    for program in real:
        twin = by_key.get(program.key)
        if twin is None:
            continue
        if program.is_called_unevenly:
            differences.append(_uneven_calls(program))
        differences += _compare_outputs(program, twin)
        outputs += program.outputs
        if program.collectives is None or twin.collectives is None:
            all_notes.append(f"the collectives of {program.key!r} were not compared")
            continue
        n_collectives += len(program.collectives)
        differences += _compare_collectives(program, twin.collectives)
    shards = [shard for output in outputs for shard in output.shards]
    sampled = sum(shard.is_sampled for shard in shards)
    if sampled:
        all_notes.append(f"{sampled} shards were compared in a sample of their elements")
    return Verification(
        n_outputs=len(outputs),
        n_shards=len(shards),
        n_elements=sum(shard.n_elements for shard in shards),
        n_collectives=n_collectives,
        differences=tuple(differences),
        notes=tuple(all_notes),
    )


def _missing_programs(
    real: Sequence[ProgramRecord], simulated: Sequence[ProgramRecord]
) -> Iterator[Difference]:
    real_keys, simulated_keys = [p.key for p in real], [p.key for p in simulated]
    for keys, others, where, absent in (
        (real_keys, simulated_keys, "real processes", "the simulation"),
        (simulated_keys, real_keys, "the simulation", "real processes"),
    ):
        for key in keys:
            if key not in others:
                yield Difference(
                    kind="program", subject=key, sentence=f"ran on {where}, and not on {absent}"
                )
    calls = {program.key: program.n_calls for program in simulated}
    for program in real:
        if calls.get(program.key, program.n_calls) != program.n_calls:
            yield Difference(
                kind="program",
                subject=program.key,
                sentence=f"was called {program.n_calls} times on real processes and "
                f"{calls[program.key]} times in the simulation",
            )


def _uneven_calls(program: ProgramRecord) -> Difference:
    return Difference(kind="program", subject=program.key, sentence=program.uneven_calls_text)


# --------------------------------------------------------------------------------------- outputs


def _compare_outputs(real: ProgramRecord, simulated: ProgramRecord) -> Iterator[Difference]:
    twins = {(output.name, output.call): output for output in simulated.outputs}
    for output in real.outputs:
        # Each process records its first and its last call: with other numbers of calls only the
        # first one has the shards of all.
        if real.is_called_unevenly and (output.call > 0 or 0 in real.calls_by_process):
            continue
        # With another number of calls the last calls are different ones, and that is reported.
        if (twin := twins.get((output.name, output.call))) is not None:
            yield from _compare_output(output, twin)


def _compare_output(real: OutputRecord, simulated: OutputRecord) -> Iterator[Difference]:
    subject = f"{real.name}, call {real.call + 1}"
    if (real.shape, real.dtype) != (simulated.shape, simulated.dtype):
        yield Difference(
            kind="values",
            subject=subject,
            sentence=f"is {real.dtype}{list(real.shape)}, and {simulated.dtype}"
            f"{list(simulated.shape)} in the simulation",
        )
        return
    twins = {shard.device: shard for shard in simulated.shards}
    moved = [
        s.device for s in real.shards if s.device not in twins or twins[s.device].index != s.index
    ]
    if len(real.shards) != len(simulated.shards) or moved:
        yield Difference(
            kind="sharding",
            subject=subject,
            sentence=f"is sharded as {real.sharding}; in the simulation as {simulated.sharding}",
            devices=tuple(moved),
        )
        return
    yield from _compare_values(subject, real, twins)


def _compare_values(
    subject: str, real: OutputRecord, twins: Mapping[int, ShardRecord]
) -> Iterator[Difference]:
    dtype = _numpy_dtype(real.dtype)
    pairs = [
        (shard, _decode(shard, dtype), _decode(twins[shard.device], dtype)) for shard in real.shards
    ]
    expected = np.concatenate([values for *_, values in pairs] or [np.zeros(0)])
    tolerance = _tolerance(expected, dtype, real.call)
    wrong = [
        (shard.device, actual, values)
        for shard, actual, values in pairs
        if not bool(compare_arrays(actual, values, tolerance).all())
    ]
    if wrong:
        device, actual, values = max(wrong, key=lambda item: _largest_distance(*item[1:]))
        yield Difference(
            kind="values",
            subject=subject,
            sentence=f"differs on {len(wrong)} of {len(pairs)} devices, most on {device}: by "
            f"{_largest_distance(actual, values):.3g}, where rounding explains {tolerance:.3g}",
            devices=tuple(device for device, *_ in wrong),
        )


def _tolerance(expected: Array, dtype: Any, call: int) -> float:
    """Return how far a value may be away: sums in another order, carried on from call to call."""
    if not is_floating(dtype):
        return 0.0
    finfo: Any = ml_dtypes.finfo
    eps = float(finfo(dtype).eps)
    return rounding_tolerance(_widen(expected), eps) * (1 + call)


def is_floating(dtype: Any) -> bool:
    """Return whether a dtype has floating-point numbers."""
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def _numpy_dtype(name: str) -> Any:
    if name.startswith("key<"):
        return np.dtype(np.uint32)  # the bits of random keys
    return np.dtype(getattr(ml_dtypes, name, name))


def _decode(shard: ShardRecord, dtype: Any) -> Array:
    return np.frombuffer(base64.b64decode(shard.values), dtype)


def _widen(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _largest_distance(actual: Array, expected: Array) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(_widen(actual) - _widen(expected))
    return float(np.max(np.nan_to_num(distance, nan=np.inf), initial=0.0))


# ----------------------------------------------------------------------------------- collectives


def _compare_collectives(
    real: ProgramRecord, simulated: Sequence[CollectiveCall]
) -> Iterator[Difference]:
    """Compare what both compilers wrote, regardless of the order."""
    assert real.collectives is not None
    actual, expected = (
        Counter(map(_call_text, real.collectives)),
        Counter(map(_call_text, simulated)),
    )
    for text, count in (actual - expected).items():
        yield Difference(
            kind="collectives",
            subject=real.key,
            sentence=f"has {count} {text} more on real processes than in the simulation",
        )
    for text, count in (expected - actual).items():
        yield Difference(
            kind="collectives",
            subject=real.key,
            sentence=f"has {count} {text} less on real processes than in the simulation",
        )


def _call_text(call: CollectiveCall) -> str:
    count = "in a while loop" if call.count is None else f"x {call.count}"
    shape = ",".join(map(str, call.shape))
    return f"{call.op} over {','.join(call.mesh_axes)} of {call.dtype}[{shape}] {count}"
