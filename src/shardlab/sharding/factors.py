"""Divisors of a whole number, and the ways to write it as a product.

>>> divisors(12)
(1, 2, 3, 4, 6, 12)
>>> list(products(4, 2))
[(1, 4), (2, 2), (4, 1)]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import comb, isqrt


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return every divisor, in order; numbers to 2**31 take a few milliseconds."""
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    large = [number // each for each in reversed(small) if each * each != number]
    return (*small, *large)


def products(number: int, n_factors: int) -> Iterator[tuple[int, ...]]:
    """Yield the number as a product of so many factors, in every order."""
    if n_factors == 1:
        yield (number,)
        return
    for first in divisors(number):
        for rest in products(number // first, n_factors - 1):
            yield (first, *rest)


def n_products(number: int, n_factors: int) -> int:
    """Return how many `products` there are, without making them.

    >>> n_products(4096, 4), n_products(7, 3), n_products(1, 4)
    (455, 3, 1)
    """
    count, left = 1, number
    for prime in range(2, isqrt(number) + 1):
        power = 0
        while left % prime == 0:
            left //= prime
            power += 1
        count *= comb(power + n_factors - 1, n_factors - 1)
        if prime * prime > left:
            break
    return count * (n_factors if left > 1 else 1)
