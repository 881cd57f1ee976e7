"""Compares what was seen of a case with what is right. Pure: runs nothing, loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardlab.checks import causes
from shardlab.checks.agreement import Comparison, is_close
from shardlab.judge.cases import Case
from shardlab.judge.seen import Output, Seen
from shardlab.layouts.mesh import Mesh
from shardlab.layouts.shards import layout
from shardlab.layouts.spec import Spec
from shardlab.records.verdict import Verdict

Array = npt.NDArray[Any]


def grade(
    case: Case, seen: Seen, expected: Any, specs: Any, budget: Mapping[str, int]
) -> list[Verdict]:
    """Return what is wrong with a run; empty where all properties hold."""
    wanted = dict(leaves(expected))
    got = {output.path: output for output in seen.outputs}
    if set(wanted) != set(got):
        return [_structure(set(wanted), set(got))]
    found: list[Verdict] = []
    for path, value in wanted.items():
        found += _output(case, got[path], np.asarray(value))
    if not found:
        found += [v for path, spec in _specs(specs, wanted) for v in _layout(case, got[path], spec)]
    if not any(v.code in ("SHAPE", "DTYPE", "REPL", "WA") for v in found):
        found += _required(case, seen)
        found += _over_budget(case, seen, budget)
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array of a result with its path, in the words of `jax.tree_util.keystr`.

    >>> list(leaves({"w": (1, 2)}))
    [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from leaves(value[key], f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from leaves(each, f"{path}[{number}]")
    elif value is not None:
        yield path, value


def _structure(wanted: set[str], got: set[str]) -> Verdict:
    def named(paths: set[str]) -> str:
        return ", ".join(f"result{path}" for path in sorted(paths)) or "nothing"

    return Verdict("SHAPE", f"The result has {named(got)}; asked for was {named(wanted)}.")


def _output(case: Case, output: Output, expected: Array) -> list[Verdict]:
    """Compare one array: shape, dtype, copies, values."""
    name = f"result{output.path}"
    if output.shape != expected.shape:
        return [Verdict("SHAPE", f"{name} has shape {output.shape}, want {expected.shape}.")]
    if output.dtype != expected.dtype.name:
        return [Verdict("DTYPE", f"{name} is {output.dtype}, want {expected.dtype.name}.")]
    copies = _differing_copies(output)
    if copies:
        return [copies]
    whole = assembled(output)
    atol = _atol(case, expected)
    if is_close(whole, expected, atol):
        return []
    if case.mesh is None:
        return [Verdict("WA", f"{name} is {_short(whole)}, want {_short(expected)}.")]
    cause = _cause(case.mesh, expected, whole, atol)
    return [Verdict("WA", f"{name} is {_short(whole)}, want {_short(expected)}.", cause=cause)]


def _differing_copies(output: Output) -> Verdict | None:
    by_ranges: dict[Any, list[Array]] = {}
    for shard in output.shards:
        by_ranges.setdefault(shard.ranges, []).append(shard.values)
    for copies in by_ranges.values():
        # Bit for bit, and NaN equals NaN.
        if any(copy.tobytes() != copies[0].tobytes() for copy in copies):
            held = ", ".join(_short(copy) for copy in copies[:8])
            return Verdict("REPL", f"Devices that should hold the same hold {held}.")
    return None


def assembled(output: Output) -> Array:
    """Return the whole array, each element from the first device that holds it."""
    whole = np.zeros(output.shape, output.shards[0].values.dtype)
    for shard in reversed(output.shards):
        whole[tuple(slice(start, stop) for start, stop in shard.ranges)] = shard.values
    return whole


def _atol(case: Case, expected: Array) -> float:
    if expected.dtype.kind not in "fc":
        return 0.0
    finite = np.abs(expected[np.isfinite(expected)])
    return case.part.atol + case.part.rtol * float(finite.max(initial=0.0))


def _cause(mesh: Mesh, expected: Array, got: Array, atol: float) -> str:
    seen = [Comparison(tuple(mesh.shape.items()), expected, got, atol)]
    if mesh.n_devices == 1 or expected.dtype.kind == "b":
        return ""
    for ask in (
        causes.factor_of_n,
        causes.divided_by_n,
        causes.shards_permuted,
        causes.only_shard_0,
    ):
        if ask(seen):
            return ask.__name__
    return ""


def _specs(specs: Any, wanted: Mapping[str, Any]) -> Iterator[tuple[str, Spec]]:
    if isinstance(specs, Spec):
        yield from ((path, specs) for path in wanted)
        return
    if specs is not None:
        yield from ((path, spec) for path, spec in leaves(specs) if isinstance(spec, Spec))


def _layout(case: Case, output: Output, spec: Spec) -> list[Verdict]:
    if case.mesh is None:
        return []
    asked = layout(output.shape, spec, case.mesh, output.dtype)
    for shard in output.shards:
        want = tuple((part.start, part.stop) for part in asked.index(shard.device))
        if shard.ranges != want:
            return [
                Verdict(
                    "SHARD",
                    f"Device {shard.device} holds {shard.ranges} of result{output.path}; {spec} "
                    f"puts {want} there.",
                )
            ]
    return []


def _required(case: Case, seen: Seen) -> list[Verdict]:
    ops = {str(call["op"]) for call in seen.calls}
    have = ops | ({"shard_map"} if seen.has_shard_map else set())
    is_alone = case.mesh is None or case.mesh.n_devices == 1
    missing = [
        r for r in case.part.requires if r not in have and (r == "shard_map" or not is_alone)
    ]
    return [Verdict("API", f"There is no {name} in the program.") for name in missing]


_FIGURES = ("wire_bytes", "peak_bytes")


def _over_budget(case: Case, seen: Seen, budget: Mapping[str, int]) -> list[Verdict]:
    """Compare calls and bytes with what is allowed; a kind of call that is not named is not."""
    found = []
    counted: dict[str, int] = {}
    for call in seen.calls:
        counted[str(call["op"])] = counted.get(str(call["op"]), 0) + (call["count"] or 1)
    if set(budget) - set(_FIGURES):
        for op, count in counted.items():
            if count > budget.get(op, 0):
                found.append(Verdict("COMM", f"{count} {op}, budget {budget.get(op, 0)}."))
    if seen.peak_bytes > budget.get("peak_bytes", seen.peak_bytes):
        found.append(
            Verdict("MEM", f"A device holds {seen.peak_bytes} B, budget {budget['peak_bytes']} B.")
        )
    return found


def _short(array: Array) -> str:
    return np.array2string(array, threshold=8, precision=4, separator=", ").replace("\n", "")
