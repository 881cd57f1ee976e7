"""The data flow of a program: the same from its jaxpr and from its StableHLO."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab._jax.ablation import remove_construct
from shardlab._jax.debug_calls import has_debug_calls, without_debug_calls
from shardlab._jax.exported_program import read_contents, strip_attributes
from shardlab._jax.module_flow import read_module_flow
from shardlab.tracing.jaxpr_flow import read_jaxpr_flow

MESH = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
ROWS, FULL = NamedSharding(MESH, P("data")), NamedSharding(MESH, P())
X = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=ROWS)


def mapped(body, in_specs=ROWS.spec, out_specs=ROWS.spec, **options):
    return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


def psum(x):
    return lax.psum(x, "data")


@jax.custom_jvp
def twice(x):
    return 2 * x


twice.defjvp(lambda primals, tangents: (twice(*primals), 2 * tangents[0]))

# program -> what lies between argument and result, whether work is outside, whether it is placed
PROGRAMS = {
    "in the body": (mapped(lambda x: 2 * x), ["shard_map"], False, False),
    "after": (lambda x: 2 * mapped(lambda x: x)(x), ["shard_map"], True, False),
    "before": (lambda x: mapped(lambda x: x)(x + 1), ["shard_map"], True, False),
    "beside": (lambda x: mapped(lambda x: x)(x) + 0 * x, ["shard_map"], True, False),
    "moved outside": (
        lambda x: mapped(lambda x: 2 * x)(x)[::-1].reshape(2, 4),
        ["shard_map"],
        False,
        False,
    ),
    "not used": (mapped(lambda x: (psum(x), 2 * x)[1]), ["shard_map"], False, False),
    "of zeros": (mapped(lambda x: x + psum(jnp.zeros(2))), ["shard_map"], False, False),
    "full arrays": (mapped(lambda x: x, P(), P()), ["unsharded shard_map"], False, False),
    "psum": (mapped(lambda x: psum(x.sum()), out_specs=P()), ["psum", "shard_map"], False, False),
    "pmax in a loop": (
        mapped(lambda x: lax.fori_loop(0, 3, lambda i, c: lax.pmax(c, "data") + x, x)),
        ["pmax", "shard_map"],
        False,
        False,
    ),
    "psum in a predicate": (
        mapped(lambda x: lax.cond(psum(x.sum()) > 0, lambda x: x, lambda x: -x, x)),
        ["psum", "shard_map"],
        False,
        False,
    ),
    "psum in the length of a loop": (
        mapped(lambda x: lax.while_loop(lambda c: jnp.sum(c) < psum(x.sum()), lambda c: c + 1, x)),
        ["psum", "shard_map"],
        False,
        False,
    ),
    "composite": (
        mapped(lax.composite(lambda x: lax.all_gather(x, "data", tiled=True), "my.gather")),
        ["all_gather", "shard_map"],
        False,
        False,
    ),
    "derivatives and checkpoints": (
        mapped(jax.checkpoint(lambda x: psum(twice(x)))),
        ["psum", "shard_map"],
        False,
        False,
    ),
    "a gradient": (
        jax.grad(lambda x: mapped(lambda x: psum(jnp.sum(x**3)), out_specs=P())(x)),
        ["shard_map"],
        False,
        False,
    ),
    "axis_index": (
        mapped(lambda x: x + lax.axis_index("data")),
        ["axis_index", "shard_map"],
        False,
        False,
    ),
    "placed": (lambda x: jnp.sum(lax.with_sharding_constraint(x, FULL)), [], True, True),
    "argument placed by a jit": (jax.jit(lambda x: x + 1, in_shardings=FULL), [], True, True),
    "moved by a jit": (jax.jit(lambda x: x[::-1], out_shardings=FULL), [], False, True),
    "result placed by a jit": (jax.jit(lambda x: x + 1, out_shardings=FULL), [], True, False),
    "placed after the sum": (
        lambda x: lax.with_sharding_constraint(jnp.sum(x), FULL),
        [],
        True,
        False,
    ),
    "selected by position": (
        lambda x: mapped(lambda x: x)(jnp.take(x, jnp.arange(8)[::-1], mode="fill")),
        ["shard_map"],
        False,
        False,
    ),
    "partly placed": (lambda x: lax.with_sharding_constraint(x, FULL) + x, [], True, False),
    "not placed": (lambda x: jnp.sum(x), [], True, False),
}


def export(program):
    return jax.export.export(jax.jit(program), platforms=("cpu",))(X)


@pytest.mark.parametrize("name", PROGRAMS)
def test_jaxpr_and_module_have_the_same_flow(name):
    program, constructs, is_outside, is_placed = PROGRAMS[name]
    if name == "pmax in a loop":
        program = mapped(
            lambda x: lax.fori_loop(0, 3, lambda i, c: lax.pmax(c, "data") + x, x), check_vma=False
        )
    for flow in (
        read_jaxpr_flow(jax.jit(program).trace(X).jaxpr),
        read_module_flow(export(program)),
    ):
        assert list(flow.constructs) == constructs
        assert bool(flow.outside) == is_outside
        assert flow.is_placed == is_placed


def both_flows(program, *shapes):
    """Return the flow of the trace, and that of the exported program."""
    exported = jax.export.export(jax.jit(program), platforms=("cpu",))(*shapes)
    return read_jaxpr_flow(jax.jit(program).trace(*shapes).jaxpr), read_module_flow(exported)


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (mapped(lambda x: 2 * x), 1),
        (jax.vmap(mapped(lambda x: x), in_axes=None, axis_size=3), 1),
        (jax.jit(lambda x: mapped(jax.grad(lambda x: psum(jnp.sum(x**3))))(x)), 1),
        (lambda x: lax.fori_loop(0, 3, lambda i, c: mapped(lambda x: 2 * x)(c), x), 1),
        (mapped(lambda x: jax.jit(lambda x: psum(x))(x), out_specs=P()), 1),
        (lambda x: (mapped(lambda x: 3 * x)(x), mapped(lambda x: 2 * x)(x))[1], 1),
        (lambda x: mapped(lambda x: x + 1)(mapped(lambda x: 2 * x)(x)), 2),
        (lambda x: (mapped(lambda x: x)(x), mapped(lambda x: 2 * x)(x)), 2),
    ],
)
def test_shard_maps_that_reach_the_result_are_counted(program, count):
    assert [flow.n_shard_maps for flow in both_flows(program, X)] == [count, count]


@pytest.mark.parametrize(
    ("program", "is_full"),
    [
        (mapped(lambda x: 2 * x), False),
        (mapped(lambda x: 2 * x, P()), True),
        (lambda x: mapped(lambda y: y * x[0])(x), True),
        # No argument: every device needs the table.
        (lambda x: mapped(lambda x: x * jnp.arange(2.0))(x), False),
        (lambda x: mapped(lambda x, y: x * y, (P("data"), P()))(x, jnp.ones(1)), False),
        # A number has no dimension that could be sharded.
        (lambda x: mapped(lambda x, y: x * y, (P("data"), P()))(x, x[0]), False),
    ],
)
def test_an_argument_that_enters_a_body_in_full(program, is_full):
    assert [flow.has_full_operand for flow in both_flows(program, X)] == [is_full, is_full]


def test_the_largest_array_of_a_body_and_of_a_matrix_product():
    def program(w, x):
        def body(w, x):
            return lax.dynamic_slice_in_dim(jnp.concatenate([x, x, x]), 0, 2) @ w

        return mapped(body, (P(), P("data")))(w, x)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((5, 6), (8, 5))]
    for flow in both_flows(program, *shapes):
        assert flow.body_elements == 6 * 5
        assert flow.matmul_elements == 5 * 6  # w; the slice of x has 2 * 5


def test_random_numbers_that_are_drawn_outside_of_a_body():
    def program(x, draw):
        # The key is a constant: no argument reaches what is drawn from it.
        return mapped(lambda x, y: x * y[0], (P("data"), P("data")))(x, draw(jax.random.key(7)))

    def outside_arrays(draw):
        return read_jaxpr_flow(jax.jit(lambda x: program(x, draw)).trace(X).jaxpr).outside_arrays

    assert "random_bits" in outside_arrays(lambda key: jax.random.uniform(key, (8,)))
    split = outside_arrays(lambda key: jax.random.key_data(jax.random.split(key, 4))[:, 0])
    assert split == ("random_split",)
    assert outside_arrays(lambda key: jnp.arange(8)) == ()


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (lambda x, mask: jnp.where(mask, x, 0.0), ("select", "select_n")),
        (lambda x, mask: lax.cond(mask[0], lambda: x, lambda: x[::-1]), ("cond",)),
        # An index that is known in advance: "fill" is lowered to a selection, too.
        (lambda x, mask: jnp.take(x, jnp.arange(8)[::-1], mode="fill"), ()),
    ],
)
def test_a_selection_computes_if_an_argument_decides(program, names):
    mask = jax.ShapeDtypeStruct((8,), jnp.bool_)
    for flow in both_flows(lambda x, mask: mapped(lambda x: x)(program(x, mask)), X, mask):
        assert len(flow.outside) == bool(names)
        assert set(flow.outside) <= set(names)


def test_the_mesh_axes_of_a_trace():
    assert read_jaxpr_flow(jax.jit(mapped(lambda x: x)).trace(X).jaxpr).mesh_axes == ("data",)


def test_a_removed_construct_has_no_influence_on_the_flow():
    exported = export(mapped(lambda x: psum(x.sum()) + lax.pmax(x.sum(), "data"), out_specs=P()))
    assert read_module_flow(exported).constructs == ("pmax", "psum", "shard_map")
    assert read_module_flow(remove_construct(exported, "psum")).constructs == ("pmax", "shard_map")
    assert read_module_flow(remove_construct(exported, "shard_map")).constructs == ()


def test_a_collective_in_a_branch_is_not_left_to_chance():
    def body(x):
        total = psum(x.sum())
        return lax.cond(total > 0, lambda t: lax.pmax(t, "data"), lambda t: t, total)

    exported = export(mapped(body, out_specs=P(), check_vma=False))
    # Without the psum, devices could disagree on the branch, and block in its pmax.
    assert remove_construct(exported, "psum") is None
    assert remove_construct(exported, "pmax") is not None


@pytest.mark.parametrize(("step", "count"), [(1, 126), (100, None)])
def test_a_counter_that_overflows_has_no_known_count(step, count):
    def body(x):
        state = (jnp.int8(0), x)
        move = lambda c: (c[0] + jnp.int8(step), lax.ppermute(c[1], "data", [(0, 1)]))  # noqa: E731
        return lax.while_loop(lambda c: c[0] < 126, move, state)[1]

    (call,) = read_contents(export(mapped(body))).collectives
    assert call.count == count


def test_notes_to_the_compiler_are_stripped_and_shardings_stay():
    from jax.experimental.xla_metadata import set_xla_metadata

    def program(x):
        with set_xla_metadata(note="1"):
            return lax.with_sharding_constraint(x + 1, FULL)

    exported = export(program)
    stripped = strip_attributes(exported)
    assert "frontend_attributes" in exported.mlir_module()
    assert "frontend_attributes" not in stripped.mlir_module()
    assert read_module_flow(stripped) == read_module_flow(exported)
    assert stripped.in_shardings_hlo == exported.in_shardings_hlo


def test_debug_calls_are_removed_at_every_depth():
    def body(x):
        jax.debug.print("{}", x)
        step = jax.checkpoint(lambda c, i: (jax.jit(lambda c: (jax.debug.print("a"), c)[1])(c), i))
        x, _ = lax.scan(step, x, jnp.arange(3))
        return lax.cond(True, lambda x: (jax.debug.callback(print, x), x)[1], lambda x: x, x)

    traced = jax.jit(mapped(body)).trace(X)
    assert has_debug_calls(traced.jaxpr)
    silent = without_debug_calls(traced).trace(X)
    assert not has_debug_calls(silent.jaxpr)
    assert not silent.jaxpr.effects
