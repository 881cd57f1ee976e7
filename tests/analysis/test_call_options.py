"""Options of `trace` and `check`: invalid ones are rejected at once, with a clear message."""

from __future__ import annotations

import functools

import jax
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.analysis.trace_and_check import list_meshes
from shardlab.errors import InvalidType
from shardlab.sharding.mesh import parse_mesh
from shardlab.testing import assert_memory


def total(x, scale=1.0):
    def body(x):
        return lax.psum(scale * x.sum(), "data")

    return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)


@pytest.mark.parametrize(
    ("call", "what", "fix"),
    [
        (
            lambda: shardlab.trace("f32[24,12]", mesh="data=2"),
            "The first argument is 'f32[24,12]', which is not a function.",
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
            "Did you mean 'topology'?",
        ),
        (
            lambda: shardlab.check(total, "f32[12]", mesh="data=2", meshes=["data=3"]),
            "Both mesh and meshes were passed.",
            "pass mesh for one mesh",
        ),
    ],
)
def test_invalid_options_are_rejected_with_a_message(call, what, fix):
    with pytest.raises(InvalidType) as raised:
        call()
    assert raised.value.what.startswith(what)
    assert fix in raised.value.fix


@pytest.mark.parametrize(
    "mesh",
    ["data=2,model=1", parse_mesh("data=2"), {"data": 2}, AbstractMesh((2,), ("data",))],
    ids=lambda mesh: type(mesh).__name__,
)
def test_meshes_may_be_a_single_mesh(mesh):
    assert list_meshes(None, mesh) == [mesh]
    assert list_meshes(mesh, None) == [mesh]
    assert list_meshes(None, (mesh, mesh)) == [mesh, mesh]


def test_the_repr_of_a_report_is_one_line():
    report = shardlab.check(functools.partial(total, scale=3.0), "f32[12]", meshes="data=2")
    assert repr(report) == "<Report of total on data=2: nothing found>"


def test_text_that_is_no_array_is_explained():
    (finding,) = shardlab.check(total, "6", mesh="data=2").findings
    assert (finding.code, finding.cause) == ("jax.rejected", "text")
    assert "write the dtype and then the sizes, such as 'f32[8,6]'" in finding.fix
    assert finding.shows[0].startswith("JAX: Argument '6' of type <class 'str'>")


def test_the_memory_of_a_shard_map_comes_from_the_compiler():
    memory = shardlab.trace(total, "f32[12]", mesh="data=2", memory=True).memory
    assert (memory.argument_bytes, memory.output_bytes) == (24, 4)  # half of 12 numbers of 4 bytes
    assert shardlab.trace(total, "f32[12]", mesh="data=2").memory is None
    with pytest.raises(AssertionError, match=r"each device stores .* more than the budget of 20"):
        assert_memory(total, "f32[12]", mesh="data=2", at_most=20)
