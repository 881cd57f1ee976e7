"""Submissions that cannot be judged: family, explanation, JAX's message, and the line."""

from __future__ import annotations

import numpy as np
import pytest
from worker_bench import WorkerBench, full_arrays

X = np.arange(24, dtype=np.float32).reshape(8, 3)
SOURCE = """import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

not_callable = 3

def signature(x):
    return x

def no_result(x, mesh):
    x + 1

def not_an_array(x, mesh):
    return "text"

def dtype(x, mesh):
    return x.astype(jnp.float8_e4m3fn)

def numpy_round_trip(x, mesh):
    return jnp.asarray(np.asarray(x))  # numpy_round_trip

def fetched(x, mesh):
    return jnp.asarray(jax.device_get(x))  # fetched

def branch_on_value(x, mesh):
    return x if x.sum() > 0 else -x  # branch_on_value

def value_in_python(x, mesh):
    return jnp.ones(3) * float(x[0, 0])  # value_in_python

def shape_by_value(x, mesh):
    return x[x > 0]  # shape_by_value

def not_while_traced(x, mesh):
    return x * len(x.addressable_shards)  # not_while_traced

def callback(x, mesh):
    jax.debug.print("{}", x.sum())
    return jax.pure_callback(lambda x: x, x, x)  # callback

def interrupt(x, mesh):
    raise KeyboardInterrupt  # interrupt

def exit(x, mesh):
    sys.exit("enough")  # exit

@jax.jit
def mesh_is_traced(x, mesh):
    return x

def leaked(x, mesh):
    kept = []
    jax.jit(lambda y: kept.append(y) or y)(x)
    return x + kept[0]

def own(x, mesh):
    raise KeyError("mine")  # own

# ------------------------------------------------------------------- what JAX rejects

def mapped(mesh, body, in_specs, out_specs, x):
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)(x)

def replication(x, mesh):
    f = jax.shard_map(jnp.sum, mesh=mesh, in_specs=P("data"), out_specs=P())
    return f(x)  # replication

def unknown_axis(x, mesh):
    def body(x):
        return lax.psum(x, "dat")  # unknown_axis
    return mapped(mesh, body, P("data"), P(), x)

def unknown_in_spec(x, mesh):
    f = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("batch"), out_specs=P("data"))
    return f(x)  # unknown_in_spec

def rank(x, mesh):
    f = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("data", None, None), out_specs=P("data"))
    return f(x)  # rank

def indivisible(x, mesh):
    f = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P(None, "data"), out_specs=P("data"))
    return f(x)  # indivisible

def uneven_put(x, mesh):
    return jax.device_put(x, NamedSharding(mesh, P(None, "data")))  # uneven_put

def carry(x, mesh):
    def body(x):
        return lax.scan(lambda c, row: (c + row, None), jnp.zeros(3), x)[0]  # carry
    return mapped(mesh, body, P("data"), P("data"), x)

def mesh(x, mesh):  # mesh
    other = Mesh(jax.devices(), ("data",))
    return jax.shard_map(jnp.sin, mesh=other, in_specs=P("data"), out_specs=P("data"))(x)
"""


def line_of(name):
    return next(
        (n for n, line in enumerate(SOURCE.splitlines(), 1) if line.endswith(f"# {name}")), None
    )


@pytest.fixture
def export(bench):
    assert bench.load(SOURCE) is None
    return lambda function: bench.export(function, "data=4", x=X)


@pytest.mark.parametrize(
    ("family", "what"),
    [
        ("not_callable", "not_callable is of type int, not a function."),
        ("signature", "signature(x) cannot be called as signature(x, mesh)"),
        ("no_result", "no_result returned None."),
        ("not_an_array", "not_an_array returned a str ('text'), which is no array."),
        ("dtype", "dtype returned an array of float8_e4m3fn"),
        ("numpy_round_trip", "A JAX array is converted to a NumPy array."),
        ("branch_on_value", "Python branches on the value of an array"),
        ("value_in_python", "The value of an array is used as a Python number."),
        ("shape_by_value", "The shape of a result depends on the values of an array."),
        ("not_while_traced", "reads a property that only a computed array has"),
        ("callback", "The program calls back into Python while it runs"),
        ("exit", "The submission ends the process"),
        ("interrupt", "The submission raises KeyboardInterrupt"),
        ("mesh_is_traced", "A mesh is passed to a jax.jit as if it were an array."),
        ("leaked", "An array of one traced function is used outside of it"),
    ],
)
def test_an_error_has_a_family_an_explanation_a_fix_and_a_line(export, family, what):
    error = export(family).error
    assert error.family == family
    assert what in error.what
    assert error.fix
    assert error.line == line_of(family)
    assert "shardlab/judge" not in error.message


def test_the_fix_for_a_signature_does_not_break_a_part_without_the_last_argument(export):
    # Told to write `def signature(x, mesh):`, users of the one-device task failed part 1 instead.
    fix = export("signature").error.fix
    assert "def signature(x, mesh)" not in fix
    assert "the def line of the starter" in fix


def test_fetching_an_array_is_the_round_trip_that_it_is_outside_of_a_jit(export):
    error = export("fetched").error
    assert (error.family, error.line) == ("numpy_round_trip", line_of("fetched"))


def test_messages_of_jax_name_the_arguments_of_the_submission(export):
    assert "the value of the argument x." in export("branch_on_value").error.message


def test_an_exception_of_the_submission_has_no_family(export):
    error = export("own").error
    assert (error.exception_type, error.message, error.family) == ("KeyError", "'mine'", "")
    assert error.line == line_of("own")
    assert "LookupError" in error.base_types


def test_a_missing_function_is_reported_with_the_nearest_name(export):
    error = export("no_resul").error
    assert error.family == "missing_function"
    assert error.what == ("The submission has no function 'no_resul'. Did you mean 'no_result'?")


@pytest.mark.parametrize(
    ("function", "code", "cause"),
    [
        ("replication", "jax.rejected", "replication"),
        ("carry", "jax.rejected", "carry"),
        ("mesh", "jax.rejected", "mesh"),
        ("unknown_axis", "spec.unknown_axis", ""),
        ("unknown_in_spec", "spec.unknown_axis", ""),
        ("rank", "spec.rank", ""),
        ("indivisible", "spec.indivisible", ""),
        ("uneven_put", "spec.indivisible", ""),
    ],
)
def test_what_jax_rejects_is_a_finding_with_the_line_of_the_submission(
    export, function, code, cause
):
    response = export(function)
    (finding,) = response.findings
    assert (finding.code, finding.cause, finding.severity) == (code, cause, "error")
    assert finding.line == line_of(function)
    assert response.error.exception_type  # JAX's own message is reported beside the finding
    assert response.error.message or function == "unknown_axis"


@pytest.mark.parametrize(
    ("source", "message", "line"),
    [
        (b"x = 1\ndef f(:\n", "invalid syntax", 2),
        (b"x = 1\n\n'\xff'\n", "byte 0xff is not UTF-8 text", 3),
        (b"x = 1\n# \0\n", "null bytes", 2),
        (b"#" * (2 << 20), "2,097,152 bytes; the maximum is 1,048,576", 1),
        (b"import nothing_of_the_kind\n", "No module named", 1),
        (b"x = 1\nraise ValueError('at once')\n", "at once", 2),
        (b"import sys\nsys.exit(3)\n", "3", 2),
    ],
)
def test_a_file_that_cannot_be_loaded_is_reported_with_its_line(bench, source, message, line):
    error = bench.load(source)
    assert message in error.message
    assert error.line == line


DEVICES = """import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_platforms", "cpu,tpu")
{then}
def f(x, mesh):
    return x * 2
"""


@pytest.fixture
def fresh_bench(pool):
    """A bench whose tracer has not started its devices yet."""
    bench = WorkerBench(pool)
    yield bench
    bench.close()


def test_a_script_s_own_number_of_devices_is_ignored(fresh_bench):
    assert fresh_bench.load(DEVICES.format(then="")) is None
    (array,) = full_arrays(fresh_bench.run("f", "data=8", x=X))
    assert array.sum() == 2 * X.sum()


def test_devices_that_the_submission_has_already_started_are_too_few(fresh_bench):
    then = "jax.config.update('jax_platforms', 'cpu'); jax.devices()"
    assert fresh_bench.load(DEVICES.format(then=then)) is None
    error = fresh_bench.export("f", "data=8", x=X).error
    assert error.family == "own_devices"
    assert error.what == ("The submission has set the number of devices to 4; this case needs 8.")


def test_devices_of_another_mesh_than_the_case_s_are_named(bench):
    bench.load("""import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
def f(x, mesh):
    own = Mesh(jax.devices()[4:6], ("data",))
    return jax.device_put(x, NamedSharding(own, P("data")))
""")
    error = bench.export("f", "data=2", x=X).error
    assert (error.family, error.line) == ("own_devices", 5)
    assert error.what == (
        "device_put places an array on the devices 4, 5; the mesh of this case has the devices "
        "0, 1."
    )
