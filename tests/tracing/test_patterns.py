"""What is seen in a program, and what is made of it: patterns and their near misses."""

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


CUT = P("data", "model")


def found(body, *args, specs=CUT, mesh=MESH, **options):
    """Return the findings about a shard_map of `body`, which has no outputs to speak of."""

    def program(*args):
        def checked(*args):
            return body(*args).sum()[None, None]

        return jax.shard_map(checked, in_specs=specs, out_specs=CUT, check_vma=False)(*args)

    return check_program(observe(program, args or ["f32[8,16]"], mesh), **options)


def codes(*args, **options):
    return [each.code for each in found(*args, **options)]


# ----------------------------------------------------------------------------- who goes which way


def parted(predicate, *args, **options):
    def body(x, *rest):
        return lax.cond(predicate(x, *rest), lambda x: lax.psum(x, "model"), lambda x: x, x)

    (each,) = found(body, *args, **options)
    assert each.code == "hazard.deadlock"
    return each.shows[1]


def test_a_predicate_of_places_is_evaluated_through_calls():
    inner = jax.jit(lambda i: jnp.where(i > 1, i, 0).astype(jnp.float32))
    words = parted(lambda x: inner(lax.axis_index("model")) > 2.5)
    assert words == "model=3 takes branch 1 (true); model=0..2 take branch 0 (false)"


def test_a_predicate_of_given_arrays_is_evaluated_with_them():
    x = jnp.zeros((8, 16)).at[0, 5].set(1.0)
    assert parted(lambda x: x.max() > 0, x) == "data=0 model=1 takes branch 1 (true); " + (
        "the other 7 devices take branch 0 (false)"
    )


def test_a_predicate_of_shapes_names_its_arguments():
    words = parted(lambda x: x.max() > 0, "f32[8,16]")
    assert words == "which devices go which way rests on the values of 'args[0]'"


def test_a_predicate_that_rests_on_a_collective_is_evaluated_with_it():
    # Summed over 'data' it still differs along 'model'.
    x = jnp.arange(128.0).reshape(8, 16)
    assert parted(lambda x: lax.psum(x.sum(), "data") > 2000, x).startswith("model=")


def test_in_a_loop_the_first_turn_is_told():
    def body(x):
        def turn(i, x):
            mine = i == lax.axis_index("model")
            return lax.cond(mine, lambda x: lax.psum(x, "model"), lambda x: x, x)

        return lax.fori_loop(0, 3, turn, x)

    (each,) = found(body)
    assert (
        each.shows[1]
        == "in the first turn model=0 takes branch 1 (true); model=1..3 take branch 0 (false)"
    )


def test_a_loop_is_turned_until_the_first_device_leaves():
    def body(x):
        bound = 2 + lax.axis_index("model")
        return lax.fori_loop(0, bound, lambda i, x: x - lax.psum(x, "model"), x)

    (each,) = found(body)
    assert each.shows[1] == "after 2 turns model=0 leaves and model=1..3 go on"


def test_the_gradient_does_not_tell_it_again():
    def loss(x):
        def body(x):
            first = lax.axis_index("data") == 0
            y = lax.cond(first, lambda x: lax.psum(x**2, "data"), lambda x: x, x)
            return y.sum()[None]

        return jax.shard_map(body, in_specs=P("data"), out_specs=P("data"), check_vma=False)(
            x
        ).sum()

    seen = observe(jax.value_and_grad(loss), ["f32[8]"], "data=2")
    assert any(call.phase == "backward" and call.within for call in seen.calls)
    assert [each.code for each in check_program(seen)] == ["hazard.deadlock"]


@pytest.mark.parametrize(
    "predicate",
    [
        lambda x: lax.axis_index("model") >= 0,
        lambda x: lax.pmax(x.max(), ("data", "model")) > 0,
        lambda x: lax.axis_index("data") == 0,  # the psum is over 'model'
        lambda x: lax.psum(1, "data") > 4,
    ],
)
def test_devices_that_meet_and_agree_are_no_finding(predicate):
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
        # Sixty doublings: what is compared must not grow with the ways through the program.
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

    each = next(each for each in found(body) if each.code == "hazard.mismatched_collectives")
    assert (each.cause, each.severity) == (cause, severity)
    assert "model=0 takes branch 1 (true); model=1..3 take branch 0 (false)" in each.shows


# ------------------------------------------------------------------------------- sums of copies


def test_a_sum_of_copies_says_by_how_much_it_multiplies():
    (each,) = found(lambda x: lax.psum(x, ("data", "model")), specs=P("data"))
    assert each.code == "hazard.psum_of_replicated"
    assert "multiplies it by 4 (it is over 'data' too" in each.what


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
def test_a_mean_a_count_and_a_question_are_no_sums_of_copies(body):
    assert codes(body, specs=P("data")) == []


def test_a_quotient_in_which_the_copies_do_not_cancel_is_told():
    assert codes(lambda x: x / lax.psum(x.sum(), "model"), specs=P("data")) == [
        "hazard.psum_of_replicated"
    ]
    assert codes(lambda x: lax.psum(x, "model") / 3, specs=P("data")) == [
        "hazard.psum_of_replicated"
    ]


def test_an_axis_of_one_device_has_no_copies():
    assert codes(lambda x: lax.psum(x, "model"), specs=P("data"), mesh="data=8,model=1") == []


def test_the_sums_of_the_backward_pass_are_jaxs_own():
    def loss(w, x):
        def body(w, x):
            return lax.pmean(((x @ w) ** 2).mean(), "data")

        return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P())(w, x)

    seen = observe(jax.grad(loss), ["f32[16]", "f32[8,16]"], MESH)
    assert any(call.phase == "backward" for call in seen.calls)
    assert check_program(seen) == ()


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
        (lambda x: own(gather(x), "data"), []),  # by the place on another axis
        (lambda x: own(gather(x), dimension=0), []),  # another array axis
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
def test_a_collective_that_gives_the_same_in_every_turn(body, expected):
    assert codes(body) == expected


# ------------------------------------------------------------------------------ where arrays lie


def test_an_array_left_whole_is_told_from_a_threshold_on():
    args = ["f32[8,16]", "f32[1024,4096]"]
    specs = (CUT, P())
    assert codes(lambda x, w: x @ w[:4, :4], *args, specs=specs) == []
    (each,) = found(lambda x, w: x @ w[:4, :4], *args, specs=specs, replicated_bytes=2**24)
    assert each.code == "waste.replicated"
    assert "'args[1]' of float32[1024, 4096] is whole on each of 8 devices: 16 MiB" in each.what
    assert "array axis 1 over 'data' or array axis 1 over 'model'" in each.fix


def test_a_constraint_that_does_not_divide_is_told_and_one_row_is_not():
    def program(x):
        x = lax.with_sharding_constraint(x, P("data", "model"))
        return lax.with_sharding_constraint(x.sum(1, keepdims=True), P("data", "model"))

    seen = observe(program, ["f32[6,10]"], MESH)
    (each,) = check_program(seen)
    assert each.code == "hazard.constraint_replicates"
    assert "4 shards over 'model' of array axis 1, whose size 10" in each.what


def test_a_program_without_any_mesh_is_said_to_have_none():
    (each,) = check_program(observe(jnp.sin, ["f32[4]"], "data=2"))
    assert (each.code, each.severity) == ("program.no_communication", "info")


def test_an_argument_without_a_sharding_among_others_that_have_one_is_whole():
    mesh = virtual_mesh(MESH)
    cut = jax.ShapeDtypeStruct((8, 1024), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    seen = observe(lambda x, w: jnp.tanh(x) + w, [cut, "f32[32,8,1024]"], None)
    assert check_program(seen) == ()
    (each,) = check_program(seen, replicated_bytes=2**20)
    assert (each.code, each.details) == ("waste.replicated", {"path": "w", "bytes": 2**20})


def test_a_program_that_only_keeps_shards_where_they_are_is_sharded():
    mesh = virtual_mesh(MESH)
    cut = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    assert check_program(observe(jnp.sin, [cut], None)) == ()


# -------------------------------------------------------------------------------------- silenced


def test_a_comment_on_the_line_silences_its_finding_in_a_report():
    def body(x):
        return lax.psum(x, "model")  # shardlab: ignore[hazard.psum_of_replicated] four is meant

    program = jax.shard_map(body, in_specs=P("data"), out_specs=P("data"))
    report = check(program, "f32[8]", mesh=MESH, run=False)
    assert report.findings == ()
    assert [(each.finding.code, each.reason) for each in report.silenced] == [
        ("hazard.psum_of_replicated", "four is meant")
    ]
