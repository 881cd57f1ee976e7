"""Divisors and ordered factorizations of an integer: the possible sizes of mesh axes.

>>> divisors(12)
(1, 2, 3, 4, 6, 12)
>>> list(factorizations(4, 2))
[(1, 4), (2, 2), (4, 1)]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import comb, isqrt


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order; numbers up to 2**31 take a few milliseconds."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    large = [number // divisor for divisor in reversed(small) if divisor * divisor != number]
    return (*small, *large)


def factorizations(number: int, n_factors: int) -> Iterator[tuple[int, ...]]:
    """Yield all ordered factorizations of a number into `n_factors` factors."""
    if n_factors == 1:
        yield (number,)
        return
    for first in divisors(number):
        for rest in factorizations(number // first, n_factors - 1):
            yield (first, *rest)


def count_factorizations(number: int, n_factors: int) -> int:
    """Return the number of `factorizations` without enumerating them.

    >>> count_factorizations(4096, 4), count_factorizations(7, 3), count_factorizations(1, 4)
    (455, 3, 1)
    """
    # A prime power p**k splits over n ordered factors in comb(k + n - 1, n - 1) ways (stars and
    # bars), and different primes are independent.
    count, remainder = 1, number
    for prime in range(2, isqrt(number) + 1):
        power = 0
        while remainder % prime == 0:
            remainder //= prime
            power += 1
        count *= comb(power + n_factors - 1, n_factors - 1)
        if prime * prime > remainder:  # what remains is 1 or a prime
            break
    # A remaining prime goes into any one of the factors.
    return count * (n_factors if remainder > 1 else 1)
