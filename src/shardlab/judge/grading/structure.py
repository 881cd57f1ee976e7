"""Structure, shape and dtype of a result, compared before any value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import combinations
from math import prod
from typing import Any

from shardlab.judge.verdict import Verdict
from shardlab.sharding.mesh import Mesh

Shape = tuple[int, ...]


def array_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array of a result with its path, as `jax.tree_util.keystr` writes it.

    >>> list(array_leaves({"w": (1, 2)}))
    [("['w'][0]", 1), ("['w'][1]", 2)]
    """
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from array_leaves(value[key], f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from array_leaves(item, f"{path}[{number}]")
    elif value is not None:
        yield path, value


def structure_verdict(expected: Set[str], actual: Set[str], call: str) -> Verdict:
    """Return the verdict on a result that consists of other arrays than expected."""
    if not actual:
        return Verdict(
            code="SHAPE",
            what=f"The function returns None; expected {_paths_text(expected)}.",
            fix=f"end {call} with a return statement.",
        )
    sentence = f"The function returns {_paths_text(actual)}; expected {_paths_text(expected)}."
    return Verdict(code="SHAPE", what=sentence)


def _paths_text(paths: Set[str]) -> str:
    if paths == {""}:
        return "one array"
    return ", ".join(f"result{path}" for path in sorted(paths)) or "nothing"


def shape_verdict(name: str, actual: Shape, expected: Shape, mesh: Mesh | None) -> Verdict:
    """Return the verdict on an array of another shape, with a guess at the mistake.

    >>> print(shape_verdict("result", (8, 4), (32, 4), Mesh(data=4)))
    SHAPE: wrong structure or shape
      result has shape (8, 4), expected (32, 4): out_specs may return only one of the 4 shards.
    """
    guess = _guess_mistake(actual, expected, mesh) if mesh else ""
    return Verdict(
        code="SHAPE",
        what=f"{name} has shape {actual}, expected {expected}" + (f": {guess}" if guess else "."),
        details={"got": list(actual), "want": list(expected)},
    )


def _guess_mistake(actual: Shape, expected: Shape, mesh: Mesh) -> str:
    # From the most specific guess to the least: a shape can match several.
    for dim, size in enumerate(actual):
        if size == 1 and actual[:dim] + actual[dim + 1 :] == expected:
            return f"dimension {dim} of size 1 is too many."
    for names in _axis_subsets(mesh):
        n = prod(mesh.shape[name] for name in names)
        if n == 1:
            continue
        axes = " and ".join(map(repr, names))
        for dim in range(len(expected)):
            if actual == _scale_dim(expected, dim, 1, n):
                return f"out_specs may return only one of the {n} shards."
            if actual == _scale_dim(expected, dim, n, 1):
                return f"out_specs may concatenate {n} replicas over {axes}."
        for dim in range(len(actual)):
            if actual[dim] == n and actual[:dim] + actual[dim + 1 :] == expected:
                return f"is dimension {dim} a stack over {axes}? Use tiled=True."
    if len(actual) == len(expected) and actual == expected[::-1]:
        return "is it transposed?"
    return _guess_other_dim(actual, expected, mesh)


def _guess_other_dim(actual: Shape, expected: Shape, mesh: Mesh) -> str:
    """Return the guess that shards are concatenated along another dimension than they should."""
    if len(actual) != len(expected):
        return ""
    different = [dim for dim in range(len(expected)) if actual[dim] != expected[dim]]
    if len(different) != 2:
        return ""
    for names in _axis_subsets(mesh):
        n = prod(mesh.shape[name] for name in names)
        for larger, smaller in (different, different[::-1]):
            is_larger = n > 1 and actual[larger] == n * expected[larger]
            if is_larger and n * actual[smaller] == expected[smaller]:
                return f"are shards of dimension {smaller} concatenated along dimension {larger}?"
    return ""


def _scale_dim(shape: Shape, dim: int, factor: int, divisor: int) -> Shape | None:
    if shape[dim] * factor % divisor:
        return None
    return (*shape[:dim], shape[dim] * factor // divisor, *shape[dim + 1 :])


def _axis_subsets(mesh: Mesh) -> Iterator[tuple[str, ...]]:
    for k in range(1, len(mesh.axis_names) + 1):
        yield from combinations(mesh.axis_names, k)


def dtype_verdict(name: str, actual: str, expected: str) -> Verdict:
    """Return the verdict on an array of another dtype."""
    return Verdict(
        code="DTYPE",
        what=f"{name} is {actual}, expected {expected}.",
        fix=f"cast it with .astype(jnp.{expected}), or compute in {expected} from the start.",
        details={"got": actual, "want": expected},
    )
