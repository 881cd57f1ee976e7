"""The cases of a part: on the test meshes, then simulated on meshes that are too large to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardlab.catalogue.problem import Part
from shardlab.catalogue.reference import Draw
from shardlab.sharding.mesh import Mesh, parse_mesh

# Other names for mesh axes: a submission that contains 'data' as a constant fails there.
_RENAMED_AXES = ("rows", "cols", "depth")
_N_MESHLESS_CASES = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of a submission: on which mesh, and from which seed its inputs are drawn."""

    part: Part
    number: int
    name: str
    mesh: Mesh | None  # None: the function receives no mesh
    seed: int
    scale: int
    is_simulated: bool = False

    @property
    def draw(self) -> Draw:
        mesh = self.mesh or Mesh(dict.fromkeys(self.part.axes, 1) or {"data": 1})
        return Draw(
            rng=np.random.default_rng(self.seed), mesh=mesh, scale=self.scale, number=self.number
        )


@dataclass(frozen=True)
class _TestMesh:
    name: str
    mesh: Mesh | None
    is_simulated: bool = False


def make_cases(part: Part, seed: int, scale: int) -> tuple[Case, ...]:
    """Return the cases of a part, each with a seed of its own drawn from `seed`."""
    test_meshes = list(_list_test_meshes(part))
    sequence = np.random.SeedSequence([seed, part.number])
    # A seed per case, so that one case can be replayed without drawing the others.
    case_seeds = sequence.generate_state(len(test_meshes), np.uint32)
    return tuple(
        Case(
            part=part,
            number=number,
            name=test_mesh.name,
            mesh=test_mesh.mesh,
            seed=int(case_seed),
            scale=scale,
            is_simulated=test_mesh.is_simulated,
        )
        for number, (test_mesh, case_seed) in enumerate(zip(test_meshes, case_seeds, strict=True))
    )


def _list_test_meshes(part: Part) -> Iterator[_TestMesh]:
    if part.kind == "value":
        yield from (_TestMesh(f"case {number + 1}", None) for number in range(part.cases))
        return
    if "mesh" not in part.arguments:
        for number in range(_N_MESHLESS_CASES):
            yield _TestMesh(f"one device, case {number + 1}", None)
        return
    for text in part.meshes or default_test_meshes(part.axes):
        yield _parse_test_mesh(text)
    large = (
        default_simulated_meshes(part.axes)
        if part.simulated_meshes == ("usual",)
        else part.simulated_meshes
    )
    for text in large:
        yield _TestMesh(f"{text}, simulated", parse_mesh(text), is_simulated=True)


def default_test_meshes(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the meshes that a submission runs on, for mesh axes of these names.

    >>> default_test_meshes(("data",))[:4]
    ('data=1', 'data=2', 'data=4', 'data=8')
    """
    if len(axes) == 1:
        (a,) = axes
        b = "model" if a != "model" else "data"
        # Several sizes tell n from a constant; two axes tell the axis from the device count; 3 is
        # no power of two, so padding and halving fail; a permuted mesh separates device ids from
        # positions.
        sizes = [f"{a}={n}" for n in (1, 2, 4, 8)]
        return (
            *sizes,
            f"{a}=2,{b}=4",
            f"{a}=4,{b}=2",
            f"{a}=3",
            f"{_RENAMED_AXES[0]}=4",
            f"{a}=4 permuted",
        )
    a, b = axes[:2]
    # (2, 1) and (1, 2) separate the axes, (2, 4) and (4, 2) their order.
    grids = [
        f"{a}={m},{b}={n}" for m, n in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 4), (4, 2), (3, 1))
    ]
    return (*grids, f"{_RENAMED_AXES[0]}=2,{_RENAMED_AXES[1]}=4", f"{a}=2,{b}=4 permuted")


def default_simulated_meshes(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the meshes that a submission is simulated on."""
    if len(axes) == 1:
        return (f"{axes[0]}=64", f"{axes[0]}=512")
    return (f"{axes[0]}=8,{axes[1]}=8", f"{axes[0]}=32,{axes[1]}=16")


def _parse_test_mesh(text: str) -> _TestMesh:
    """Return a mesh with its name; the suffix `permuted` means devices in another order."""
    plain = text.removesuffix(" permuted")
    mesh = parse_mesh(plain)
    if plain == text:
        is_renamed = mesh.axis_names[0] == _RENAMED_AXES[0]
        return _TestMesh(f"{text}, axes renamed" if is_renamed else text, mesh)
    n = mesh.n_devices
    # Neither sorted nor a rotation, so that no arithmetic on device ids gives the position.
    order = [*reversed(range(1, n, 2)), *range(0, n, 2)]  # such as 3, 1, 0, 2
    return _TestMesh(f"{plain}, devices {order}", Mesh(mesh.shape, device_ids=order))
