"""What each primitive does with the range of a value: arithmetic, comparisons, indices and sums."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from shardlab.analysis.scaling.aligned_programs import AlignedEquation
from shardlab.analysis.scaling.value_range import (
    COMPARISONS,
    UNKNOWN,
    ValueRange,
    combine,
    scale_strides,
    union,
)
from shardlab.simulator.interpreter.rules.collectives import collective_axes

if TYPE_CHECKING:
    from shardlab.analysis.scaling.range_walk import RangeWalk

Ranges = list[ValueRange]
Handler = Callable[["RangeWalk", AlignedEquation, Ranges], Ranges]


def _axis_index(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    sizes = walk.rules.n_devices(collective_axes(equation.eqns[0].params))
    bounds = ValueRange.of_bounds([(0, n - 1) for n in sizes])
    # An axis that is not scaled has the same positions on every mesh.
    is_scaled = len(set(sizes)) > 1
    strides = (1,) * len(sizes)
    return [dataclasses.replace(bounds, from_device=True, strides=strides) if is_scaled else bounds]


def _iota(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    shapes, dim = equation.params("shape"), equation.eqns[0].params["dimension"]
    return [ValueRange.of_bounds([(0, max(shape[dim] - 1, 0)) for shape in shapes])]


def _add(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    return [combine(lambda a, b: a + b, *ins)]


def _sub(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    return [combine(lambda a, b: a - b, *ins)]


def _mul(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    first, second = ins
    result = combine(lambda a, b: a * b, first, second)
    if first.from_device and second.constant:
        return [dataclasses.replace(result, strides=scale_strides(first, second).strides)]
    if second.from_device and first.constant:
        return [dataclasses.replace(result, strides=scale_strides(second, first).strides)]
    return [result]


def _neg(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    zero = ValueRange.of_bounds([(0, 0)] * len(equation.eqns))
    return [combine(lambda a, b: b - a, ins[0], zero)]


def _sign(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    zero = ValueRange.of_bounds([(0, 0)] * len(equation.eqns))
    result = combine(lambda a, b: (a > b) - (a < b), ins[0], zero)
    return [dataclasses.replace(result, strides=None)]


def _convert(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    return ins[:1]


def _compare(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    first, second = ins
    is_position = first.from_device or second.from_device
    unknown = ValueRange.of_bounds([(0, 1)] * len(equation.eqns))
    a, b = first.pairs, second.pairs
    if a is None or b is None:
        if is_position:
            _check_offset(walk, equation, first, second)
        return [unknown]
    compare = COMPARISONS[equation.name]
    outcomes = [compare(x, y) for x, y in zip(a, b, strict=True)]
    if len(set(outcomes)) > 1:
        _report_threshold(walk, equation, first, second)
    return [ValueRange.of_bounds([(0, 1) if item is None else (item, item) for item in outcomes])]


def _report_threshold(
    walk: RangeWalk, equation: AlignedEquation, first: ValueRange, second: ValueRange
) -> None:
    is_position = first.from_device or second.from_device
    constant = second.constant or first.constant
    number = f"{constant[0]:,}" if constant else "a value"
    subject = "A device's position" if is_position else "A number that depends on the mesh size"
    walk.report(
        "device_index",
        equation,
        f"{subject} is compared with {number}: on the full mesh there are cases that the scaled "
        "meshes do not have.",
    )


def _check_offset(
    walk: RangeWalk, equation: AlignedEquation, first: ValueRange, second: ValueRange
) -> None:
    """Report a position within data that is compared with a number other than a device's range.

    `ids - axis_index * size` is compared with 0 and `size` to find the elements of this device.
    """
    position, other = (first, second) if first.from_device else (second, first)
    constant = other.constant
    if constant is None:
        return  # compared with data, which has no special position
    strides = position.strides or (0,) * len(constant)
    allowed = [{0, -1, stride, stride - 1} for stride in strides]
    if not all(value in numbers for value, numbers in zip(constant, allowed, strict=True)):
        _report_threshold(walk, equation, first, second)


def _max(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    _check_bound(walk, equation, *ins)
    return [combine(max, *ins)]


def _min(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    _check_bound(walk, equation, *ins)
    return [combine(min, *ins)]


def _check_bound(
    walk: RangeWalk, equation: AlignedEquation, first: ValueRange, second: ValueRange
) -> None:
    """Report a limit that only positions of the full mesh reach."""
    a, b = first.pairs, second.pairs
    if a is None or b is None:
        if first.from_device or second.from_device:
            _check_offset(walk, equation, first, second)
    elif len({COMPARISONS["le"](x, y) for x, y in zip(a, b, strict=True)}) > 1:
        _report_threshold(walk, equation, first, second)


def _clamp(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    low, value, high = ins
    (lower,) = _max(walk, equation, [value, low])
    return _min(walk, equation, [lower, high])


def _select(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    predicate, *cases = ins
    constant = predicate.constant
    if constant is not None and len(set(constant)) == 1:
        return [cases[int(constant[0])]]
    return [union(cases)]


def _logical(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    """Return bounds of `and`, `or`, `xor`, `not`: of truth values only."""
    aval = equation.eqns[0].outvars[0].aval
    if aval.dtype != jnp.bool_:
        if any(value.from_device for value in ins):
            walk.report(
                "device_index",
                equation,
                f"The bits of a device's position are used in '{equation.name}'.",
            )
        return [UNKNOWN]
    functions: dict[str, Callable[..., Any]] = {"and": min, "or": max}
    known = all(value.pairs is not None for value in ins)
    if equation.name == "not" and known:
        one = ValueRange.of_bounds([(1, 1)] * len(equation.eqns))
        return [combine(lambda a, b: b - a, ins[0], one)]
    if equation.name in functions and known:
        return [combine(functions[equation.name], *ins)]
    return [ValueRange.of_bounds([(0, 1)] * len(equation.eqns))]


def _divide(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    """Return the bounds of a quotient; report the groups of devices that a constant makes."""
    value, divisor = ins
    aval = equation.eqns[0].outvars[0].aval
    constant, pairs = divisor.constant, value.pairs
    if not jnp.issubdtype(aval.dtype, jnp.integer) or constant is None or 0 in constant:
        if value.from_device and jnp.issubdtype(aval.dtype, jnp.integer):
            _report_division(walk, equation, "a value")
        return [value.without_bounds() if value.from_device else UNKNOWN]
    is_multiple = value.strides is not None and not any(
        stride % int(c) for stride, c in zip(value.strides, constant, strict=True)
    )
    if value.from_device and not is_multiple and not _has_same_quotients(value, constant):
        _report_division(walk, equation, f"{constant[0]:,}")
    if pairs is None:
        return [dataclasses.replace(value, strides=None)]
    bounds = ValueRange.of_bounds(
        [(math.floor(low / c), math.floor(high / c)) for (low, high), c in _zip(pairs, constant)]
    )
    strides = None
    if is_multiple and value.strides is not None:
        strides = tuple(int(stride // c) for stride, c in _zip(value.strides, constant))
    return [dataclasses.replace(value.with_bounds_of(bounds), strides=strides)]


def _remainder(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    """Return the bounds of a remainder; report one that wraps more often on the full mesh."""
    value, divisor = ins[:2]
    constant, pairs = divisor.constant, value.pairs
    if constant is None or 0 in constant:
        if value.from_device:
            _report_division(walk, equation, "a value")
        return [value.without_bounds()]
    if value.from_device and not _has_same_quotients(value, constant):
        _report_division(walk, equation, f"{constant[0]:,}")
    if pairs is None:
        return [value]
    bounds = []
    for (low, high), c in _zip(pairs, constant):
        # The remainder of the primitive has the sign of the dividend, that of jnp of the divisor.
        is_plain = equation.name == "rem"
        lowest = 0 if low >= 0 or not is_plain else max(low, 1 - abs(c))
        bounds.append((lowest, min(high, abs(c) - 1) if low >= 0 else abs(c) - 1))
    return [value.with_bounds_of(ValueRange.of_bounds(bounds))]


def _zip(first: Sequence[Any], second: Sequence[Any]) -> Any:
    return zip(first, second, strict=True)


def _has_same_quotients(value: ValueRange, constant: Sequence[Any]) -> bool:
    """Return whether a division by the constant gives the same quotients on every mesh."""
    pairs = value.pairs
    if pairs is None:
        return False
    return len({(low // c, high // c) for (low, high), c in _zip(pairs, constant)}) == 1


def _report_division(walk: RangeWalk, equation: AlignedEquation, divisor: str) -> None:
    walk.report(
        "device_index",
        equation,
        f"A device's position is divided by {divisor}, which makes groups of devices that the "
        "scaled meshes do not have.",
    )


def _index(n_operands: int) -> Handler:
    """Return the rule of a primitive that reads or writes at an index, after its operands."""

    def handle(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
        for start, dim in _indexed_dims(equation, n_operands):
            _check_index(walk, equation, ins[start], dim)
        if equation.name.startswith("scatter"):
            return [union([ins[0], ins[2]]) if equation.name == "scatter" else UNKNOWN]
        return [union(ins[:n_operands])]

    return handle


def _indexed_dims(equation: AlignedEquation, n_operands: int) -> list[tuple[int, int]]:
    params = equation.eqns[0].params
    if equation.name == "gather":
        return [(1, dim) for dim in params["dimension_numbers"].start_index_map]
    if equation.name.startswith("scatter"):
        numbers = params["dimension_numbers"]
        return [(1, dim) for dim in numbers.scatter_dims_to_operand_dims]
    n_dims = len(equation.shapes(0)[0])
    return [(n_operands + dim, dim) for dim in range(n_dims)]


def _check_index(walk: RangeWalk, equation: AlignedEquation, index: ValueRange, dim: int) -> None:
    """Report an index that lies within a table on one mesh and outside on another."""
    if index.pairs is None:
        return
    sizes = [shape[dim] for shape in equation.shapes(0)]
    is_outside = {low < 0 or high >= size for (low, high), size in _zip(index.pairs, sizes)}
    # What is outside on every mesh is clamped on every mesh; a position is not expected to be.
    if is_outside == {True, False} or (index.from_device and True in is_outside):
        subject = "A device's position" if index.from_device else "A number"
        walk.report(
            "device_index",
            equation,
            f"{subject}, up to {max(index.highs or ()):,}, is an index into {sizes[0]:,} elements, "
            "and is not within them on every mesh.",
        )


def _sum_over_devices(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    axes = collective_axes(equation.eqns[0].params)
    counts = walk.rules.n_devices(axes)
    groups = equation.eqns[0].params.get("axis_index_groups")
    if groups is not None:
        counts = tuple(len(item[0]) for item in equation.params("axis_index_groups"))
    return [walk.add_terms(equation, value, counts) for value in ins]


def _sum_of_dims(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    counts = [
        math.prod(eqn.invars[0].aval.shape) // max(math.prod(eqn.outvars[0].aval.shape), 1)
        for eqn in equation.eqns
    ]
    return [walk.add_terms(equation, ins[0], counts)]


def _cumulative_sum(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    dim = equation.eqns[0].params["axis"]
    counts = [shape[dim] for shape in equation.shapes(0)]
    # The first element is a term itself.
    return [union([ins[0], walk.add_terms(equation, ins[0], counts)])]


def _product(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    contracted = equation.eqns[0].params["dimension_numbers"][0][0]
    counts = [math.prod(shape[d] for d in contracted) for shape in equation.shapes(0)]
    terms = combine(lambda a, b: a * b, *ins)
    # Products of floats are summed in float32 or more: only integers can overflow.
    if jnp.issubdtype(equation.eqns[0].outvars[0].aval.dtype, jnp.integer):
        return [walk.add_terms(equation, terms, counts)]
    return [terms.without_bounds()]


def _permute(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    # A device that nobody sends to gets zeros.
    return [union([value, ValueRange.of_bounds([(0, 0)] * len(equation.eqns))]) for value in ins]


def _argmax(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    if ins[0].from_device and ins[0].pairs is None:
        return [UNKNOWN]
    dim = equation.eqns[0].params["axes"][0]
    return [ValueRange.of_bounds([(0, max(shape[dim] - 1, 0)) for shape in equation.shapes(0)])]


RULES: Mapping[str, Handler] = {
    "axis_index": _axis_index,
    "iota": _iota,
    **dict.fromkeys(("add", "add_any"), _add),
    "sub": _sub,
    "mul": _mul,
    "neg": _neg,
    "sign": _sign,
    "convert_element_type": _convert,
    "reduce_precision": _convert,
    **dict.fromkeys(COMPARISONS, _compare),
    "max": _max,
    "min": _min,
    "clamp": _clamp,
    "select_n": _select,
    **dict.fromkeys(("and", "or", "xor", "not"), _logical),
    "div": _divide,
    "rem": _remainder,
    "gather": _index(1),
    "dynamic_slice": _index(1),
    "dynamic_update_slice": _index(2),
    **dict.fromkeys(
        (
            "scatter",
            *(f"scatter{sign}{kind}" for sign in "-_" for kind in ("add", "mul", "min", "max")),
        ),
        _index(1),
    ),
    **dict.fromkeys(("psum", "psum_invariant", "unreduced_psum"), _sum_over_devices),
    **dict.fromkeys(
        ("reduce_scatter", "unreduced_reduce_scatter", "psum_scatter"), _sum_over_devices
    ),
    "reduce_sum": _sum_of_dims,
    "cumsum": _cumulative_sum,
    "dot_general": _product,
    "ppermute": _permute,
    **dict.fromkeys(("argmax", "argmin"), _argmax),
}
# Functions of jax.numpy that select between signs, which bounds alone would not follow.
JAX_FUNCTIONS: Mapping[str, Handler] = {"remainder": _remainder, "floor_divide": _divide}
