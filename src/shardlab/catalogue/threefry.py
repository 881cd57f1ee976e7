"""JAX's random numbers in plain NumPy, for references: the same bits from the same key.

>>> uniform(key(3), (2,))
array([0.07405257, 0.9381443 ], dtype=float32)

Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3), counting
as JAX does by default (`jax_threefry_partitionable`): each number depends on its place alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]
Shape = tuple[int, ...]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
# Of a normal distribution cut at -2 and 2, as jax.nn.initializers has it.
_STDDEV_WITHIN_TWO = 0.87962566103423978


def threefry2x32(at: Bits, high: Bits, low: Bits) -> tuple[Bits, Bits]:
    """Return the two words for each counter `high`, `low` under the key `at`.

    >>> zero = np.zeros(1, np.uint32)
    >>> [hex(word[0]) for word in threefry2x32(np.zeros(2, np.uint32), zero, zero)]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = (at[0], at[1], at[0] ^ at[1] ^ _PARITY)
    with np.errstate(over="ignore"):  # of scalars: sums are meant to go round
        a, b = high + keys[0], low + keys[1]
        for round_ in range(5):
            for by in _ROTATIONS[round_ % 2]:
                a = a + b
                b = (b << np.uint32(by) | b >> np.uint32(32 - by)) ^ a
            a = a + keys[(round_ + 1) % 3]
            b = b + keys[(round_ + 2) % 3] + np.uint32(round_ + 1)
    return a, b


def key(seed: int) -> Bits:
    """Return `jax.random.key(seed)` as its two words; seeds are whole numbers below 2**32."""
    return np.array([0, seed], np.uint32)


def split(at: Bits, n: int = 2) -> Bits:
    """Return `n` new keys, one in each row."""
    return np.stack(threefry2x32(at, *_counters((n,))), axis=-1)


def fold_in(at: Bits, data: int) -> Bits:
    """Return the key that belongs to a number, such as a device's place on a mesh axis."""
    words = threefry2x32(at, np.zeros(1, np.uint32), np.array([data], np.uint32))
    return np.concatenate(words)


def random_bits(at: Bits, shape: Shape) -> Bits:
    """Return 32 random bits for each element."""
    high, low = threefry2x32(at, *_counters(shape))
    return high ^ low


def uniform(at: Bits, shape: Shape = (), minval: float = 0.0, maxval: float = 1.0) -> Floats:
    """Return `jax.random.uniform`: float32 from `minval` up to, and without, `maxval`."""
    bits = random_bits(at, shape) >> np.uint32(9) | np.uint32(0x3F800000)  # from 1.0 up to 2.0
    least, most = np.float32(minval), np.float32(maxval)
    drawn: Floats = (bits.view(np.float32) - np.float32(1)) * (most - least) + least
    return np.maximum(least, drawn)


def normal(at: Bits, shape: Shape = ()) -> Floats:
    """Return `jax.random.normal`; the last digit may differ."""
    above_minus_one = float(np.nextafter(np.float32(-1), np.float32(0)))
    return np.float32(math.sqrt(2)) * erf_inv(uniform(at, shape, above_minus_one, 1.0))


def truncated_normal(at: Bits, lower: float, upper: float, shape: Shape = ()) -> Floats:
    """Return `jax.random.truncated_normal`; the last digit may differ."""
    ends = (math.erf(lower / math.sqrt(2)), math.erf(upper / math.sqrt(2)))
    drawn = np.float32(math.sqrt(2)) * erf_inv(uniform(at, shape, *ends))
    infinity = np.float32(np.inf)
    least = np.nextafter(np.float32(lower), infinity)
    most = np.nextafter(np.float32(upper), -infinity)
    return np.asarray(np.clip(drawn, least, most), np.float32)[()]


def bernoulli(at: Bits, p: float, shape: Shape = ()) -> npt.NDArray[np.bool_]:
    """Return `jax.random.bernoulli`: True with probability `p`."""
    return uniform(at, shape) < np.float32(p)


def lecun_normal(at: Bits, shape: Shape) -> Floats:
    """Return `jax.nn.initializers.lecun_normal()(key, shape)`; the last axis is the output's."""
    stddev = np.float32(math.sqrt(1 / math.prod(shape[:-1])) / _STDDEV_WITHIN_TWO)
    return truncated_normal(at, -2.0, 2.0, shape) * stddev


def linear_kernel(seed: int, din: int, dout: int) -> Floats:
    """Return the kernel of `flax.nnx.Linear(din, dout, rngs=flax.nnx.Rngs(seed))`; its bias is 0.

    Rngs counts what it has drawn, and the kernel comes first.
    """
    return lecun_normal(fold_in(key(seed), 0), (din, dout))


# Giles, Approximating the erfinv function: in x, for small and for large w = -log(1 - x*x).
_NEAR = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_FAR = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def erf_inv(x: Floats) -> Floats:
    """Return the inverse of the error function, by the polynomials that XLA uses for float32.

    >>> float(erf_inv(np.float32(0.5)))
    0.4769362807273865
    """
    x = np.asarray(x, np.float32)
    w = -np.log1p(-x * x)
    is_near = w < np.float32(5)
    at = np.where(is_near, w - np.float32(2.5), np.sqrt(w) - np.float32(3))
    result: Any = np.zeros_like(x)
    for near, far in zip(_NEAR, _FAR, strict=True):
        result = result * at + np.where(is_near, np.float32(near), np.float32(far))
    return np.asarray(result * x, np.float32)[()]


def _counters(shape: Shape) -> tuple[Bits, Bits]:
    """Return the place of each element, in two words."""
    at = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return (at >> np.uint64(32)).astype(np.uint32), at.astype(np.uint32)
