"""FLOPs per device of a jaxpr, times the lengths of its loops.

A matrix product is 2 M N K, an elementwise operation 1 per element of its result, a reduction 1 per
element of its operand; moves, casts and collectives are 0. Inside a shard_map shapes are those of
one device. Of a cond the most expensive branch counts, of a while loop one iteration.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr

# A note of the trace.
WHILE_LOOP_NOTE = "FLOPs: one iteration of each while loop is counted, as its length is unknown."


@dataclasses.dataclass(frozen=True)
class Flops:
    """A count, how much of it is outside any shard_map, and whether it contains a while loop."""

    total: int = 0
    outside: int = 0
    has_while: bool = False

    def __add__(self, addend: Flops) -> Flops:
        return Flops(
            self.total + addend.total,
            self.outside + addend.outside,
            self.has_while or addend.has_while,
        )

    def scaled(self, count: int) -> Flops:
        return Flops(self.total * count, self.outside * count, self.has_while)


def count_jaxpr_flops(closed_jaxpr: Any) -> Flops:
    """Return the FLOPs of one execution on one device."""
    # The cache holds the jaxprs too: a jaxpr that is freed could pass its id to another one.
    return _count_jaxpr(closed_jaxpr, {})


def count_equation_flops(eqn: Any) -> int:
    """Return the FLOPs of one equation that contains no jaxpr; 0 for one that moves data."""
    count = _FLOPS_BY_PRIMITIVE.get(eqn.primitive.name)
    if count is not None:
        return count(eqn)
    return _result_size(eqn) if eqn.outvars and _jax.is_elementwise(eqn.primitive) else 0


FlopsCache = dict[int, tuple[Any, Flops]]


def _count_jaxpr(jaxpr: Any, cache: FlopsCache) -> Flops:
    inner, _ = _jax.open_jaxpr(jaxpr)
    if id(inner) not in cache:
        n_here, nested = 0, Flops()
        for eqn in inner.eqns:
            count = _FLOPS_BY_PRIMITIVE.get(eqn.primitive.name)
            if count is not None:
                n_here += count(eqn)
            else:
                nested += _count_nested(eqn, cache)
        cache[id(inner)] = inner, nested + Flops(n_here, n_here)
    return cache[id(inner)][1]


def _count_nested(eqn: Any, cache: FlopsCache) -> Flops:
    """Count an equation that contains jaxprs, or that the table does not have."""
    name, params = eqn.primitive.name, eqn.params
    if name == "shard_map":
        # Shapes inside are local, so nothing of it is counted as global work.
        return dataclasses.replace(_count_jaxpr(params["jaxpr"], cache), outside=0)
    if name == "scan":
        return _count_jaxpr(params["jaxpr"], cache).scaled(params["length"])
    if name == "while":
        iteration = _count_jaxpr(params["cond_jaxpr"], cache) + _count_jaxpr(
            params["body_jaxpr"], cache
        )
        return dataclasses.replace(iteration, has_while=True)
    if name == "cond":
        branches = [_count_jaxpr(branch, cache) for branch in params["branches"]]
        # Like the bytes of a trace: the most expensive branch is an upper bound.
        return max(branches, key=lambda branch: branch.total)
    is_solve = name == "custom_linear_solve"
    # Of a linear solve only the solver runs; the other functions are for derivatives.
    body = params["jaxprs"].solve if is_solve else called_jaxpr(name, params)
    if body is not None:
        return _count_jaxpr(body, cache)
    n_flops = _result_size(eqn) if _jax.is_elementwise(eqn.primitive) else 0
    return Flops(n_flops, n_flops)


# ---------------------------------------------------------------------------------------- the table

Count = Callable[[Any], int]


def _element_count(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def _result_size(eqn: Any) -> int:
    return _element_count(eqn.outvars[0])


def _operand_size(eqn: Any) -> int:
    return _element_count(eqn.invars[0])


def _no_flops(eqn: Any) -> int:
    return 0


def _matmul_flops(eqn: Any) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return 2 * _result_size(eqn) * _size_of_dims(eqn.invars[0].aval.shape, contracted)


def _convolution_flops(eqn: Any) -> int:
    kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
    # rhs_spec is (out features, in features of one group, window ...): each output element needs
    # all of the kernel but its first dimension.
    return 2 * _result_size(eqn) * _size_of_dims(kernel, spec[1:])


def _window_flops(eqn: Any) -> int:
    return _result_size(eqn) * int(math.prod(eqn.params["window_dimensions"]))


def _sort_flops(eqn: Any) -> int:
    length = int(eqn.invars[0].aval.shape[eqn.params["dimension"]])
    return _operand_size(eqn) * max(1, math.ceil(math.log2(max(length, 1))))


def _fft_flops(eqn: Any) -> int:
    n = int(math.prod(eqn.params["fft_lengths"]))
    # The usual 5 n log2 n of a radix-2 FFT.
    return 5 * max(_operand_size(eqn), _result_size(eqn)) * max(1, math.ceil(math.log2(max(n, 1))))


def _factorization_flops(share: float) -> Count:
    """Return a counter for a factorization of (..., m, n): a share of 2 m n min(m, n)."""

    def count_flops(eqn: Any) -> int:
        *batch, m, n = eqn.invars[0].aval.shape
        return int(share * 2 * math.prod(batch) * m * n * min(m, n))

    return count_flops


def _triangular_solve_flops(eqn: Any) -> int:
    n = int(eqn.invars[0].aval.shape[-1])
    return n * _element_count(eqn.invars[1])


def _scatter_flops(eqn: Any) -> int:
    return _element_count(eqn.invars[2])


def _size_of_dims(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


_FLOPS_BY_PRIMITIVE: dict[str, Count] = {
    "dot_general": _matmul_flops,
    "conv_general_dilated": _convolution_flops,
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window_flops),
    **dict.fromkeys(("scatter-add", "scatter_add", "scatter-mul", "scatter_mul"), _scatter_flops),
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
        _operand_size,
    ),
    "integer_pow": _result_size,
    "select_n": _result_size,
    "sort": _sort_flops,
    "top_k": _operand_size,
    "fft": _fft_flops,
    "cholesky": _factorization_flops(1 / 6),
    "lu": _factorization_flops(1 / 3),
    "qr": _factorization_flops(2 / 3),
    "eigh": _factorization_flops(9 / 2),
    "svd": _factorization_flops(11),
    "triangular_solve": _triangular_solve_flops,
    # `is_elementwise` says yes to some of these, but they only move or reinterpret data.
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
        _no_flops,
    ),
}
