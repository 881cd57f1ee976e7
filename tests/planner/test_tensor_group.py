"""Tensor groups: every tensor is in exactly one, whatever numbers its path has."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.planner.tensor_group import Tensor, TensorGroup, group_tensors, parse_tensor_group
from shardlab.sharding.dtype import parse_dtype

BF16, F32 = parse_dtype("bf16"), parse_dtype("f32")


def groups_of(*paths, shape=(3, 5)):
    return group_tensors(Tensor(path, shape, BF16) for path in paths)


@pytest.mark.parametrize(
    ("paths", "name", "text"),
    [
        (("layers.0.up", "layers.1.up"), "layers.*.up", "0..1"),
        (("block_12/w", "block_13/w", "block_14/w"), "block_*/w", "12..14"),
        (("h.0.attn.c_attn", "h.1.attn.c_attn"), "h.*.attn.c_attn", "0..1"),
        (("layers_9", "layers_10"), "layers_*", "9..10"),
        (("layers[0].w", "layers[1].w"), "layers[*].w", "0..1"),
        (("['layers_0']['w']", "['layers_1']['w']"), "['layers_*']['w']", "0..1"),
        (("layers.007.up", "layers.008.up"), "layers.*.up", "007..008"),
        (("layers.0.up", "layers.2.up", "layers.4.up"), "layers.*.up", "0..4 by 2"),
        (("layers.0.up", "layers.1.up", "layers.5.up"), "layers.*.up", "0..1, 5"),
        (("layers.61.experts.0.up", "layers.61.experts.1.up"), "layers.61.experts.*.up", "0..1"),
        (("a.0.b.3", "a.0.b.4", "a.1.b.3", "a.1.b.4"), "a.*.b.*", "0..1 × 3..4"),
        (("a.0.b.3", "a.1.b.4"), "a.*.b.*", "(0, 3), (1, 4)"),
        (("only.7.one",), "only.7.one", ""),
    ],
)
def test_tensors_that_differ_in_numbers_are_one_group(paths, name, text):
    (group,) = groups_of(*paths)
    assert (group.name, group.numbers_text, group.n_tensors) == (name, text, len(paths))
    assert sorted(group.paths()) == sorted(paths)


@pytest.mark.parametrize(
    "paths",
    [
        ("fc1.w", "fc2.w"),  # the number is part of a word
        ("layers.0.up", "layers.x.up"),
        ("a.0.b", "a.0/b"),
        ("a.0", "a.0.1"),
    ],
)
def test_other_differences_make_other_groups(paths):
    assert [group.name for group in groups_of(*paths)] == list(paths)


def test_groups_are_of_one_shape_one_dtype_and_one_annotation():
    alike = [
        Tensor("a.0", (3,), BF16),
        Tensor("a.1", (4,), BF16),
        Tensor("a.2", (3,), F32),
        Tensor("a.3", (3,), BF16, axes=("embed",)),
    ]
    assert [tensor.name for tensor in group_tensors(alike)] == ["a.0", "a.1", "a.2", "a.3"]


def test_007_and_7_are_two_tensors():
    (group,) = groups_of("layers.7.w", "layers.007.w")
    assert sorted(group.paths()) == ["layers.007.w", "layers.7.w"]


def test_a_number_of_thousands_of_digits_is_kept_as_it_is_written():
    paths = {f"a.{'9' * 5000}.b", f"a.{'8' * 5000}.b"}
    (group,) = groups_of(*paths)
    assert set(group.paths()) == paths
    assert len(group.numbers_text) > 10_000


NUMBER = st.one_of(
    st.integers(0, 12).map(str), st.sampled_from(["00", "01", "007", "123456789012345678901"])
)
WORD = st.sampled_from(["layers", "h", "fc1", "w", "experts", "", "*", "{0..3}", "é"])
PATH = st.lists(
    st.tuples(st.one_of(NUMBER, WORD), st.sampled_from(".-_/[]")), min_size=1, max_size=5
).map(lambda parts: "".join(map("".join, parts)))


@settings(deadline=None, max_examples=200)
@given(st.sets(PATH, max_size=40))
def test_every_path_is_in_exactly_one_group(paths):
    actual = [path for group in groups_of(*paths) for path in group.paths()]
    assert sorted(actual) == sorted(paths)


@settings(deadline=None, max_examples=100)
@given(st.sets(st.tuples(NUMBER, NUMBER), min_size=1, max_size=30))
def test_a_part_of_a_group_has_the_requested_numbers(numbers):
    full = parse_tensor_group("a.{0..12}.b.{0..12}.c", (3,), BF16)
    part = full.with_numbers(sorted(numbers))
    assert set(part.numbers()) == numbers
    assert part.n_tensors == len(numbers)
    assert {part.path(number_tuple) for number_tuple in part.numbers()} == {
        f"a.{x}.b.{y}.c" for x, y in numbers
    }
    assert (part.numbers_text == "") is (len(numbers) == 1)


def test_a_large_group_is_counted_without_listing_it():
    group = parse_tensor_group("a.{0..999999999}.b.{0..999999999}", (3, 5), BF16)
    assert (group.n_tensors, group.n_elements) == (10**18, 15)
    assert group.name == "a.*.b.*"
    assert group.numbers_text == "0..999999999 × 0..999999999"
    assert next(group.paths()) == "a.0.b.0"


def test_a_text_of_many_gaps_stays_short():
    group = TensorGroup(
        path_parts=("a.", ""),
        shape=(3,),
        dtype=BF16,
        listed_numbers=tuple((str(n * n),) for n in range(50)),
    )
    assert group.numbers_text == "0..1, 4, 9, 16, … 50 total"
    pairs = tuple((str(n), str(n * n)) for n in range(50))
    assert group.with_numbers(pairs).numbers_text == "(0, 0), (1, 1), (2, 4), … 50 total"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (("mlp/wi_0/kernel", "mlp/wi_1/kernel"), ["mlp/wi_0/kernel", "mlp/wi_1/kernel"]),
        (
            [f"layers_{i}/wi_{j}" for i in range(2) for j in range(2)],
            ["layers_*/wi_0", "layers_*/wi_1"],
        ),
        (("Dense_0/w", "Dense_1/w", "Dense_2/w"), ["Dense_*/w"]),
        (("EncoderBlock_0/w", "EncoderBlock_1/w"), ["EncoderBlock_*/w"]),
        (("moe_layers_0/w", "moe_layers_1/w"), ["moe_layers_*/w"]),
        (("h_0/w", "h_1/w"), ["h_*/w"]),
    ],
)
def test_two_parts_of_a_layer_that_a_number_distinguishes_keep_their_names(paths, names):
    """MaxText's wi_0 and wi_1 are the gate and the product beside it, and no layers."""
    assert [group.name for group in groups_of(*paths)] == names
