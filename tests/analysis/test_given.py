"""What is given to `trace` and `check`: refused at once, in words, where it cannot be meant so."""

from __future__ import annotations

import functools

import jax
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.analysis.trace_and_check import meshes_given
from shardlab.errors import InvalidType
from shardlab.sharding.mesh import parse_mesh
from shardlab.testing import assert_memory


def total(x, scale=1.0):
    body = lambda x: lax.psum(scale * x.sum(), "data")  # noqa: E731
    return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)


@pytest.mark.parametrize(
    ("call", "what", "fix"),
    [
        (
            lambda: shardlab.trace("f32[24,12]", mesh="data=2"),
            "The first argument is 'f32[24,12]', and not a function.",
            "trace(f, 'f32[8,6]')",
        ),
        (
            lambda: shardlab.check(total, "f32[12]", scale=3.0, mesh="data=2"),
            "check() has no option 'scale'; its options are mesh, meshes,",
            "functools.partial(f, scale=...).",
        ),
        (
            lambda: shardlab.trace(total, "f32[12]", topolgy="v5e:2x2"),
            "trace() has no option 'topolgy'",
            "or did you mean 'topology'?",
        ),
        (
            lambda: shardlab.check(total, "f32[12]", mesh="data=2", meshes=["data=3"]),
            "Both mesh and meshes were given.",
            "give mesh for one mesh",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(call, what, fix):
    with pytest.raises(InvalidType) as told:
        call()
    assert told.value.what.startswith(what)
    assert fix in told.value.fix


@pytest.mark.parametrize(
    "mesh",
    ["data=2,model=1", parse_mesh("data=2"), {"data": 2}, AbstractMesh((2,), ("data",))],
    ids=lambda mesh: type(mesh).__name__,
)
def test_one_mesh_may_stand_for_several(mesh):
    assert meshes_given(None, mesh) == [mesh]
    assert meshes_given(mesh, None) == [mesh]
    assert meshes_given(None, (mesh, mesh)) == [mesh, mesh]


def test_a_report_is_one_line_where_its_name_is_typed():
    report = shardlab.check(functools.partial(total, scale=3.0), "f32[12]", meshes="data=2")
    assert repr(report) == "<Report of total on data=2: nothing found>"


def test_text_that_is_no_array_is_told_in_words():
    (found,) = shardlab.check(total, "6", mesh="data=2").findings
    assert (found.code, found.cause) == ("jax.rejected", "text")
    assert "write the dtype and then the sizes, such as 'f32[8,6]'" in found.fix
    assert found.shows[0].startswith("JAX: Argument '6' of type <class 'str'>")


def test_the_memory_of_a_shard_map_is_asked_of_the_compiler():
    held = shardlab.trace(total, "f32[12]", mesh="data=2", memory=True).memory
    assert (held.argument_bytes, held.output_bytes) == (24, 4)  # half of 12 numbers of 4 bytes
    assert shardlab.trace(total, "f32[12]", mesh="data=2").memory is None
    with pytest.raises(AssertionError, match=r"each device holds .* more than the budget of 20"):
        assert_memory(total, "f32[12]", mesh="data=2", at_most=20)
