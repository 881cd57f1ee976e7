"""Divisors and factorizations, against brute force."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from shardlab.sharding.factors import count_factorizations, divisors, factorizations


@given(st.integers(1, 5000))
def test_divisors_are_all_numbers_that_divide_evenly(number):
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


@given(st.integers(1, 400), st.integers(1, 4))
def test_products_are_different_and_as_many_as_counted(number, n_factors):
    products = list(factorizations(number, n_factors))
    assert len(set(products)) == len(products) == count_factorizations(number, n_factors)
    assert all(len(factors) == n_factors and prod(factors) == number for factors in products)


def test_the_largest_number_of_devices_takes_no_time():
    assert count_factorizations(2**31 - 1, 4) == 4  # a prime
    assert divisors(2**31 - 1) == (1, 2**31 - 1)
