"""Structure, shape and dtype of a result, compared before any value is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import combinations
from math import prod
from typing import Any

from shardlab.judge.verdict import Verdict
from shardlab.sharding.mesh import Mesh

Shape = tuple[int, ...]


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


def structure(wanted: Set[str], got: Set[str], call: str) -> Verdict:
    """Return the verdict on a result made of other arrays than were asked for."""

    def named(paths: Set[str]) -> str:
        if paths == {""}:
            return "one array"
        return ", ".join(f"result{path}" for path in sorted(paths)) or "nothing"

    if not got:
        return Verdict(
            code="SHAPE",
            what=f"The function returns None; asked for was {named(wanted)}.",
            fix=f"end {call} with a return statement.",
        )
    return Verdict(
        code="SHAPE", what=f"The function returns {named(got)}; asked for was {named(wanted)}."
    )


def shape(name: str, got: Shape, want: Shape, mesh: Mesh | None) -> Verdict:
    """Return the verdict on an array of another shape.

    >>> print(shape("result", (8, 4), (32, 4), Mesh(data=4)))
    SHAPE  result has shape (8, 4), want (32, 4): did out_specs glue 1 of 4 shards?
    """
    guess = _guess(got, want, mesh) if mesh else ""
    return Verdict(
        code="SHAPE",
        what=f"{name} has shape {got}, want {want}" + (f": {guess}" if guess else "."),
        details={"got": list(got), "want": list(want)},
    )


def _guess(got: Shape, want: Shape, mesh: Mesh) -> str:
    for axis, size in enumerate(got):
        if size == 1 and got[:axis] + got[axis + 1 :] == want:
            return f"array axis {axis} of size 1 is too many."
    for names in _subsets(mesh):
        n = prod(mesh.shape[name] for name in names)
        if n == 1:
            continue
        axes = " and ".join(map(repr, names))
        for axis in range(len(want)):
            if got == _scaled(want, axis, 1, n):
                return f"did out_specs glue 1 of {n} shards?"
            if got == _scaled(want, axis, n, 1):
                return f"did out_specs join {n} copies along {axes}?"
        for axis in range(len(got)):
            if got[axis] == n and got[:axis] + got[axis + 1 :] == want:
                return f"is array axis {axis} that of {axes}, stacked where it should be tiled?"
    if len(got) == len(want) and got == want[::-1]:
        return "is it transposed?"
    return _joined_elsewhere(got, want, mesh)


def _joined_elsewhere(got: Shape, want: Shape, mesh: Mesh) -> str:
    """Return the guess that pieces lie side by side along another array axis than they should."""
    apart = [axis for axis in range(len(want)) if len(got) == len(want) and got[axis] != want[axis]]
    if len(apart) != 2:
        return ""
    for names in _subsets(mesh):
        n = prod(mesh.shape[name] for name in names)
        for more, less in (apart, apart[::-1]):
            if n > 1 and got[more] == n * want[more] and n * got[less] == want[less]:
                return f"are pieces joined along array axis {more} that belong along {less}?"
    return ""


def _scaled(shape: Shape, axis: int, times: int, by: int) -> Shape | None:
    if shape[axis] * times % by:
        return None
    return (*shape[:axis], shape[axis] * times // by, *shape[axis + 1 :])


def _subsets(mesh: Mesh) -> Iterator[tuple[str, ...]]:
    for k in range(1, len(mesh.axis_names) + 1):
        yield from combinations(mesh.axis_names, k)


def dtype(name: str, got: str, want: str) -> Verdict:
    """Return the verdict on an array of another dtype."""
    return Verdict(
        code="DTYPE",
        what=f"{name} is {got}, want {want}.",
        fix=f"cast it with .astype(jnp.{want}), or compute in {want} from the start.",
        details={"got": got, "want": want},
    )
