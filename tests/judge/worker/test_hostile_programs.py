"""Bytes that claim to be a program: rejected before they are compiled, with the reason."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from worker_bench import full_arrays

from shardlab.sandbox.process import ProcessEnded

X = np.arange(6, dtype=np.float32)
LARGE = np.arange(1_500_000).astype(np.int8)
SHAPE = jax.ShapeDtypeStruct((6,), np.float32)


def exported(f, *shapes, **options):
    return jax.export.export(jax.jit(f), **{"platforms": ["cpu"], **options})(*shapes)


def program(f, *shapes, **options):
    return bytes(exported(f, *(shapes or (SHAPE,)), **options).serialize())


def custom_call(name):
    """Return a program whose one custom call has this name, whatever JAX thinks of it."""
    data = program(lambda x: jnp.linalg.qr(x.reshape(2, 3))[1])
    plain = b"lapack_sgeqrf_ffi"
    assert len(name) == len(plain)
    assert plain in data
    return data.replace(plain, name)


def of_two_devices():
    mesh = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return program(
        lambda x: jax.lax.with_sharding_constraint(x * 2, sharding),
        jax.ShapeDtypeStruct((6,), np.float32, sharding=sharding),
    )


def many_calls():
    """Return a program whose functions call each other 2**17 times."""

    def twice(f):
        inner = jax.jit(f)
        return lambda x: inner(inner(x) + 1)

    f = jnp.sin
    for _ in range(17):
        f = twice(f)
    return program(f)


# name -> how the bytes are made, for which mesh, and the reason
HOSTILE = {
    "nothing": (lambda: b"", None, "no exported program"),
    "zeros": (lambda: b"\0" * 400, None, "no exported program"),
    "too long": (lambda: b"x" * (5 << 20), None, "5,242,880 bytes; the maximum is 4,194,304"),
    "a TPU's": (lambda: program(jnp.sin, platforms=["tpu"]), None, "for tpu, not for cpu"),
    "two platforms": (
        lambda: program(jnp.sin, platforms=["cpu", "tpu"]),
        None,
        "for cpu, tpu, not for cpu",
    ),
    "another shape": (
        lambda: program(jnp.sin, jax.ShapeDtypeStruct((7,), np.float32)),
        None,
        "requested: [((6,)",
    ),
    "another dtype": (
        lambda: program(jnp.sin, jax.ShapeDtypeStruct((6,), np.float16)),
        None,
        "the program takes [((6,), 'float16')]",
    ),
    "more arguments": (
        lambda: program(jnp.add, SHAPE, SHAPE),
        None,
        "the program takes [((6,), 'float32'), ((6,)",
    ),
    "no arguments": (
        lambda: bytes(exported(lambda: jnp.zeros(3)).serialize()),
        None,
        "the program takes []",
    ),
    "two devices of four": (of_two_devices, "data=4", "for 2 devices; the mesh has 4"),
    "a custom call": (
        lambda: custom_call(b"lapack_evil_f_ffi"),
        None,
        "calls lapack_evil_f_ffi, which is not allowed",
    ),
    # LAPACK trusts the shapes of the call.
    "a call into LAPACK": (
        lambda: program(lambda x: jnp.linalg.qr(x.reshape(2, 3))[1]),
        None,
        "calls lapack_sgeqrf_ffi, which is not allowed",
    ),
    "a huge result": (
        lambda: program(lambda x: x + jnp.zeros((500, 500, 6))),
        None,
        "more than 1,048,576 numbers",
    ),
    "a huge constant": (
        lambda: program(lambda x: x + jnp.asarray(LARGE)[:6]),
        None,
        "a constant of 1,500,000 numbers",
    ),
    "endless calls": (many_calls, None, "no exported program (TooDeep)"),
    "any shape": (
        lambda: program(
            lambda x: x * 2, jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), np.float32)
        ),
        None,
        "the program takes [((n,), 'float32')]",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_program_that_was_not_requested_is_rejected(bench, name):
    make, mesh, reason = HOSTILE[name]
    response = bench.run_program(make(), mesh, None, X)
    assert response.error.family == "invalid_program"
    assert reason in response.error.message


def test_random_changes_are_an_error_or_end_the_runner_and_never_the_judge(bench):
    """Whatever happens, the next good program runs as usual."""
    good = program(lambda x: x * 2)
    rng = np.random.default_rng(4)
    n_responses = 0
    for _ in range(40):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(256)
        try:
            bench.run_program(bytes(data), None, None, X)
        except ProcessEnded:
            continue
        n_responses += 1
    assert n_responses  # the runner does not always crash
    response = bench.run_program(good, None, None, X)
    np.testing.assert_array_equal(full_arrays(response.result)[0], X * 2)


def test_a_good_program_runs_after_all_that(bench):
    result = bench.run_program(program(lambda x: x * 2), "data=4", None, X).result
    np.testing.assert_array_equal(full_arrays(result)[0], X * 2)
    assert [shard.device for shard in result.outputs[0].shards] == [0, 1, 2, 3]
