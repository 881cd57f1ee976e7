"""JAX's random numbers in plain NumPy, for references: the same bits from the same key.

>>> uniform(key(3), (2,))
array([0.07405257, 0.9381443 ], dtype=float32)

Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3), with
the counters of `jax_threefry_partitionable` (JAX's default): a number depends on its index only.
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
# Of a normal distribution truncated at -2 and 2; the same constant as in jax.nn.initializers.
_STDDEV_WITHIN_TWO = 0.87962566103423978


def threefry2x32(rng_key: Bits, high: Bits, low: Bits) -> tuple[Bits, Bits]:
    """Return the two words for each counter `high`, `low` under the key `rng_key`.

    >>> zero = np.zeros(1, np.uint32)
    >>> [hex(word[0]) for word in threefry2x32(np.zeros(2, np.uint32), zero, zero)]
    ['0x6b200159', '0x99ba4efe']
    """
    keys = (rng_key[0], rng_key[1], rng_key[0] ^ rng_key[1] ^ _PARITY)
    with np.errstate(over="ignore"):  # uint32 sums wrap around on purpose
        a, b = high + keys[0], low + keys[1]
        # Five groups of four rounds, each followed by an injection of the key (Salmon et al.,
        # section 3.3).
        for round_ in range(5):
            for by in _ROTATIONS[round_ % 2]:
                a = a + b
                b = (b << np.uint32(by) | b >> np.uint32(32 - by)) ^ a
            a = a + keys[(round_ + 1) % 3]
            b = b + keys[(round_ + 2) % 3] + np.uint32(round_ + 1)
    return a, b


def key(seed: int) -> Bits:
    """Return `jax.random.key(seed)` as its two words; seeds are integers below 2**32."""
    return np.array([0, seed], np.uint32)


def split(rng_key: Bits, n: int = 2) -> Bits:
    """Return `n` new keys, one per row."""
    # With jax_threefry_partitionable a key of the split is both words of one counter.
    return np.stack(threefry2x32(rng_key, *_counters((n,))), axis=-1)


def fold_in(rng_key: Bits, data: int) -> Bits:
    """Return the key folded with a number, such as a device's index on a mesh axis."""
    key_words = threefry2x32(rng_key, np.zeros(1, np.uint32), np.array([data], np.uint32))
    return np.concatenate(key_words)


def random_bits(rng_key: Bits, shape: Shape) -> Bits:
    """Return 32 random bits for each element."""
    # The partitionable generator combines both words; the older one uses them for two numbers.
    high, low = threefry2x32(rng_key, *_counters(shape))
    return high ^ low


def uniform(rng_key: Bits, shape: Shape = (), minval: float = 0.0, maxval: float = 1.0) -> Floats:
    """Return `jax.random.uniform`: float32 from `minval` up to, but excluding, `maxval`."""
    bits = random_bits(rng_key, shape) >> np.uint32(9) | np.uint32(
        0x3F800000
    )  # mantissa of a float in [1, 2)
    least, most = np.float32(minval), np.float32(maxval)
    drawn: Floats = (bits.view(np.float32) - np.float32(1)) * (most - least) + least
    return np.maximum(least, drawn)


def normal(rng_key: Bits, shape: Shape = ()) -> Floats:
    """Return `jax.random.normal`; the last digit may differ."""
    # erf_inv(-1) is minus infinity, and uniform includes its lower end.
    above_minus_one = float(np.nextafter(np.float32(-1), np.float32(0)))
    return np.float32(math.sqrt(2)) * erf_inv(uniform(rng_key, shape, above_minus_one, 1.0))


def truncated_normal(rng_key: Bits, lower: float, upper: float, shape: Shape = ()) -> Floats:
    """Return `jax.random.truncated_normal`; the last digit may differ."""
    ends = (math.erf(lower / math.sqrt(2)), math.erf(upper / math.sqrt(2)))
    drawn = np.float32(math.sqrt(2)) * erf_inv(uniform(rng_key, shape, *ends))
    infinity = np.float32(np.inf)
    least = np.nextafter(np.float32(lower), infinity)
    most = np.nextafter(np.float32(upper), -infinity)
    # Rounding may land on or beyond the ends, which JAX excludes.
    return np.asarray(np.clip(drawn, least, most), np.float32)[()]


def bernoulli(rng_key: Bits, p: float, shape: Shape = ()) -> npt.NDArray[np.bool_]:
    """Return `jax.random.bernoulli`: True with probability `p`."""
    return uniform(rng_key, shape) < np.float32(p)


def lecun_normal(rng_key: Bits, shape: Shape) -> Floats:
    """Return `jax.nn.initializers.lecun_normal()(key, shape)`; the last dim is the output's."""
    stddev = np.float32(math.sqrt(1 / math.prod(shape[:-1])) / _STDDEV_WITHIN_TWO)
    return truncated_normal(rng_key, -2.0, 2.0, shape) * stddev


_MAX_KERNEL_SIZE = 1 << 22  # elements


def linear_kernel(seed: int, din: int, dout: int) -> Floats:
    """Return the kernel of `flax.nnx.Linear(din, dout, rngs=flax.nnx.Rngs(seed))`; its bias is 0.

    Rngs folds a counter into its key for each draw, and the kernel is drawn first.
    """
    if din * dout > _MAX_KERNEL_SIZE:
        # A mutant of a reference that swaps the seed and a size would use all memory.
        raise MemoryError(f"A kernel of {din} x {dout} elements is too large to draw in NumPy.")
    return lecun_normal(fold_in(key(seed), 0), (din, dout))


# Giles, Approximating the erfinv function: for small and for large w = -log(1 - x*x).
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
    # Both polynomials are centered, for accuracy in float32.
    t = np.where(is_near, w - np.float32(2.5), np.sqrt(w) - np.float32(3))
    result: Any = np.zeros_like(x)
    for near_coefficient, far_coefficient in zip(_NEAR, _FAR, strict=True):
        result = result * t + np.where(
            is_near, np.float32(near_coefficient), np.float32(far_coefficient)
        )
    return np.asarray(result * x, np.float32)[()]


def _counters(shape: Shape) -> tuple[Bits, Bits]:
    """Return the flat index of each element, in two words."""
    index = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return (index >> np.uint64(32)).astype(np.uint32), index.astype(np.uint32)
