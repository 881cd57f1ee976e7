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
# Hidden cases have names and shapes of their own: a submission could list the fixed ones.
_DRAWN_AXES = (
    "rows",
    "cols",
    "batch",
    "fsdp",
    "tensor",
    "replica",
    "x",
    "y",
    "pipe",
    "seq",
    "host",
)
_PERMUTED = " permuted"  # suffix of a mesh whose devices are in another order
_N_HOST_DEVICES = 8
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
    """Return the cases of a part, each with a seed of its own drawn from `seed`.

    At scale 1, which examples have, all meshes are the ones in the documentation.
    """
    sequence = np.random.SeedSequence([seed, part.number])
    test_meshes = list(_list_test_meshes(part, None if scale == 1 else sequence.spawn(1)[0]))
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


def _list_test_meshes(part: Part, sequence: np.random.SeedSequence | None) -> Iterator[_TestMesh]:
    if part.kind == "value":
        yield from (_TestMesh(f"case {number + 1}", None) for number in range(part.cases))
        return
    if "mesh" not in part.arguments:
        for number in range(_N_MESHLESS_CASES):
            yield _TestMesh(f"one device, case {number + 1}", None)
        return
    texts = part.meshes or default_test_meshes(part.axes)
    meshes = [_parse_test_mesh(text) for text in texts]
    if sequence is not None:
        # A part that lists its meshes need not name their axes.
        axes = part.axes or parse_mesh(texts[0]).axis_names
        rng = np.random.default_rng(sequence)
        for index, text in enumerate(texts):
            if text.endswith(_PERMUTED):
                meshes[index] = _draw_permuted_mesh(axes, rng)
            elif _has_renamed_axes(meshes[index].mesh):
                meshes[index] = _draw_renamed_mesh(len(axes), rng)
    yield from meshes
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


def _draw_renamed_mesh(n_axes: int, rng: np.random.Generator) -> _TestMesh:
    words = rng.choice(_DRAWN_AXES, 2, replace=False).tolist()
    names = [
        f"{word}{number}" for word, number in zip(words, rng.integers(100, size=2), strict=True)
    ]
    sizes = _draw_axis_sizes(rng, n_axes=n_axes, has_grid=True)
    mesh = Mesh(dict(zip(names, sizes, strict=False)))
    return _TestMesh(f"{mesh}, axes renamed", mesh)


def _draw_permuted_mesh(axes: tuple[str, ...], rng: np.random.Generator) -> _TestMesh:
    """Return a mesh of some of the host's devices, in an order that is not sorted."""
    second = "model" if axes[0] != "model" else "data"
    sizes = _draw_axis_sizes(rng, n_axes=len(axes), has_grid=False)
    mesh = Mesh(dict(zip((*axes, second), sizes, strict=False)))
    order = list(range(mesh.n_devices))
    while order == sorted(order):
        order = rng.choice(_N_HOST_DEVICES, mesh.n_devices, replace=False).tolist()
    return _TestMesh(f"{mesh}, devices {order}", Mesh(mesh.shape, device_ids=order))


def _draw_axis_sizes(rng: np.random.Generator, *, n_axes: int, has_grid: bool) -> tuple[int, ...]:
    """Return sizes of one or two mesh axes with 3 to 8 devices.

    A mesh of a task with one axis has a second one now and then, which may have size 1. If
    `has_grid`, both axes of a task with two have more than one device.
    """
    pairs = [(m, n) for m in range(1, 9) for n in range(1, 9) if 3 <= m * n <= _N_HOST_DEVICES]
    if n_axes == 1:
        several = [pair for pair in pairs if pair[0] > 1]
        first, second = several[int(rng.integers(len(several)))]
        return (first, second) if rng.random() < 0.5 else (max(first, 3),)
    grids = [pair for pair in pairs if not has_grid or min(pair) > 1]
    return grids[int(rng.integers(len(grids)))]


def default_simulated_meshes(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the meshes that a submission is simulated on."""
    if len(axes) == 1:
        return (f"{axes[0]}=64", f"{axes[0]}=512")
    return (f"{axes[0]}=8,{axes[1]}=8", f"{axes[0]}=32,{axes[1]}=16")


def _parse_test_mesh(text: str) -> _TestMesh:
    """Return a mesh with its name; the suffix `permuted` means devices in another order."""
    plain = text.removesuffix(_PERMUTED)
    mesh = parse_mesh(plain)
    if plain == text:
        return _TestMesh(f"{text}, axes renamed" if _has_renamed_axes(mesh) else text, mesh)
    n = mesh.n_devices
    # Neither sorted nor a rotation, so that no arithmetic on device ids gives the position.
    order = [*reversed(range(1, n, 2)), *range(0, n, 2)]  # such as 3, 1, 0, 2
    return _TestMesh(f"{plain}, devices {order}", Mesh(mesh.shape, device_ids=order))


def _has_renamed_axes(mesh: Mesh | None) -> bool:
    return mesh is not None and mesh.axis_names[0] == _RENAMED_AXES[0]
