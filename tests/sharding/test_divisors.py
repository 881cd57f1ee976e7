"""Divisors and products, against counting."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from shardlab.sharding.factors import divisors, n_products, products


@given(st.integers(1, 5000))
def test_divisors_are_all_numbers_that_divide(number):
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


@given(st.integers(1, 400), st.integers(1, 4))
def test_products_are_different_and_as_many_as_counted(number, n_factors):
    found = list(products(number, n_factors))
    assert len(set(found)) == len(found) == n_products(number, n_factors)
    assert all(len(each) == n_factors and prod(each) == number for each in found)


def test_the_largest_number_of_devices_is_counted_at_once():
    assert n_products(2**31 - 1, 4) == 4  # a prime
    assert divisors(2**31 - 1) == (1, 2**31 - 1)
