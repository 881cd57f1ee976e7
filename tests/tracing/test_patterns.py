"""Patterns in programs, the findings made of them, and near misses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab import check
from shardlab.checks.check_program import check_program
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.observe import observe

MESH = "data=2,model=4"


SHARDED = P("data", "model")


def find(body, *args, specs=SHARDED, mesh=MESH, **options):
    """Return the findings about a shard_map of `body`, whose output is not of interest."""

    def program(*args):
        def checked(*args):
            return body(*args).sum()[None, None]

        return jax.shard_map(checked, in_specs=specs, out_specs=SHARDED, check_vma=False)(*args)

    return check_program(observe(program, args or ["f32[8,16]"], mesh), **options)


def codes(*args, **options):
    return [finding.code for finding in find(*args, **options)]


# ------------------------------------------------------------------------- divergent conditions


def divergence(predicate, *args, **options):
    def body(x, *rest):
        return lax.cond(predicate(x, *rest), lambda x: lax.psum(x, "model"), lambda x: x, x)

    (finding,) = find(body, *args, **options)
    assert finding.code == "hazard.deadlock"
    return finding.shows[1]


def test_a_predicate_of_device_indices_is_evaluated_through_calls():
    inner = jax.jit(lambda i: jnp.where(i > 1, i, 0).astype(jnp.float32))
    text = divergence(lambda x: inner(lax.axis_index("model")) > 2.5)
    assert text == "model=3 takes branch 1 (true); model=0..2 take branch 0 (false)"


def test_a_predicate_of_known_arrays_is_evaluated_with_them():
    x = jnp.zeros((8, 16)).at[0, 5].set(1.0)
    assert divergence(lambda x: x.max() > 0, x) == "data=0 model=1 takes branch 1 (true); " + (
        "the other 7 devices take branch 0 (false)"
    )


def test_a_predicate_of_shapes_names_its_arguments():
    text = divergence(lambda x: x.max() > 0, "f32[8,16]")
    assert text == "which devices take which branch depends on the values of 'args[0]'"


def test_a_predicate_that_depends_on_a_collective_is_evaluated_with_it():
    # Summed over 'data' it still differs along 'model'.
    x = jnp.arange(128.0).reshape(8, 16)
    assert divergence(lambda x: lax.psum(x.sum(), "data") > 2000, x).startswith("model=")


def test_in_a_loop_the_first_iteration_is_reported():
    def body(x):
        def iterate(i, x):
            mine = i == lax.axis_index("model")
            return lax.cond(mine, lambda x: lax.psum(x, "model"), lambda x: x, x)

        return lax.fori_loop(0, 3, iterate, x)

    (finding,) = find(body)
    assert (
        finding.shows[1]
        == "in the first iteration model=0 takes branch 1 (true); model=1..3 take branch 0 (false)"
    )


def test_a_loop_is_run_until_the_first_device_leaves():
    def body(x):
        bound = 2 + lax.axis_index("model")
        return lax.fori_loop(0, bound, lambda i, x: x - lax.psum(x, "model"), x)

    (finding,) = find(body)
    assert finding.shows[1] == "after 2 iterations model=0 leaves the loop and model=1..3 continue"


def test_the_gradient_is_not_reported_again():
    def loss(x):
        def body(x):
            first = lax.axis_index("data") == 0
            y = lax.cond(first, lambda x: lax.psum(x**2, "data"), lambda x: x, x)
            return y.sum()[None]

        return jax.shard_map(body, in_specs=P("data"), out_specs=P("data"), check_vma=False)(
            x
        ).sum()

    observation = observe(jax.value_and_grad(loss), ["f32[8]"], "data=2")
    assert any(call.phase == "backward" and call.within for call in observation.calls)
    assert [finding.code for finding in check_program(observation)] == ["hazard.deadlock"]


@pytest.mark.parametrize(
    "predicate",
    [
        lambda x: lax.axis_index("model") >= 0,
        lambda x: lax.pmax(x.max(), ("data", "model")) > 0,
        lambda x: lax.axis_index("data") == 0,  # the psum is over 'model'
        lambda x: lax.psum(1, "data") > 4,
    ],
)
def test_devices_that_agree_are_no_finding(predicate):
    def body(x):
        return lax.cond(predicate(x), lambda x: lax.psum(x, "model"), lambda x: x, x)

    assert codes(body) == []


def doubled(x, times):
    for _ in range(times):
        x = x + x
    return x


@pytest.mark.parametrize(
    ("other", "cause", "severity"),
    [
        (lambda x: 2 * lax.psum(x.sum(), "model"), "same_calls", "warning"),
        # Sixty doublings: the comparison must not grow with the number of paths in the program.
        (lambda x: lax.psum(doubled(x, 60).sum(), "model"), "garbage", "error"),
        (lambda x: lax.psum(2 * x.sum(), "model"), "garbage", "error"),
        (lambda x: lax.pmax(x.sum(), "model"), "garbage", "error"),
        (lambda x: lax.all_gather(x.sum(), "model").sum(), "hangs", "error"),
        (lambda x: lax.psum(lax.psum(x.sum(), "model"), "model"), "hangs", "error"),
    ],
)
def test_branches_that_all_communicate(other, cause, severity):
    def body(x):
        first = lax.axis_index("model") == 0
        return lax.cond(first, other, lambda x: lax.psum(x.sum(), "model"), x)

    finding = next(item for item in find(body) if item.code == "hazard.mismatched_collectives")
    assert (finding.cause, finding.severity) == (cause, severity)
    assert "model=0 takes branch 1 (true); model=1..3 take branch 0 (false)" in finding.shows


# ----------------------------------------------------------------------- psums of replicated values


def test_a_psum_of_replicated_reports_the_factor():
    (finding,) = find(lambda x: lax.psum(x, ("data", "model")), specs=P("data"))
    assert finding.code == "hazard.psum_of_replicated"
    assert "multiplies the value by 4 (it is also over 'data'" in finding.what


@pytest.mark.parametrize(
    "body",
    [
        lambda x: lax.pmean(x, "model"),
        lambda x: lax.pmean(x, ("data", "model")),
        lambda x: lax.psum(x, "model") / lax.axis_size("model"),
        lambda x: lax.psum(x, "model") * 0.25,
        lambda x: lax.psum(x.sum(), "model") / lax.psum(x.size * 1.0 + x[0, 0], "model"),
        lambda x: lax.psum(x.sum(), "model") / jnp.maximum(lax.psum((x > 0).sum(), "model"), 1),
        lambda x: x / lax.psum(jnp.ones(()), "model"),
        lambda x: jnp.where(lax.psum((x > 3).sum(), "model") > 0, x, 0),
        lambda x: lax.pmax(x, "model"),
        lambda x: lax.psum(x, "data"),
        lambda x: lax.psum(x + lax.axis_index("model"), "model"),
    ],
)
def test_a_mean_a_count_and_a_comparison_are_not_reported(body):
    assert codes(body, specs=P("data")) == []


def test_a_quotient_in_which_the_factor_does_not_cancel_is_reported():
    assert codes(lambda x: x / lax.psum(x.sum(), "model"), specs=P("data")) == [
        "hazard.psum_of_replicated"
    ]
    assert codes(lambda x: lax.psum(x, "model") / 3, specs=P("data")) == [
        "hazard.psum_of_replicated"
    ]


def test_an_axis_of_one_device_has_no_replicas():
    assert codes(lambda x: lax.psum(x, "model"), specs=P("data"), mesh="data=8,model=1") == []


def test_the_sums_of_the_backward_pass_are_jaxs_own():
    def loss(w, x):
        def body(w, x):
            return lax.pmean(((x @ w) ** 2).mean(), "data")

        return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P())(w, x)

    observation = observe(jax.grad(loss), ["f32[16]", "f32[8,16]"], MESH)
    assert any(call.phase == "backward" for call in observation.calls)
    assert check_program(observation) == ()


# ---------------------------------------------------------------------------- slices and loops


def own(x, axis="model", dimension=1, n=4):
    size = x.shape[dimension] // n
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, dimension)


def gather(x):
    return lax.all_gather(x, "model", axis=1, tiled=True)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda x: own(gather(x)), ["waste.all_gather_then_slice"]),
        (lambda x: lax.all_gather(x, "model")[2], ["waste.all_gather_then_slice"]),
        (lambda x: own(gather(x), n=2), []),  # more than one device has
        (lambda x: own(gather(x), "data"), []),  # by the index on another axis
        (lambda x: own(gather(x), dimension=0), []),  # another dimension
        (lambda x: (lambda g: own(g) + g.mean())(gather(x)), []),
        (lambda x: own(lax.psum(x, "model")), ["waste.psum_then_slice"]),
        (lambda x: own(lax.pmean(x, "model").astype(jnp.bfloat16)), ["waste.psum_then_slice"]),
        (
            lambda x: jax.jit(own)(jax.jit(lambda x: lax.psum(x, "model"))(x)),
            ["waste.psum_then_slice"],
        ),
        (lambda x: own(lax.psum(x, "data")), []),
        (lambda x: lax.psum(x, "model")[:, :1], []),
    ],
)
def test_a_result_of_which_a_slice_is_used(body, expected):
    assert codes(body) == expected


def scanned(step):
    return lambda x: lax.scan(step(x), x, jnp.arange(3.0))[0]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            scanned(lambda x: lambda c, _: (c + lax.psum(x, "model"), None)),
            ["waste.loop_invariant_collective"],
        ),
        (scanned(lambda x: lambda c, _: (c + lax.psum(c, "model"), None)), []),
        (scanned(lambda x: lambda c, i: (c + lax.psum(x * i, "model"), None)), []),
        (lambda x: lax.scan(lambda c, _: (c + lax.psum(x, "model"), None), x, None, 1)[0], []),
    ],
)
def test_a_collective_with_the_same_operand_in_every_iteration(body, expected):
    assert codes(body) == expected


# ---------------------------------------------------------------------------- shardings of arrays


def test_a_replicated_array_is_reported_from_a_threshold_on():
    args = ["f32[8,16]", "f32[1024,4096]"]
    specs = (SHARDED, P())
    assert codes(lambda x, w: x @ w[:4, :4], *args, specs=specs) == []
    (finding,) = find(lambda x, w: x @ w[:4, :4], *args, specs=specs, replicated_bytes=2**24)
    assert finding.code == "waste.replicated"
    assert (
        "'args[1]' of float32[1024, 4096] is replicated on all 8 devices: 16.8 MB" in finding.what
    )
    assert "dimension 1 over 'data' or dimension 1 over 'model'" in finding.fix


def test_an_indivisible_constraint_is_reported_and_one_row_is_not():
    def program(x):
        x = lax.with_sharding_constraint(x, P("data", "model"))
        return lax.with_sharding_constraint(x.sum(1, keepdims=True), P("data", "model"))

    observation = observe(program, ["f32[6,10]"], MESH)
    (finding,) = check_program(observation)
    assert finding.code == "hazard.constraint_replicates"
    assert "4 shards over 'model' of dimension 1, whose size 10" in finding.what


def test_a_program_that_shards_nothing_is_reported():
    (finding,) = check_program(observe(jnp.sin, ["f32[4]"], "data=2"))
    assert (finding.code, finding.severity) == ("program.no_communication", "info")


def test_an_argument_without_a_sharding_among_sharded_ones_is_replicated():
    mesh = virtual_mesh(MESH)
    sharded = jax.ShapeDtypeStruct((8, 1024), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    observation = observe(lambda x, w: jnp.tanh(x) + w, [sharded, "f32[32,8,1024]"], None)
    assert check_program(observation) == ()
    (finding,) = check_program(observation, replicated_bytes=2**20)
    assert (finding.code, finding.details) == (
        "waste.replicated",
        {"path": "w", "paths": ["w"], "bytes": 2**20, "count": 1},
    )


def test_an_elementwise_program_of_a_sharded_array_is_sharded():
    mesh = virtual_mesh(MESH)
    sharded = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    assert check_program(observe(jnp.sin, [sharded], None)) == ()


# ------------------------------------------------------------------------------------ suppressed


def test_a_comment_on_the_line_suppresses_its_finding_in_a_report():
    def body(x):
        return lax.psum(x, "model")  # shardlab: ignore[hazard.psum_of_replicated] four is meant

    program = jax.shard_map(body, in_specs=P("data"), out_specs=P("data"))
    report = check(program, "f32[8]", mesh=MESH, run=False)
    assert report.findings == ()
    assert [(item.finding.code, item.reason) for item in report.suppressed] == [
        ("hazard.psum_of_replicated", "four is meant")
    ]
