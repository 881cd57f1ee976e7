"""The sharding of a result: as a spec, and compared with the expected one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from shardlab.errors import LabError
from shardlab.judge.protocol.run_result import Ranges, RunOutput
from shardlab.judge.verdict import Verdict
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

_MAX_SPECS = 2000


def sharding_verdict(output: RunOutput, expected: Spec, mesh: Mesh) -> Verdict | None:
    """Return the verdict on a result with another sharding than expected, None if it has that."""
    actual_ranges = {shard.device: shard.ranges for shard in output.shards}
    name = f"result{output.path}"
    try:
        expected_ranges = device_ranges(output.shape, expected, mesh)
    except LabError as error:
        sentence = f"{name} cannot be sharded as {expected}, which is expected: {error.what}"
        return Verdict(code="SHARD", what=sentence)
    if actual_ranges == expected_ranges:
        return None
    actual = find_spec(output.shape, actual_ranges, mesh)
    details = {"asked": str(expected), "got": str(actual) if actual is not None else ""}
    fix = f"give it the sharding NamedSharding(mesh, {expected}): by out_specs, out_shardings or "
    fix += "jax.lax.with_sharding_constraint."
    if actual is None:
        device = next(
            device
            for device, ranges in expected_ranges.items()
            if actual_ranges.get(device) != ranges
        )
        sentence = (
            f"The sharding of {name} matches no spec: device {device} holds "
            f"{_ranges_text(actual_ranges.get(device))}; with the expected {expected} it holds "
            f"{_ranges_text(expected_ranges[device])}."
        )
        return Verdict(code="SHARD", what=sentence, fix=fix, details=details)
    state = f"is sharded as {actual}" if actual.mesh_axes else "is replicated on every device"
    sentence = f"{name} {state}; expected {expected}."
    return Verdict(code="SHARD", what=sentence, fix=fix, details=details)


def device_ranges(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> dict[int, Ranges]:
    """Return which part of an array each device holds under a spec."""
    array_layout = layout(shape, spec, mesh)
    return {
        device: tuple((part.start, part.stop) for part in array_layout.index(device))
        for device in mesh.devices
    }


def find_spec(shape: tuple[int, ...], ranges: dict[int, Ranges], mesh: Mesh) -> Spec | None:
    """Return the shortest spec under which devices hold these ranges, None if there is none.

    >>> ranges = {0: ((0, 4), (0, 3)), 1: ((0, 4), (3, 6))}
    >>> find_spec((4, 6), ranges, Mesh(data=2))
    Spec(None, 'data')
    """
    for number, spec in enumerate(_iterate_specs(len(shape), mesh)):
        if number > _MAX_SPECS:
            break
        try:
            if device_ranges(shape, spec, mesh) == ranges:
                return spec
        except LabError:
            continue
    return None


def _iterate_specs(n_dims: int, mesh: Mesh) -> Iterator[Spec]:
    """Yield every spec for arrays of that many dimensions, those with fewer mesh axes first."""
    # Axes of size 1 shard nothing, so specs with and without them are the same sharding.
    names = [name for name, size in mesh.shape.items() if size > 1]
    for n_names in range(len(names) + 1):
        for ordered_names in permutations(names, n_names):
            for dims in product(range(n_dims), repeat=n_names):
                entries: list[tuple[str, ...]] = [()] * n_dims
                for name, dim in zip(ordered_names, dims, strict=True):
                    entries[dim] = (*entries[dim], name)
                yield _trim_spec(entries)


def _trim_spec(entries: list[tuple[str, ...]]) -> Spec:
    while entries and not entries[-1]:
        entries = entries[:-1]
    return Spec(*entries)


def _ranges_text(ranges: Ranges | None) -> str:
    if ranges is None:
        return "nothing"
    return f"[{', '.join(f'{start}:{stop}' for start, stop in ranges)}]"
