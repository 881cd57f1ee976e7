"""What JAX refuses: its words kept, ours beside them; and what is not JAX's to refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab import testing
from shardlab.checks.check_program import check_program
from shardlab.errors import ProgramRejected
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.observe import observe

MESH = "data=2,model=4"
EXPLICIT = jax.sharding.AxisType.Explicit


def finding(program, *args, mesh=MESH):
    (result,) = check_program(observe(program, args, mesh))
    assert result.severity == "error"
    return result


def mapped(body, in_specs, out_specs=P("data")):  # noqa: B008  a spec cannot change
    return jax.shard_map(body, in_specs=in_specs, out_specs=out_specs)


# ------------------------------------------------------------------------------------- the specs


def test_an_indivisible_parameter_has_its_path_and_sizes():
    params = {"mlp": {"kernel": "f32[6,10]", "bias": "f32[8]"}}
    specs = {"mlp": {"kernel": P(None, "model"), "bias": P("model")}}

    def apply(params, x):
        return x @ params["mlp"]["kernel"] + params["mlp"]["bias"]

    result = finding(lambda p, x: mapped(apply, (specs, P("data")))(p, x), params, "f32[4,6]")
    assert result.code == "spec.indivisible"
    assert result.what == (
        "Dimension 1 of 'params['mlp']['kernel']' has size 10, which is not divisible by 4 (mesh "
        "axis 'model')."
    )
    assert result.fix.startswith("pad it to 12 or truncate it to 8")
    assert result.shows == ("shape (6, 10), spec P(None, 'model'), mesh data=2,model=4",)


def test_a_divisible_weight_is_not_swapped_with_an_indivisible_batch():
    def apply(x, w):
        return x @ w

    # By their sizes alone these specs could be swapped; then x @ w would not fit.
    result = finding(lambda x, w: mapped(apply, (P("data"), P()))(x, w), "f32[7,6]", "f32[6,6]")
    assert result.code == "spec.indivisible"
    assert "Dimension 0 of 'x' has size 7" in result.what
    result = finding(lambda x, w: mapped(apply, (P(), P("data")))(x, w), "f32[8,5]", "f32[5,3]")
    assert result.code == "spec.wrong_argument"
    assert result.fix.startswith("give 'x' the spec P('data') and 'w' the spec P()")


def test_indivisible_shardings_of_a_jit():
    mesh = virtual_mesh(MESH)
    double = jax.jit(lambda x: 2 * x, in_shardings=NamedSharding(mesh, P(None, "model")))
    result = finding(double, "f32[6,10]")
    assert result.code == "spec.indivisible"
    assert "Dimension 1" in result.what
    assert "size 10, which is not divisible by 4 shards" in result.what


def test_a_scalar_with_a_spec_of_a_vector():
    result = finding(mapped(lambda x: x.sum(), P("data")), "f32[8]")
    assert result.code == "spec.rank"
    assert result.where.file == __file__  # of the body: no line of the user calls it
    assert "has 1 entry, but the output" in result.what
    assert result.fix == "use P()."


@pytest.mark.parametrize("call", [lax.psum, lax.pmax, lax.all_gather, lax.pmean])
def test_an_axis_that_does_not_exist_gets_the_nearest_name(call):
    result = finding(mapped(lambda x: call(x, "modle"), P("data")), "f32[8]")
    assert result.code == "spec.unknown_axis"
    assert "names mesh axis 'modle'" in result.what
    assert result.fix == "the mesh is data=2,model=4. Did you mean 'model'?"
    assert result.where.file == __file__


@pytest.mark.parametrize("mesh", [None, virtual_mesh("data=2,model=4")], ids=["context", "own"])
def test_an_axis_in_a_spec_that_does_not_exist_gets_the_nearest_name(mesh):
    options = {} if mesh is None else {"mesh": mesh}
    ins = (P("data"), P(None, "modle"))
    program = jax.shard_map(lambda x, w: x @ w, in_specs=ins, out_specs=P("data"), **options)
    result = finding(program, "f32[8,3]", "f32[3,4]", mesh=MESH if mesh is None else None)
    assert result.code == "spec.unknown_axis"
    assert result.what == "in_specs name mesh axis 'modle', which does not exist on this mesh."
    assert result.fix == "the mesh is data=2,model=4. Did you mean 'model'?"
    assert result.shows[1] == "     in_specs[1] refers to 'modle'"


def test_a_mesh_that_lacks_an_axis_of_the_specs():
    result = finding(mapped(lambda x: x, P("data")), "f32[8]", mesh="model=4")
    assert result.code == "spec.unknown_axis"
    assert result.fix.startswith("the mesh is model=4; use one of its axes, or a mesh that has")


def test_an_axis_that_is_left_to_the_compiler_is_not_called_unknown():
    program = jax.shard_map(
        lambda x: x, in_specs=P("model"), out_specs=P("data"), axis_names={"data"}
    )
    assert finding(program, "f32[8]").code == "jax.rejected"


# ---------------------------------------------------------------------------- families of messages


@pytest.mark.parametrize(
    ("body", "out_specs", "cause", "message"),
    [
        (lambda x: x.sum(), P(), "replication", "can't be statically inferred"),
        (
            lambda x: lax.scan(lambda c, row: (c + row, None), 0.0, x)[0][None],
            P("data"),
            "carry",
            "carry output must have equal types",
        ),
        (
            lambda x: lax.fori_loop(0, 3, lambda i, c: c + x.sum(), 0.0)[None],
            P("data"),
            "carry",
            "must have equal types",
        ),
        (lambda x: lax.psum(x, ("data", "model")), P(), "partly_varying", "can only accept"),
        (
            lambda x: lax.psum_scatter(x[:3], "data", tiled=True),
            P("data"),
            "uneven_collective",
            "scatter dimension size 3",
        ),
        (lambda x: lax.all_to_all(x[:3], "data", 0, 0), P("data"), "uneven_collective", "3"),
        (lambda x: x, "data", "not_a_spec", "PartitionSpec"),
        # A carry of another dtype has nothing to do with devices.
        (
            lambda x: lax.scan(lambda c, _: (c + 0.5, None), jnp.int32(0), None, 3)[0],
            P(),
            "other",
            "dtype",
        ),
        (lambda x: (x, x), (P("data"), P("data"), P()), "tree", "pytree structure"),
        (lambda x: x.reshape(3, 5), P("data"), "other", "reshape"),
    ],
)
def test_jaxs_message_is_shown_with_an_explanation(body, out_specs, cause, message):
    result = finding(mapped(body, P("data"), out_specs), "f32[8]")
    assert (result.code, result.cause) == ("jax.rejected", cause)
    assert message in "\n".join(result.shows)
    assert result.shows[0].startswith("JAX: ")
    assert result.fix


@pytest.mark.parametrize(
    ("body", "in_specs", "cause"),
    [
        (lambda x: lax.ppermute(x, "data", [(0, 1), (1, 1)]), P("data"), "permutation"),
        (lambda x: lax.ppermute(x, "data", [(0, 2)]), P("data"), "permutation_range"),
        (lambda x: x, P("data", "data"), "twice"),
    ],
)
def test_what_jax_rejects_only_when_it_compiles_is_reported_too(body, in_specs, cause):
    result = finding(mapped(body, in_specs), "f32[8,8]")
    assert (result.code, result.cause) == ("jax.rejected", cause)


def test_a_program_without_a_mesh_is_asked_for_one():
    result = finding(mapped(lambda x: x, P("data")), "f32[8]", mesh=None)
    assert (result.code, result.cause) == ("jax.rejected", "no_mesh")
    assert "mesh='data=8'" in result.fix


def test_a_rejection_by_explicit_axes_says_how_to_go_on():
    mesh = virtual_mesh(
        jax.sharding.AbstractMesh((2, 4), ("data", "model"), axis_types=(EXPLICIT,) * 2)
    )

    def program(x):
        y = jax.sharding.reshard(x, NamedSharding(mesh, P("data", "model")))
        return y @ jax.sharding.reshard(x.T, NamedSharding(mesh, P("model", None)))

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        result = finding(program, "f32[8,8]", mesh=mesh)
    assert (result.code, result.cause) == ("jax.rejected", "explicit_type")
    assert "AxisType.Auto" in result.fix


# ------------------------------------------------------------------------- the program's own errors


def raises_its_own(x):
    raise KeyError("kernel")


def has_a_typing_error(x):
    return x.sum() + undefined_name  # noqa: F821


def decides_by_a_value(x):
    return jnp.sin(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (raises_its_own, KeyError),
        (has_a_typing_error, NameError),
        (decides_by_a_value, jax.errors.TracerBoolConversionError),
    ],
)
def test_an_exception_of_the_program_itself_is_raised(body, error):
    with pytest.raises(error):
        observe(mapped(body, P("data")), ["f32[8]"], MESH)
    assert jax.config.jax_traceback_filtering == "auto"


# ------------------------------------------------------------------------- rejected programs raise


def test_a_rejected_program_has_no_trace_and_fails_every_assertion():
    total = mapped(lambda x: lax.psum(x.sum(), "modle"), P("data"), P())
    with pytest.raises(
        ProgramRejected, match=r"names mesh axis 'modle', .*\(spec.unknown_axis\)"
    ) as raised:
        shardlab.trace(total, "f32[8]", mesh=MESH)
    assert raised.value.finding.code == "spec.unknown_axis"
    assert raised.value.fix == "the mesh is data=2,model=4. Did you mean 'model'?"
    for assert_something in (
        lambda: testing.assert_traffic(total, "f32[8]", mesh=MESH, at_most="1GB"),
        lambda: testing.assert_collectives(total, "f32[8]", mesh=MESH, expected={}),
        lambda: testing.assert_memory(total, "f32[8]", mesh=MESH, at_most="1GB"),
        lambda: testing.assert_mesh_invariant(total, "f32[8]", meshes=[MESH]),
    ):
        with pytest.raises(AssertionError, match="names mesh axis 'modle'"):
            assert_something()


def test_the_error_has_jaxs_message_also_for_what_fails_to_compile():
    with pytest.raises(ProgramRejected, match=r"JAX: The context mesh cannot be empty"):
        shardlab.trace(mapped(lambda x: x, P("data")), "f32[8]")
    beyond = mapped(lambda x: lax.ppermute(x, "data", [(0, 2)]), P("data"))
    with pytest.raises(ProgramRejected, match="names a device index beyond the last one"):
        shardlab.trace(beyond, "f32[8]", mesh=MESH)


def test_a_constant_that_is_constrained_in_a_body_is_no_error():
    def body(x):
        mask = (x > x).at[0].set(True)  # JAX constrains a literal here
        return jnp.where(mask, x * 2, 2 * x)

    program = jax.shard_map(
        body, mesh=virtual_mesh("data=2"), in_specs=P("data"), out_specs=P("data")
    )
    assert shardlab.check(program, "f32[8]").codes == ()
