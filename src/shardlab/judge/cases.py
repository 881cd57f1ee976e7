"""The cases of a part: up the mesh ladder, then by simulation on meshes too large to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardlab.catalogue.problem import Part
from shardlab.catalogue.reference import Draw
from shardlab.sharding.mesh import Mesh, parse_mesh

# Other names for mesh axes: an answer that has 'data' in it does not find it here.
_RENAMED = ("rows", "cols", "depth")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of an answer: on which mesh, and from which seed its inputs are drawn."""

    part: Part
    number: int
    name: str
    mesh: Mesh | None  # None: the answer is not given one
    seed: int
    scale: int
    is_simulated: bool = False

    @property
    def draw(self) -> Draw:
        mesh = self.mesh or Mesh(dict.fromkeys(self.part.axes, 1) or {"data": 1})
        return Draw(
            rng=np.random.default_rng(self.seed), mesh=mesh, scale=self.scale, number=self.number
        )


def make_cases(part: Part, seed: int, scale: int) -> tuple[Case, ...]:
    """Return the cases of a part, each with a seed of its own drawn from `seed`."""
    meshes = list(_meshes(part))
    seeds = np.random.SeedSequence([seed, part.number]).generate_state(len(meshes), np.uint32)
    return tuple(
        Case(
            part=part,
            number=number,
            name=name,
            mesh=mesh,
            seed=int(drawn),
            scale=scale,
            is_simulated=is_simulated,
        )
        for number, ((name, mesh, is_simulated), drawn) in enumerate(
            zip(meshes, seeds, strict=True)
        )
    )


def _meshes(part: Part) -> Iterator[tuple[str, Mesh | None, bool]]:
    if part.kind == "value":
        yield from ((f"case {number + 1}", None, False) for number in range(part.cases))
        return
    if "mesh" not in part.arguments:
        yield from ((f"one device, case {number + 1}", None, False) for number in range(3))
        return
    for text in part.ladder or usual_ladder(part.axes):
        yield _named(text)
    for text in usual_large(part.axes) if part.large == ("usual",) else part.large:
        yield f"{text}, simulated", parse_mesh(text), True


def usual_ladder(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the meshes that an answer is run on, for mesh axes of these names.

    >>> usual_ladder(("data",))[:4]
    ('data=1', 'data=2', 'data=4', 'data=8')
    """
    if len(axes) == 1:
        (a,) = axes
        b = "model" if a != "model" else "data"
        sizes = [f"{a}={n}" for n in (1, 2, 4, 8)]
        return (
            *sizes,
            f"{a}=2,{b}=4",
            f"{a}=4,{b}=2",
            f"{a}=3",
            f"{_RENAMED[0]}=4",
            f"{a}=4 permuted",
        )
    a, b = axes[:2]
    grids = [
        f"{a}={m},{b}={n}" for m, n in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 4), (4, 2), (3, 1))
    ]
    return (*grids, f"{_RENAMED[0]}=2,{_RENAMED[1]}=4", f"{a}=2,{b}=4 permuted")


def usual_large(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the meshes that an answer is simulated on."""
    if len(axes) == 1:
        return (f"{axes[0]}=64", f"{axes[0]}=512")
    return (f"{axes[0]}=8,{axes[1]}=8", f"{axes[0]}=32,{axes[1]}=16")


def _named(text: str) -> tuple[str, Mesh, bool]:
    """Return a mesh of the ladder with its name; `permuted` is its devices in another order."""
    plain = text.removesuffix(" permuted")
    mesh = parse_mesh(plain)
    if plain == text:
        is_renamed = mesh.axis_names[0] == _RENAMED[0]
        return f"{text}, axes renamed" if is_renamed else text, mesh, False
    n = mesh.n_devices
    order = [*reversed(range(1, n, 2)), *range(0, n, 2)]  # such as 3, 1, 0, 2
    return f"{plain}, devices {order}", Mesh(mesh.shape, device_ids=order), False
