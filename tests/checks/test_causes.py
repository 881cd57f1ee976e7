"""Causes: each is recognized from the numbers alone, and told apart from what looks like it."""

from __future__ import annotations

import numpy as np
import pytest

from shardlab.checks import causes
from shardlab.checks.tolerance import Comparison, is_close, result_tolerance, rounding_tolerance
from shardlab.simulator.run_records import OutputLeaf, OutputLineage

RIGHT = np.array([[3.0, -1.0, 4.0], [1.5, 9.0, -2.0], [6.0, 5.0, 3.5], [8.0, -9.5, 7.0]])
ATOL = 1e-9


def on(mesh, actual, expected=RIGHT):
    return Comparison(tuple(mesh.items()), expected, np.asarray(actual), ATOL)


def over_data(change, sizes=(2, 4)):
    """Return comparisons on meshes of one axis, with `change(n)` as the actual array."""
    return [on({"data": n}, change(n)) for n in sizes]


def test_a_factor_of_n_names_its_axis():
    assert causes.factor_of_n(over_data(lambda n: n * RIGHT)) == ("data",)
    both = [on({"data": d, "model": m}, m * RIGHT) for d, m in [(2, 1), (1, 2), (2, 4)]]
    assert causes.factor_of_n(both) == ("model",)
    product = [on({"data": d, "model": m}, d * m * RIGHT) for d, m in [(2, 1), (1, 2), (2, 4)]]
    assert causes.factor_of_n(product) == ("data", "model")


@pytest.mark.parametrize(
    "change",
    [
        lambda n: RIGHT,
        lambda n: 2 * RIGHT,
        lambda n: n * RIGHT + 1e-6,
        lambda n: n * RIGHT[::-1],
        lambda n: RIGHT / n,
    ],
    ids=["right", "always two", "nearly", "and reversed", "the inverse"],
)
def test_what_is_no_factor_of_n(change):
    assert causes.factor_of_n(over_data(change)) is None


def test_a_factor_is_refuted_by_a_mesh_where_its_axis_has_one_device():
    comparisons = [on({"data": 2, "model": 1}, 2 * RIGHT), on({"data": 1, "model": 2}, 2 * RIGHT)]
    # Both axes together explain it: two devices in either case.
    assert causes.factor_of_n(comparisons) == ("data", "model")
    comparisons = [on({"data": 4, "model": 1}, 4 * RIGHT), on({"data": 1, "model": 3}, 4 * RIGHT)]
    assert causes.factor_of_n(comparisons) is None


def test_divided_by_n():
    assert causes.divided_by_n(over_data(lambda n: RIGHT / n)) == ("data",)
    assert causes.divided_by_n(over_data(lambda n: RIGHT / 2)) is None
    assert causes.divided_by_n(over_data(lambda n: n * RIGHT)) is None


def test_integers_are_compared_as_numbers():
    integers = np.array([3, 5, 8])
    assert causes.factor_of_n([on({"data": 3}, 3 * integers, integers)]) == ("data",)
    assert causes.factor_of_n([on({"data": 3}, 3 * integers + [0, 0, 1], integers)]) is None


def test_shards_permuted_along_any_dimension():
    assert causes.shards_permuted(over_data(lambda n: np.roll(RIGHT, 4 // n, 0))) == ("data",)
    columns = [on({"data": 3}, RIGHT[:, [2, 0, 1]])]
    assert causes.shards_permuted(columns) == ("data",)


@pytest.mark.parametrize(
    "change",
    [
        lambda n: RIGHT,
        lambda n: RIGHT[::-1] * 2,
        lambda n: np.concatenate([RIGHT[:2], RIGHT[:2]]),
        lambda n: RIGHT[[1, 0, 3, 2]] if n == 2 else RIGHT[::-1],
    ],
    ids=["right", "changed too", "one shard twice", "within a shard"],
)
def test_what_is_no_permutation_of_shards(change):
    assert causes.shards_permuted(over_data(change)) is None


def test_swapped_mesh_axes_show_only_where_both_have_devices():
    swapped = RIGHT.reshape(2, 2, 3).swapaxes(0, 1).reshape(4, 3)
    comparisons = [
        on({"data": 2, "model": 1}, RIGHT),
        on({"data": 1, "model": 2}, RIGHT),
        on({"data": 2, "model": 2}, swapped),
    ]
    assert causes.shards_permuted(comparisons) == ("data", "model")


def test_only_shard_0_is_right():
    def change(n):
        wrong = RIGHT + 0.25
        wrong[: 4 // n] = RIGHT[: 4 // n]
        return wrong

    assert causes.only_shard_0(over_data(change)) == ("data",)
    last = [on({"data": 2}, np.concatenate([RIGHT[:2] + 1, RIGHT[2:]]))]
    assert causes.only_shard_0(last) is None
    one_of_four = RIGHT.copy()
    one_of_four[1] += 1
    assert causes.only_shard_0([on({"data": 4}, one_of_four)]) is None


def test_the_same_random_block_on_every_shard():
    repeated = [on({"data": 2}, np.tile(RIGHT[:2], (2, 1)))]
    assert causes.same_random_numbers(repeated) == ("data",)
    # Dropout: what is kept differs, what is dropped repeats; on one device nothing does.
    dropped = RIGHT * np.array([1, 0, 1, 0])[:, None]
    expected = RIGHT * np.array([1, 0, 0, 1])[:, None]
    assert causes.same_random_numbers([on({"data": 2}, dropped, expected)]) == ("data",)
    assert causes.same_random_numbers([on({"data": 2}, expected, dropped)]) is None


def test_what_repeats_on_one_device_too_is_not_random():
    tiled = np.tile(RIGHT[:2], (2, 1))
    assert causes.same_random_numbers([on({"data": 2}, tiled + 1, tiled)]) is None
    assert causes.same_random_numbers([on({"data": 2}, RIGHT + 1)]) is None


def test_a_bias_counted_n_times_needs_two_sizes_or_the_argument():
    bias = np.array([0.5, -0.25, 2.0])
    comparisons = over_data(lambda n: RIGHT + (n - 1) * bias)
    assert causes.bias_n_times(comparisons) == (("data",), "")
    assert causes.bias_n_times(comparisons[:1]) is None
    assert causes.bias_n_times(comparisons[:1], {"w": RIGHT, "b": bias}) == (("data",), "b")
    assert causes.bias_n_times(over_data(lambda n: RIGHT + n * n * bias)) is None
    assert causes.bias_n_times(over_data(lambda n: RIGHT)) is None
    assert causes.bias_n_times(over_data(lambda n: RIGHT * np.nan)) is None


def test_rounding_beside_an_argument_of_zeros_is_no_bias():
    """An update by Adam moves a bias of zeros by nearly the same on any mesh."""
    comparisons = [on({"data": n}, RIGHT + 3 * ATOL * (n - 1)) for n in (2, 4)]
    assert causes.bias_n_times(comparisons, {"b": np.zeros(3)}) is None
    bias = np.array([0.5, -0.25, 2.0])
    differ = [on({"data": 2}, RIGHT + bias), on({"data": 4}, RIGHT + 3 * bias + 1e-6)]
    assert causes.bias_n_times(differ, {"b": bias}) is None


def test_all_but_an_argument_may_be_scaled():
    weights = np.array([0.5, -0.25, 2.0])
    moved = over_data(lambda n: weights + n * (RIGHT - weights))
    assert causes.factor_beside(moved[:1], {"x": RIGHT, "w": weights}) == (
        "factor_of_n", ("data",), "w",
    )  # fmt: skip
    less = over_data(lambda n: weights + (RIGHT - weights) / n)
    assert causes.factor_beside(less, {"w": weights}) == ("divided_by_n", ("data",), "w")
    assert causes.factor_beside(moved, {"w": weights + 0.1}) is None
    assert causes.factor_beside(over_data(lambda n: n * RIGHT), {"w": np.zeros(3)}) is None
    assert causes.factor_beside(over_data(lambda n: RIGHT + n * n), {"w": weights}) is None


def test_a_sum_of_means_is_closer_when_divided():
    near = np.array([1.01, 0.97, 1.02])
    assert causes.is_sum_over(over_data(lambda n: n * RIGHT * near), ("data",))
    assert not causes.is_sum_over(over_data(lambda n: RIGHT * near), ("data",))


# ------------------------------------------------------------------------------------- tolerances


@pytest.mark.parametrize(
    ("dtype", "eps", "off", "agrees"),
    [
        ("float32", 1.2e-7, 2e-6, True),
        ("float32", 1.2e-7, 1e-4, False),
        ("bfloat16", 7.8e-3, 0.05, True),
        ("bfloat16", 7.8e-3, 0.2, False),
    ],
)
def test_floats_may_differ_by_the_order_of_a_sum(dtype, eps, off, agrees):
    leaf = OutputLeaf(value=np.array([1.0, 0.25]), dtype=dtype, lineage=OutputLineage(eps=eps))
    actual = leaf.value + np.array([0.0, off])
    assert is_close(actual, leaf.value, result_tolerance(leaf)) is agrees


def test_what_rounding_does_to_a_result_widens_its_tolerance():
    """A sum of large terms that nearly cancel: its roundings are those of the terms."""
    steady = OutputLeaf(value=np.array(1e-3), dtype="float32", lineage=OutputLineage(eps=1.2e-7))
    shaky = OutputLeaf(
        value=np.array(1e-3),
        dtype="float32",
        noise=np.array(1e-6),
        lineage=OutputLineage(eps=1.2e-7),
    )
    assert not is_close(np.array(1.01e-3), steady.value, result_tolerance(steady))
    assert is_close(np.array(1.01e-3), shaky.value, result_tolerance(shaky))


def test_integers_are_exact_and_nan_equals_nan():
    integers = OutputLeaf(value=np.array([3, 4]), dtype="int32", lineage=OutputLineage(eps=1.2e-7))
    assert result_tolerance(integers) == 0
    assert not is_close(np.array([3, 5]), integers.value, 0.0)
    odd = np.array([np.nan, np.inf, 1.0])
    assert is_close(odd, odd.copy(), rounding_tolerance(odd, 1e-7))
    assert not is_close(np.array([np.nan, -np.inf, 1.0]), odd, 1e-3)
    assert not is_close(np.array([2.0, np.inf, 1.0]), odd, 1e-3)


def test_many_shards_are_looked_up_and_not_compared_one_by_one():
    expected = np.random.default_rng(3).normal(size=(20_000, 2))
    rolled = [on({"data": 20_000}, np.roll(expected, 1, 0), expected)]
    assert causes.shards_permuted(rolled) == ("data",)
    changed = [on({"data": 20_000}, expected + np.arange(20_000)[:, None], expected)]
    assert causes.shards_permuted(changed) is None
    same = [on({"data": 20_000}, np.zeros_like(expected), np.ones_like(expected))]
    assert causes.shards_permuted(same) is None


def test_permuted_shards_may_hold_nan_and_infinity():
    expected = np.array([1.0, np.nan, np.inf, -np.inf])
    assert causes.shards_permuted([on({"data": 4}, expected[::-1], expected)]) == ("data",)
