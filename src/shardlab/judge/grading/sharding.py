"""The layout of a result: as a spec in words, and against the one that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from shardlab.errors import LabError
from shardlab.judge.protocol.run_result import Output, Ranges
from shardlab.judge.verdict import Verdict
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

_MOST_TRIED = 2000


def misplaced(output: Output, asked: Spec, mesh: Mesh) -> Verdict | None:
    """Return the verdict on a result that lies otherwise than was asked; None where it does not."""
    held = {shard.device: shard.ranges for shard in output.shards}
    name = f"result{output.path}"
    try:
        want = ranges_of(output.shape, asked, mesh)
    except LabError as error:
        return Verdict(
            code="SHARD", what=f"{name} cannot lie as {asked}, which was asked: {error.what}"
        )
    if held == want:
        return None
    found = spec_of(output.shape, held, mesh)
    details = {"asked": str(asked), "got": str(found) if found is not None else ""}
    fix = f"give it the sharding NamedSharding(mesh, {asked}): by out_specs, out_shardings or "
    fix += "jax.lax.with_sharding_constraint."
    if found is None:
        device = next(device for device in want if held.get(device) != want[device])
        what = (
            f"{name} lies as no spec describes: device {device} holds {_index(held.get(device))}; "
            f"{asked} puts {_index(want[device])} there."
        )
        return Verdict(code="SHARD", what=what, fix=fix, details=details)
    lies = "is whole on every device" if not found.mesh_axes else f"lies as {found}"
    return Verdict(
        code="SHARD", what=f"{name} {lies}; {asked} was asked.", fix=fix, details=details
    )


def ranges_of(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> dict[int, Ranges]:
    """Return what each device holds under a spec."""
    asked = layout(shape, spec, mesh)
    return {
        device: tuple((part.start, part.stop) for part in asked.index(device))
        for device in mesh.devices
    }


def spec_of(shape: tuple[int, ...], held: dict[int, Ranges], mesh: Mesh) -> Spec | None:
    """Return the shortest spec that describes what devices hold, or None.

    >>> held = {0: ((0, 4), (0, 3)), 1: ((0, 4), (3, 6))}
    >>> spec_of((4, 6), held, Mesh(data=2))
    Spec(None, 'data')
    """
    for tried, spec in enumerate(_specs(len(shape), mesh)):
        if tried > _MOST_TRIED:
            break
        try:
            if ranges_of(shape, spec, mesh) == held:
                return spec
        except LabError:
            continue
    return None


def _specs(n_axes: int, mesh: Mesh) -> Iterator[Spec]:
    """Yield every spec for arrays of that many axes, those with fewer mesh axes first."""
    names = [name for name, size in mesh.shape.items() if size > 1]
    for n_names in range(len(names) + 1):
        for chosen in permutations(names, n_names):
            for axes in product(range(n_axes), repeat=n_names):
                entries: list[tuple[str, ...]] = [()] * n_axes
                for name, axis in zip(chosen, axes, strict=True):
                    entries[axis] = (*entries[axis], name)
                yield _trimmed(entries)


def _trimmed(entries: list[tuple[str, ...]]) -> Spec:
    while entries and not entries[-1]:
        entries = entries[:-1]
    return Spec(*entries)


def _index(ranges: Ranges | None) -> str:
    if ranges is None:
        return "nothing"
    return f"[{', '.join(f'{start}:{stop}' for start, stop in ranges)}]"
