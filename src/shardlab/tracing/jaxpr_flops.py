"""FLOPs of one device: what a program computes, loops multiplied.

A product of matrices is 2 M N K, an elementwise operation 1 for each element of its result, a
reduction 1 for each element of its operand; moving, converting and communicating are 0. Inside of a
shard_map shapes are those of one device. Of a cond the dearest branch counts, of a while one turn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr

# Told to the person where it happened.
ONE_TURN = "FLOPs: of a while loop, whose count is not known, one turn is counted."


@dataclasses.dataclass(frozen=True)
class Flops:
    """A count, what of it stands outside of any shard_map, and whether a while loop is in it."""

    total: int = 0
    outside: int = 0
    has_while: bool = False

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            self.total + other.total,
            self.outside + other.outside,
            self.has_while or other.has_while,
        )

    def times(self, count: int) -> Flops:
        return Flops(self.total * count, self.outside * count, self.has_while)


def flops(closed_jaxpr: Any) -> Flops:
    """Return the FLOPs of one execution on one device."""
    # Kept with the jaxpr itself, so that no other can get its id meanwhile.
    return _jaxpr(closed_jaxpr, {})


Remembered = dict[int, tuple[Any, Flops]]


def _jaxpr(jaxpr: Any, remembered: Remembered) -> Flops:
    inner, _ = _jax.open_jaxpr(jaxpr)
    if id(inner) not in remembered:
        n_here, others = 0, Flops()
        for eqn in inner.eqns:
            count = _TABLE.get(eqn.primitive.name)
            if count is not None:
                n_here += count(eqn)
            else:
                others += _other(eqn, remembered)
        remembered[id(inner)] = inner, others + Flops(n_here, n_here)
    return remembered[id(inner)][1]


def _other(eqn: Any, remembered: Remembered) -> Flops:
    """Count an equation that holds jaxprs, or that the table does not name."""
    name, params = eqn.primitive.name, eqn.params
    if name == "shard_map":
        return dataclasses.replace(_jaxpr(params["jaxpr"], remembered), outside=0)
    if name == "scan":
        return _jaxpr(params["jaxpr"], remembered).times(params["length"])
    if name == "while":
        turn = _jaxpr(params["cond_jaxpr"], remembered) + _jaxpr(params["body_jaxpr"], remembered)
        return dataclasses.replace(turn, has_while=True)
    if name == "cond":
        branches = [_jaxpr(branch, remembered) for branch in params["branches"]]
        return max(branches, key=lambda branch: branch.total)
    is_solve = name == "custom_linear_solve"
    body = params["jaxprs"].solve if is_solve else called_jaxpr(name, params)
    if body is not None:
        return _jaxpr(body, remembered)
    n_flops = _result(eqn) if _jax.is_elementwise(eqn.primitive) else 0
    return Flops(n_flops, n_flops)


# ---------------------------------------------------------------------------------------- the table

Count = Callable[[Any], int]


def _size(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def _result(eqn: Any) -> int:
    return _size(eqn.outvars[0])


def _operand(eqn: Any) -> int:
    return _size(eqn.invars[0])


def _nothing(eqn: Any) -> int:
    return 0


def _product(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return 2 * _result(eqn) * _sizes(eqn.invars[0].aval.shape, contracted)


def _convolution(eqn: Any) -> int:
    kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
    # Of the kernel (out features, in features of one group, window ...) each output needs all
    # but the first.
    return 2 * _result(eqn) * _sizes(kernel, spec[1:])


def _window(eqn: Any) -> int:
    return _result(eqn) * int(math.prod(eqn.params["window_dimensions"]))


def _sort(eqn: Any) -> int:
    length = int(eqn.invars[0].aval.shape[eqn.params["dimension"]])
    return _operand(eqn) * max(1, math.ceil(math.log2(max(length, 1))))


def _transform(eqn: Any) -> int:
    n = int(math.prod(eqn.params["fft_lengths"]))
    return 5 * max(_operand(eqn), _result(eqn)) * max(1, math.ceil(math.log2(max(n, 1))))


def _cubic(share: float) -> Count:
    """Count a factorisation of matrices (..., m, n): share of 2 m n min(m, n)."""

    def count(eqn: Any) -> int:
        *batch, m, n = eqn.invars[0].aval.shape
        return int(share * 2 * math.prod(batch) * m * n * min(m, n))

    return count


def _solve(eqn: Any) -> int:
    n = int(eqn.invars[0].aval.shape[-1])
    return n * _size(eqn.invars[1])


def _updates(eqn: Any) -> int:
    return _size(eqn.invars[2])


def _sizes(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


_TABLE: dict[str, Count] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window),
    **dict.fromkeys(("scatter-add", "scatter_add", "scatter-mul", "scatter_mul"), _updates),
    **dict.fromkeys(
        (
            "reduce_sum",
            "reduce_max",
            "reduce_min",
            "reduce_prod",
            "reduce_and",
            "reduce_or",
            "reduce_xor",
            "argmax",
            "argmin",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "cumlogsumexp",
        ),
        _operand,
    ),
    "integer_pow": _result,
    "select_n": _result,
    "sort": _sort,
    "top_k": _operand,
    "fft": _transform,
    "cholesky": _cubic(1 / 6),
    "lu": _cubic(1 / 3),
    "qr": _cubic(2 / 3),
    "eigh": _cubic(9 / 2),
    "svd": _cubic(11),
    "triangular_solve": _solve,
    # Elementwise for JAX's batching, but they only move or reinterpret.
    **dict.fromkeys(
        (
            "convert_element_type",
            "reduce_precision",
            "bitcast_convert_type",
            "copy",
            "copy_p",
            "real",
            "imag",
            "stop_gradient",
            "optimization_barrier",
            "iota",
            "broadcast_in_dim",
            "reshape",
            "transpose",
            "squeeze",
            "slice",
            "dynamic_slice",
            "dynamic_update_slice",
            "concatenate",
            "pad",
            "gather",
            "scatter",
            "rev",
            "pvary",
            "pcast",
            "sharding_constraint",
            "device_put",
            "random_wrap",
            "random_unwrap",
        ),
        _nothing,
    ),
}
