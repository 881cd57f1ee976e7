"""Which call of a text is recorded, and what is said if there is none."""

from __future__ import annotations

import pytest

from shardlab.recording.program_recording import record_source

PROGRAM = """import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

def body(x):
    return jax.lax.psum(x.sum(), "data")

def total(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)
"""


@pytest.mark.parametrize(
    ("end", "title"),
    [
        ('total_args = ("f32[8]",)', "total"),
        ('example_args = ("f32[8]",)', "total"),  # body is only a part of it
        ('def total_args():\n    return ("f32[8]",)', "total"),
        ('if __name__ == "__main__":\n    print(total(jnp.arange(8.0)))', "body"),
        ("import sys\ntotal(jnp.arange(8.0))\nsys.exit()", "body"),
    ],
)
def test_the_call_is_chosen_without_a_name(end, title):
    recording = record_source(PROGRAM + end + "\n", mesh="data=4")
    assert recording.failure is None
    assert recording.title == title
    assert [step.collective.op for step in recording.steps if step.collective] == ["psum"]


def test_a_program_without_arguments_learns_how_to_give_them():
    failure = record_source(PROGRAM, mesh="data=4").failure
    assert "It has body(x), total(x)." in failure.message
    assert failure.fix.endswith('total_args = ("f32[8,4]",)')
    line = failure.fix.rpartition(": ")[2]
    recording = record_source(f"{PROGRAM}{line}\n", mesh="data=4")
    assert recording.failure is None


def test_several_functions_with_arguments_are_listed():
    source = PROGRAM + 'def other(x):\n    return x\nother_args = total_args = ("f32[8]",)\n'
    failure = record_source(source, mesh="data=4").failure
    assert "total(x), other(x)" in failure.message
    assert "field Function" in failure.fix


def test_an_unknown_function_names_those_that_exist():
    failure = record_source(PROGRAM, target="totl", mesh="data=4").failure
    assert "body(x), total(x)" in failure.message
    assert failure.fix.startswith("Did you mean 'total'?")
    assert "field Function empty" in failure.fix


def test_an_error_after_the_recorded_call_is_a_note():
    recording = record_source(PROGRAM + "total(jnp.arange(8.0))\n1 / 0\n", mesh="data=4")
    assert recording.failure is None
    assert "ZeroDivisionError" in recording.notes[-1]
    assert "line 13" in recording.notes[-1]


def test_a_dataclass_of_the_text_finds_its_module():
    source = (
        "from __future__ import annotations\nimport dataclasses\n"
        "@dataclasses.dataclass\nclass Config:\n    n: int = 8\n"
        + PROGRAM
        + "total(jnp.arange(float(Config().n)))\n"
    )
    assert record_source(source, mesh="data=4").failure is None
