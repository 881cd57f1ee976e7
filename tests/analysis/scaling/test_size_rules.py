"""Numbers as functions of the axis sizes: what follows a rule, and what only looks like one."""

import math

import pytest

from shardlab.analysis.scaling.permutation_rules import are_one_grouping, is_one_permutation
from shardlab.analysis.scaling.size_rules import SizeRules

SIZES = (256, 2, 3, 4)
ONE_AXIS = SizeRules([{"x": n} for n in SIZES])
TWO_AXES = SizeRules(
    [
        {"data": 512, "model": 128},
        {"data": 2, "model": 3},
        {"data": 3, "model": 4},
        {"data": 4, "model": 2},
    ]
)


@pytest.mark.parametrize(
    "function",
    [
        lambda n: 7,
        lambda n: 32 * n,
        lambda n: n - 1,
        lambda n: 3072 // n,
        lambda n: 1 / n,
        lambda n: 1 - 1 / n,
        lambda n: 0.1 / math.sqrt(n),
        lambda n: math.log2(n),
        lambda n: float("nan"),
    ],
)
def test_a_number_that_is_a_function_of_the_axis_size_follows_a_rule(function):
    assert ONE_AXIS.follows([function(n) for n in SIZES])


@pytest.mark.parametrize(
    "values",
    [
        (2, 1, 1, 1),  # if axis_size > 100
        (8, 2, 3, 4),  # min(axis_size, 8)
        (65536, 4, 9, 15),
        (0.125, 0.5, 1 / 3, 0.25),  # max(1 / axis_size, 0.125)
        (math.inf, 1.0, 1.0, 1.0),
    ],
)
def test_a_number_that_is_special_on_the_full_mesh_follows_no_rule(values):
    assert not ONE_AXIS.follows(values)


@pytest.mark.parametrize(
    "function",
    [
        lambda d, m: d * m,
        lambda d, m: 16 * m + 1,
        lambda d, m: 1 / (d * m),
        lambda d, m: 1536 * d // (m * 4),
    ],
)
def test_products_and_quotients_of_two_axes_are_rules(function):
    values = [function(sizes["data"], sizes["model"]) for sizes in TWO_AXES.sizes]
    assert TWO_AXES.follows(values)


def test_an_axis_product_that_is_the_same_on_every_small_mesh_is_no_rule():
    # With sizes 2, 3 and 4 in rotation the product is 24 on each, which would fit any number.
    rotated = [(2, 3, 4), (3, 4, 2), (4, 2, 3)]
    rules = SizeRules([dict(zip("xyz", sizes, strict=True)) for sizes in [(64, 64, 16), *rotated]])
    assert not rules.follows((2, 1, 1, 1))


def shifted(n, k):
    return [(i, (i + k) % n) for i in range(n)]


@pytest.mark.parametrize(
    "permutation",
    [
        lambda n: shifted(n, 1),
        lambda n: shifted(n, -1),
        lambda n: [(i, i + 1) for i in range(n - 1)],
        lambda n: [(i, n - 1 - i) for i in range(n)],
        lambda n: [(0, 1)],
        lambda n: [],
    ],
)
def test_a_shift_or_a_reversal_is_one_rule_on_every_size(permutation):
    assert is_one_permutation([permutation(n) for n in SIZES], SIZES, ONE_AXIS)


@pytest.mark.parametrize(
    "permutation",
    [
        lambda n: shifted(n, 1) if n <= 8 else shifted(n, 2),
        lambda n: shifted(n, 1) if n <= 8 else shifted(8, 1),
        lambda n: shifted(n, 1)[: 200 if n > 200 else n],
    ],
)
def test_a_permutation_that_differs_on_the_full_mesh_is_no_rule(permutation):
    assert not is_one_permutation([permutation(n) for n in SIZES], SIZES, ONE_AXIS)


def test_an_exchange_with_a_neighbor_is_a_rule_on_powers_of_two():
    sizes = (256, 2, 4, 8)
    rules = SizeRules([{"x": n} for n in sizes])
    assert is_one_permutation([[(i, i ^ 1) for i in range(n)] for n in sizes], sizes, rules)


def test_device_groups_of_one_size_are_a_rule_and_one_half_is_too():
    sizes = (256, 2, 4, 8)
    rules = SizeRules([{"x": n} for n in sizes])
    pairs = [[[i, i + 1] for i in range(0, n, 2)] for n in sizes]
    halves = [[list(range(n // 2)), list(range(n // 2, n))] for n in sizes]
    assert are_one_grouping(pairs, sizes, rules)
    assert are_one_grouping(halves, sizes, rules)
    mixed = [pairs[0] if n > 8 else halves[i] for i, n in enumerate(sizes)]
    assert not are_one_grouping(mixed, sizes, rules)
