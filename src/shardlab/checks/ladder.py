"""On which meshes a program is tried when nobody says: small ones, of different sizes.

>>> [mesh.axis_sizes for mesh in ladder(("data",))]
[(2,), (3,), (4,), (8,)]
>>> [mesh.axis_sizes for mesh in ladder(("data", "model"))]
[(2, 1), (1, 2), (2, 4), (4, 2), (3, 1), (1, 3)]
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlab.layouts.mesh import Mesh

_ONE = ((2,), (3,), (4,), (8,))
_TWO = ((2, 1), (1, 2), (2, 4), (4, 2), (3, 1), (1, 3))


def ladder(axis_names: Sequence[str]) -> list[Mesh]:
    """Return meshes with these axis names, beside that of one device.

    Along each axis alone, so that a difference can be put down to it, and along all together.
    """
    names = tuple(axis_names)
    if len(names) == 1:
        rows: list[tuple[int, ...]] = list(_ONE)
    elif len(names) == 2:
        rows = list(_TWO)
    else:
        rows = [tuple(2 if i == j else 1 for j in range(len(names))) for i in range(len(names))]
        rows += [(2,) * len(names), (1,) * (len(names) - 1) + (3,)]
    return [Mesh(list(zip(names, row, strict=True))) for row in rows]
