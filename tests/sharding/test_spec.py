"""Spec: parsed from text, tuples and PartitionSpec; equal however it is spelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardlab.errors import InvalidSyntax, InvalidType
from shardlab.sharding.spec import Spec, parse_spec


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ("None,model", Spec(None, "model")),
        (" None , model ", Spec(None, "model")),
        ("P(None, 'model')", Spec(None, "model")),
        ('PartitionSpec(None, "model")', Spec(None, "model")),
        ("jax.sharding.PartitionSpec(None, 'model',)", Spec(None, "model")),
        ("jax.P(None, model)", Spec(None, "model")),
        ("(data,model),None", Spec(("data", "model"), None)),
        ("P(('data', 'model'), None)", Spec(("data", "model"), None)),
        ("[data,model],None", Spec(("data", "model"), None)),
        ("(data,model)", Spec(("data", "model"))),
        ("('data',)", Spec("data")),
        ("(),data", Spec(None, "data")),
        ("P", Spec("P")),  # a bare P is a mesh axis name; P() is the empty spec
        ("P()", Spec()),
        ("", Spec()),
        (None, Spec()),
        ((), Spec()),
        ((None, "model"), Spec(None, "model")),
        ([None, ["data", "model"]], Spec(None, ("data", "model"))),
        (P(None, "model"), Spec(None, "model")),
        (P(("data",), ()), Spec("data", None)),
        (P(P.UNCONSTRAINED, "data"), Spec(None, "data")),  # as NamedSharding.shard_shape reads it
    ],
)
def test_a_spec_is_parsed_from_text_tuples_and_partition_spec(spelled, expected):
    assert parse_spec(spelled) == expected


def test_the_unreduced_axes_of_a_partition_spec_are_preserved():
    spec = parse_spec(P("data", unreduced={"model"}))
    assert spec.unreduced == {"model"}
    assert str(spec) == "P('data', unreduced={'model'})"


names = st.sampled_from(["data", "model", "x_1", "Stage"])
entries = st.one_of(st.none(), names, st.lists(names, max_size=3).map(tuple))


@given(st.lists(entries, max_size=4))
def test_a_printed_spec_parses_back_and_matches_jax(given_entries):
    spec = Spec(*given_entries)
    assert parse_spec(str(spec)) == spec == parse_spec(tuple(spec)) == parse_spec(P(*spec))
    if len(spec) != 1:  # newer JAX prints P('data',), we P('data')
        assert str(spec) == str(P(*spec)).replace("PartitionSpec(", "P(")


@given(st.text(alphabet="P(),'[] Nonedata=x\n\t\"", max_size=20))
def test_any_text_is_a_spec_or_an_error_with_a_position(text):
    try:
        parse_spec(text)
        return
    except InvalidSyntax as error:
        where = error.where
    assert where.splitlines()[-1].strip().strip("^") == ""
    assert "^" in where


@pytest.mark.parametrize(
    ("text", "marks", "what"),
    [
        ("None,,model", "     ^", "None or a mesh axis name was expected here."),
        ("P(None,'model'", "              ^", "')' was expected here."),
        ("data)", "    ^", "',' was expected here."),
        ("(data", "     ^", "',' or ')' was expected here."),
        ("(data,", "      ^", "A mesh axis name or ')' was expected here."),
        ("P('a') x", "       ^", "The spec ends before this."),
        ("data model", "     ^^^^^", "',' was expected here."),
        ("3", "^", "None or a mesh axis name was expected here."),
    ],
)
def test_an_error_marks_the_position_in_spec_text(text, marks, what):
    with pytest.raises(InvalidSyntax) as caught:
        parse_spec(text)
    assert caught.value.what == what
    assert caught.value.where == f"the spec text\n         {text}\n         {marks}"


def test_none_inside_parentheses_is_explained():
    with pytest.raises(InvalidSyntax, match="None cannot be inside parentheses") as caught:
        parse_spec("(data,None)")
    assert caught.value.fix == "drop the outer parentheses: data,None or P('data', None)."


def test_a_long_text_is_excerpted_around_the_position():
    text = ",".join(["None"] * 40) + ",?," + ",".join(["None"] * 40)
    with pytest.raises(InvalidSyntax) as caught:
        parse_spec(text)
    _, excerpt, marks = caught.value.where.splitlines()
    assert len(excerpt) < 90
    assert excerpt[marks.index("^")] == "?"


@pytest.mark.parametrize("entry", [3, ("data", None), ("data", ("model",)), 1.5])
def test_an_entry_is_none_a_name_or_names(entry):
    with pytest.raises(InvalidType, match="is not None, a mesh axis name, or a tuple of names"):
        parse_spec((entry,))


@pytest.mark.parametrize("spec", [3, {"data"}, object()])
def test_an_object_that_is_no_spec_is_rejected_with_an_example(spec):
    with pytest.raises(InvalidType, match="is not a spec") as caught:
        parse_spec(spec)
    assert caught.value.fix.startswith('text such as "None,model"')


def test_order_inside_a_tuple_and_trailing_none_matter():
    assert Spec(("a", "b")) != Spec(("b", "a"))
    assert Spec("a") != Spec("a", None)
    assert Spec(("a", "b"), None, "c").mesh_axes == ("a", "b", "c")
