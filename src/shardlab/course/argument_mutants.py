"""Mutants that need no source: an argument changed before the call, a result that ignores it.

They state what a wrong submission may assume: `x` is never negative, `lr` is 0.5, the result is
that of another draw with the same shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardlab.course.hidden_samples import (
    RAISED,
    Array,
    Sample,
    argument_of,
    call_expected,
    input_leaves,
    map_leaves,
)
from shardlab.sharding.mesh import Mesh

_MAX_VALUES = 6  # of a scalar, each of which a submission could contain


@dataclass(frozen=True, kw_only=True)
class ValueMutant:
    """A mutant by its effect: from a sample to a result."""

    name: str
    compute: Callable[[Sample], Any]
    compute_float32: Callable[[Sample], Any] | None = None  # as a submission computes
    # Of a mutant that acts on large meshes only: the one that acts everywhere decides whether it
    # is equivalent, because free inputs are drawn for small meshes.
    general: ValueMutant | None = None

    @property
    def computes(self) -> list[Callable[[Sample], Any]]:
        """Return the computation, and the one in float32 if there is one."""
        return [compute for compute in (self.compute, self.compute_float32) if compute]


def _fill(x: Array, value: Any) -> Array:
    return np.full_like(x, value)


def _along_each_dim(name: str, edit: Callable[[Array, int], Array], n_dims: int) -> Any:
    return {
        f"{name} dimension {dim}": lambda x, dim=dim: edit(x, dim) if x.ndim > dim else x
        for dim in range(n_dims)
    }


def _zero_at(x: Array, index: int) -> Array:
    copy = x.copy()
    if copy.size:
        copy.reshape(-1)[index] = 0
    return copy


def _array_edits(array: Array) -> dict[str, Callable[[Array], Array]]:
    """Return what a submission could do with an array argument by mistake."""
    edits: dict[str, Callable[[Array], Array]] = {
        "zeros": np.zeros_like,
        "ones": np.ones_like,
        "its first element": lambda x: _fill(x, x.flat[0]) if x.size else x,
        "its last element": lambda x: _fill(x, x.flat[-1]) if x.size else x,
        "first element 0": lambda x: _zero_at(x, 0),
        "last element 0": lambda x: _zero_at(x, -1),
        "sorted": lambda x: np.sort(x.reshape(-1)).reshape(x.shape),
        **_along_each_dim("flipped along", np.flip, array.ndim),
        **_along_each_dim("rolled along", lambda x, d: np.roll(x, 1, d), array.ndim),
        **_along_each_dim("same along", _repeat_first, array.ndim),
        **_along_each_dim("second half 0 along", _zero_half, array.ndim),
    }
    if array.dtype.kind == "b":
        edits["negated"] = np.logical_not
        return edits
    edits |= {
        "its mean": lambda x: _fill(x, np.mean(x)),
        "its maximum": lambda x: _fill(x, np.max(x, initial=-1e30)),
        "negated": lambda x: -x,
        "absolute values": np.abs,
        "negative set to 0": lambda x: np.maximum(x, 0).astype(x.dtype),
        "positive set to 0": lambda x: np.minimum(x, 0).astype(x.dtype),
        "rounded": np.round,
        "halved": lambda x: (x / 2).astype(x.dtype),
        "squared": lambda x: x**2,
        "sign": np.sign,
        "clipped to [-1, 1]": lambda x: np.clip(x, -1, 1),
        "clipped to [-8, 8]": lambda x: np.clip(x, -8, 8),
        "zeros set to 1": lambda x: np.where(x == 0, 1, x).astype(x.dtype),
    }
    if array.dtype == np.float32:
        edits["in bfloat16"] = _round_to_bfloat16
    if array.ndim > 1:
        edits["transposed"] = np.transpose
    return edits


def _repeat_first(x: Array, dim: int) -> Array:
    return np.broadcast_to(np.take(x, [0], axis=dim), x.shape) if x.size else x


def _zero_half(x: Array, dim: int) -> Array:
    copy = x.copy()
    half = [slice(None)] * x.ndim
    half[dim] = slice((x.shape[dim] + 1) // 2, None)
    copy[tuple(half)] = 0
    return copy


def _round_to_bfloat16(x: Array) -> Array:
    """Return float32 with the 8 significant bits of bfloat16, as a cast for cheaper messages."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def iterate_value_mutants(
    samples: Sequence[Sample], other_draws: Sequence[Sample], expected: Callable[..., Any]
) -> Iterator[ValueMutant]:
    """Yield the mutants of arguments, mesh and results.

    `other_draws` are the same cases drawn from another seed.
    """
    others = {sample.case.number: sample for sample in other_draws}
    has_simulation = any(sample.case.is_simulated for sample in samples)
    varying = varying_arguments([sample.inputs for sample in samples])
    for pattern, values in _leaf_values(samples, varying).items():
        for label, edit in _leaf_edits(values, others).items():
            everywhere = _argument_mutant(pattern, label, edit, expected)
            yield everywhere
            if has_simulation and label in _SIMULATED_EDITS:
                yield _on_simulated_meshes(everywhere)
    yield from _swapped_arguments(samples, expected)
    if len({sample.mesh.axis_sizes for sample in samples}) > 1:
        yield from _mesh_mutants(expected)
    yield from _result_mutants(samples)


# From a sample, a path and the value there to another value.
Edit = Callable[[Sample, str, Any], Any]
# A result on many devices can lose its dependence on an argument that decides elsewhere.
_SIMULATED_EDITS = ("zeros", "ones", "negated", "of another draw")


def varying_arguments(draws: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the arguments whose keys differ from case to case, such as a dict of parameters."""
    structures: dict[str, set[tuple[str, ...]]] = {}
    for inputs in draws:
        for argument, value in inputs.items():
            paths = tuple(sorted(path for path, _ in input_leaves({argument: value})))
            structures.setdefault(argument, set()).add(paths)
    return {argument for argument, known in structures.items() if len(known) > 1}


def path_pattern(path: str, varying: Collection[str]) -> str:
    """Return a path without the names of keys, for an argument that has others in another case.

    >>> path_pattern("shapes['w'][0]", {"shapes"}), path_pattern("x['w']", ())
    ('shapes[*][0]', "x['w']")
    """
    return re.sub(r"\['.*?'\]", "[*]", path) if argument_of(path) in varying else path


def _leaf_values(samples: Sequence[Sample], varying: Collection[str]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for sample in samples:
        for path, leaf in input_leaves(sample.inputs):
            values.setdefault(path_pattern(path, varying), []).append(leaf)
    return values


def _leaf_edits(values: Sequence[Any], others: Mapping[int, Sample]) -> dict[str, Edit]:
    edits: dict[str, Edit] = {}
    leaf = values[0]
    if isinstance(leaf, np.ndarray):
        edits |= {label: _ignoring_sample(edit) for label, edit in _array_edits(leaf).items()}
    else:
        for value in list(dict.fromkeys(map(_hashable, values)))[:_MAX_VALUES]:
            edits[repr(value)] = _constant(value)
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            edits |= {
                "0": lambda sample, path, x: type(x)(0),
                "1": lambda sample, path, x: type(x)(1),
                "negated": lambda sample, path, x: -x,
                "absolute value": lambda sample, path, x: abs(x),
                "plus 1": lambda sample, path, x: x + 1,
                "doubled": lambda sample, path, x: 2 * x,
            }
    edits["of another draw"] = lambda sample, path, x: _value_of_other(path, x, others, sample)
    return edits


def _ignoring_sample(edit: Callable[[Array], Array]) -> Edit:
    return lambda sample, path, x: edit(x)


def _constant(value: Any) -> Edit:
    return lambda sample, path, x: value


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _value_of_other(path: str, x: Any, others: Mapping[int, Sample], sample: Sample) -> Any:
    """Return the same argument of another draw; of an array its values, in this shape."""
    other = others.get(sample.case.number)
    leaves = dict(input_leaves(other.inputs)) if other else {}
    value = leaves.get(path, x)
    if isinstance(x, np.ndarray) and isinstance(value, np.ndarray):
        return np.resize(value, x.shape).astype(x.dtype)
    return value


def _argument_mutant(
    pattern: str, label: str, edit: Edit, expected: Callable[..., Any]
) -> ValueMutant:
    def compute(sample: Sample) -> Any:
        def edit_leaf(path: str, leaf: Any) -> Any:
            is_edited = path == pattern or path_pattern(path, (argument_of(path),)) == pattern
            return edit(sample, path, leaf) if is_edited else leaf

        return call_expected(expected, sample.mesh, map_leaves(sample.inputs, edit_leaf))

    return ValueMutant(name=f"argument {pattern} -> {label}", compute=compute)


def _on_simulated_meshes(mutant: ValueMutant) -> ValueMutant:
    def compute(sample: Sample) -> Any:
        return mutant.compute(sample) if sample.case.is_simulated else sample.result

    return ValueMutant(
        name=f"{mutant.name}, on simulated meshes only", compute=compute, general=mutant
    )


def _swapped_arguments(
    samples: Sequence[Sample], expected: Callable[..., Any]
) -> Iterator[ValueMutant]:
    """Yield a mutant for every pair of arrays that can be mistaken for each other."""
    paths = [path for path, leaf in input_leaves(samples[0].inputs) if isinstance(leaf, np.ndarray)]
    for number, first in enumerate(paths):
        for second in paths[number + 1 :]:
            if all(_have_one_shape(sample, first, second) for sample in samples):
                yield _swap_mutant(first, second, expected)


def _have_one_shape(sample: Sample, first: str, second: str) -> bool:
    leaves = dict(input_leaves(sample.inputs))
    return (
        first in leaves and second in leaves and np.shape(leaves[first]) == np.shape(leaves[second])
    )


def _swap_mutant(first: str, second: str, expected: Callable[..., Any]) -> ValueMutant:
    def compute(sample: Sample) -> Any:
        leaves = dict(input_leaves(sample.inputs))
        others = {first: leaves[second], second: leaves[first]}
        inputs = map_leaves(sample.inputs, lambda path, leaf: others.get(path, leaf))
        return call_expected(expected, sample.mesh, inputs)

    return ValueMutant(name=f"arguments {first} and {second} swapped", compute=compute)


def _mesh_mutants(expected: Callable[..., Any]) -> Iterator[ValueMutant]:
    def with_mesh(edit: Callable[[Mesh], Mesh]) -> Callable[[Sample], Any]:
        return lambda sample: call_expected(expected, edit(sample.mesh), sample.inputs)

    def of_sizes(mesh: Mesh, sizes: Sequence[int]) -> Mesh:
        return Mesh(dict(zip(mesh.axis_names, sizes, strict=True)))

    yield ValueMutant(
        name="argument mesh -> of one device",
        compute=with_mesh(lambda mesh: of_sizes(mesh, [1] * len(mesh.axis_sizes))),
    )
    yield ValueMutant(
        name="argument mesh -> sizes reversed",
        compute=with_mesh(lambda mesh: of_sizes(mesh, mesh.axis_sizes[::-1])),
    )


# ---------------------------------------------------------------------------------------- results


def _result_mutants(samples: Sequence[Sample]) -> Iterator[ValueMutant]:
    example = next((sample for sample in samples if sample.result is not RAISED), None)
    if example is None:
        return
    for path, leaf in input_leaves(example.result):
        edits: dict[str, Callable[[Sample, Any], Any]] = {}
        if isinstance(leaf, (np.ndarray, np.generic, int, float)):
            edits["zeros"] = lambda sample, value: _like(value, np.zeros(np.shape(value)))
            edits["ones"] = lambda sample, value: _like(value, np.ones(np.shape(value)))
            for argument, value in input_leaves(example.inputs):
                if isinstance(value, np.ndarray) and value.shape == np.shape(leaf):
                    edits[f"argument {argument}"] = _argument_as_result(argument)
        for label, edit in edits.items():
            yield ValueMutant(
                name=f"result {path}".rstrip() + f" -> {label}", compute=_edited_result(path, edit)
            )
    if any(sample.result is RAISED for sample in samples):
        yield ValueMutant(name="result -> always ValueError", compute=lambda sample: RAISED)


def _like(value: Any, array: Array) -> Any:
    return array.astype(np.asarray(value).dtype)


def _argument_as_result(argument: str) -> Callable[[Sample, Any], Any]:
    return lambda sample, value: dict(input_leaves(sample.inputs)).get(argument, value)


def _edited_result(path: str, edit: Callable[[Sample, Any], Any]) -> Callable[[Sample], Any]:
    def compute(sample: Sample) -> Any:
        if sample.result is RAISED:
            return RAISED
        return map_leaves(
            sample.result, lambda at, leaf: edit(sample, leaf) if at == path else leaf
        )

    return compute


def results_that_follow_from(
    draws: Sequence[Sequence[Sample]], key: Callable[[Sample], Any]
) -> dict[str, bool]:
    """Return for each array of the result whether samples of one key have one value of it.

    `draws` are the samples of several seeds. A key that occurs once decides nothing.
    """
    groups: dict[tuple[str, Any], list[Any]] = {}
    for sample in (sample for samples in draws for sample in samples):
        if sample.result is not RAISED:
            for path, leaf in input_leaves(sample.result):
                groups.setdefault((path, key(sample)), []).append(leaf)
    follows: dict[str, bool] = {}
    for (path, _), values in groups.items():
        if len(values) > 1:
            is_one = all(_is_equal(value, values[0]) for value in values[1:])
            follows[path] = follows.get(path, True) and is_one
    return follows


def _is_equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return bool(np.array_equal(first, second))
    return bool(first == second)
