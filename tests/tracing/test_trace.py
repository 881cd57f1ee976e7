"""What a program communicates, read off its jaxpr: counts, phases, places, bytes, lines."""

from __future__ import annotations

import functools
import inspect
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shardlab.collectives.call import CollectiveCall
from shardlab.simulator.shard_map import shard_map
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.collective_calls import collective_call, is_collective_site
from shardlab.tracing.jaxpr_walk import walk_jaxpr
from shardlab.tracing.observe import observe
from shardlab.tracing.stage import stage_program

MESH = "data=2,model=4"
# Two shapes whose sizes are all different, cut over both mesh axes.
X, W = "f32[6,20]", "f32[20,12]"


BOTH, WHOLE = P("data", "model"), P()


def calls(body, arg=X, out_specs=WHOLE, mesh=MESH):
    """Return the calls of a body that gets a piece of one array."""
    f = jax.shard_map(body, in_specs=BOTH, out_specs=out_specs, check_vma=False)
    return observe(f, [arg], mesh).calls


def line_of(function, text):
    """Return the number of the one line of a function that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return number


# ------------------------------------------------------------------------------- what a call is


@pytest.mark.parametrize(
    ("body", "op", "axes", "out_shape", "wire", "details"),
    [
        (lambda x: lax.psum(x, "data"), "psum", ("data",), (3, 5), 60, {}),
        (lambda x: lax.pmean(x, "model"), "psum", ("model",), (3, 5), 90, {}),
        (lambda x: lax.pmax(x, "model"), "pmax", ("model",), (3, 5), 90, {}),
        (lambda x: lax.pmin(x, ("model", "data")), "pmin", ("model", "data"), (3, 5), 105, {}),
        (
            lambda x: lax.all_gather(x, "model", axis=1, tiled=True),
            "all_gather",
            ("model",),
            (3, 20),
            180,
            {"axis": 1, "tiled": True},
        ),
        (
            lambda x: lax.psum_scatter(jnp.tile(x, (4, 1)), "model", tiled=True),
            "psum_scatter",
            ("model",),
            (3, 5),
            180,
            {"axis": 0, "tiled": True},
        ),
        (
            lambda x: lax.all_to_all(jnp.tile(x, (4, 1)), "model", 0, 1, tiled=True),
            "all_to_all",
            ("model",),
            (3, 20),
            180,
            {"split_axis": 0, "concat_axis": 1, "tiled": True},
        ),
        (
            lambda x: lax.ppermute(x, "model", [(0, 1), (3, 0)]),
            "ppermute",
            ("model",),
            (3, 5),
            60,
            {"pairs": [[0, 1], [3, 0]]},
        ),
    ],
    ids=["psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute"],
)
def test_a_call_has_its_name_axes_shapes_and_wire_bytes(body, op, axes, out_shape, wire, details):
    (call,) = calls(body)
    assert (call.op, call.mesh_axes, call.out_shape, call.wire_bytes) == (op, axes, out_shape, wire)
    assert call.dtype == "float32"
    assert call.payload_bytes == 4 * math.prod(call.shape)
    assert call.group_size == math.prod({"data": 2, "model": 4}[axis] for axis in axes)
    assert call.varies == ("data", "model")
    assert call.details.items() >= details.items()
    assert CollectiveCall.from_json(call.to_json()) == call


@pytest.mark.parametrize(
    ("dtype", "n_bytes"), [("bf16", 30), ("f32", 60), ("s8", 15), ("s4", 8), ("c64", 120)]
)
def test_the_payload_follows_the_dtype(dtype, n_bytes):
    (call,) = calls(lambda x: lax.ppermute(x, "data", [(0, 1)]), f"{dtype}[6,20]")
    assert call.payload_bytes == call.wire_bytes == n_bytes


def test_in_groups_only_the_group_takes_part():
    groups = [[0, 3], [1, 2]]
    (call,) = calls(lambda x: lax.psum(x, "model", axis_index_groups=groups))
    assert (call.group_size, call.wire_bytes, call.details) == (2, 60, {"groups": groups})


def test_of_groups_of_different_sizes_the_largest_counts():
    (call,) = calls(lambda x: lax.psum(x, "model", axis_index_groups=[[0], [1, 2, 3]]))
    assert (call.group_size, call.wire_bytes) == (3, 80)


def test_over_one_device_nothing_is_sent():
    (call,) = calls(lambda x: lax.psum(x, "data"), mesh="data=1,model=4")
    assert (call.group_size, call.wire_bytes) == (1, 0)


def test_a_tree_is_one_call_for_each_array():
    traced_calls = calls(lambda x: lax.psum({"a": x, "b": [x.sum(), x[0]]}, "data"), out_specs=P())
    assert [call.shape for call in traced_calls] == [(3, 5), (), (5,)]


def test_casts_and_constants_send_nothing():
    def body(x):
        return lax.pcast(x * lax.psum(1, "data"), (), to="varying") * lax.axis_size("model")

    f = jax.shard_map(body, in_specs=P("data", "model"), out_specs=P("data", "model"))
    assert observe(f, [X], MESH).calls == ()


def test_an_unused_psum_is_not_executed():
    assert calls(lambda x: (lax.psum(x, "data"), x)[1], out_specs=P("data", "model")) == ()


def test_what_a_vmap_adds_is_in_the_payload_unless_it_is_summed():
    def body(x):
        gathered = jax.vmap(lambda row: lax.all_gather(row, "model"))(x)
        summed = jax.vmap(lambda row: lax.psum(row, ("rows", "model")), axis_name="rows")(x)
        return gathered, summed

    gathered, summed = calls(body)
    assert (gathered.shape, summed.shape) == ((3, 5), (5,))


def test_a_program_without_a_mesh_communicates_nothing():
    observation = observe(jax.jit(lambda x, w: jnp.tanh(x @ w)), [X, W], None)
    assert (observation.calls, observation.mesh, observation.flops) == (
        (),
        (),
        2 * 6 * 20 * 12 + 6 * 12,
    )


# --------------------------------------------------------------------- how often, and inside what


def scanned(f, length):
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=length)[0]


def test_lengths_of_nested_scans_multiply():
    (call,) = calls(scanned(scanned(lambda c: lax.psum(c, "data"), 3), 5))
    assert call.count == 15
    assert [(scope.kind, scope.length) for scope in call.within] == [("scan", 5), ("scan", 3)]
    assert call.total_wire_bytes == 15 * 60


def test_in_a_while_loop_the_count_is_unknown():
    def body(x):
        return lax.while_loop(
            lambda c: lax.pmax(c.max(), "data") > 1.0, lambda c: lax.psum(c, "model") / 9, x
        )

    condition, step = calls(body)
    assert (condition.op, condition.count, step.op, step.count) == ("pmax", None, "psum", None)
    assert condition.within[0].id == step.within[0].id
    # The carry starts different on every device; only the maximum over 'data' is shared.
    assert step.within[0].varies == ("model",)
    assert step.within[0].predicate.line == line_of(body, "lax.pmax")


def test_a_fori_loop_of_known_length_is_a_scan():
    (call,) = calls(lambda x: lax.fori_loop(0, 7, lambda i, c: lax.psum(c, "data"), x))
    assert call.count == 7


def test_each_branch_of_a_cond_is_listed_and_the_most_expensive_counts():
    def body(x):
        first = lax.axis_index("data") == 0
        return lax.cond(first, lambda x: lax.psum(x, "model"), lambda x: x[:, ::-1] + 1, x)

    (call,) = calls(body)
    (scope,) = call.within
    assert (scope.kind, scope.branch, scope.n_branches, scope.varies) == ("cond", 1, 2, ("data",))
    lines = [line_of(body, "axis_index"), line_of(body, "lax.cond")]
    assert [scope.predicate.line, scope.source.line] == lines


def test_a_predicate_is_found_outside_of_the_jit_that_uses_it():
    @jax.jit
    def choose(is_first, x):
        return lax.switch(is_first, [lambda x: x, lambda x: lax.psum(x, "data")], x)

    def body(x):
        is_odd = lax.axis_index("model") % 2
        return choose(is_odd, x)

    (call,) = calls(body)
    assert call.within[0].varies == ("model",)
    assert call.within[0].predicate.line == line_of(body, "is_odd =")


def test_carries_reach_a_fixed_point_before_the_body_is_walked():
    def body(x):
        def step(carry, _):
            a, b = carry
            # b is replicated at first, and gets the value of a in the iteration before.
            return (lax.axis_index("data") * 1.0 + a * 0, lax.cond(b > 0, sum_up, same, a)), None

        sum_up, same = (lambda a: lax.psum(a, "data")), (lambda a: a)
        return lax.scan(step, (0.0, 0.0), None, length=3)[0]

    (call,) = calls(body)
    assert call.within[1].varies == ("data",)


def test_of_a_linear_solve_only_the_solver_runs():
    def body(x):
        return lax.custom_linear_solve(
            lambda v: lax.psum(v, "data") + v, x, lambda matvec, b: matvec(b) / 2, symmetric=True
        )

    assert [(call.op, call.count) for call in calls(body)] == [("psum", 1)]


def test_deeply_nested_loops_are_walked_in_linear_time():
    f = lambda c: lax.psum(c, "data")  # noqa: E731
    for _ in range(12):
        f = scanned(f, 2)
    staged = stage_program(
        jax.shard_map(f, in_specs=P("data"), out_specs=P(), check_vma=False), [X], MESH
    )
    start = time.process_time()
    deepest = list(walk_jaxpr(staged.jaxpr))[-1]
    assert deepest.context.count == 2**12
    # Milliseconds with memory, minutes without: 3**12 bodies. Processor time, not the clock.
    assert time.process_time() - start < 30


# ----------------------------------------------------------------------------------------- phases


def layer(w, x):
    y = jnp.sin(x @ w)
    return lax.psum(y, "model") / 4


def loss(w, x, around=lambda f: f):
    y = around(layer)(w, x)
    return lax.pmean((around(layer)(w, y) ** 2).sum(), "data")


W2, X2 = "f32[8,8]", "f32[6,8]"


def phases(f):
    return [(call.phase, call.source.function) for call in observe(f, [W2, X2], MESH).calls]


def mapped(body):
    return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P())


FORWARD, BACKWARD = ("forward", "layer"), ("backward", "layer")


def test_without_a_gradient_everything_is_forward():
    assert phases(mapped(loss)) == [FORWARD, FORWARD, ("forward", "loss")]


@pytest.mark.parametrize(
    "f",
    [
        jax.value_and_grad(mapped(loss)),
        jax.jit(jax.value_and_grad(mapped(loss))),
        mapped(lambda w, x: jax.value_and_grad(loss)(w, x)),
        jax.named_scope("step")(jax.value_and_grad(mapped(loss))),
    ],
    ids=["around the shard_map", "in a jit", "inside the body", "in a named scope"],
)
def test_a_gradient_has_a_forward_and_a_backward_phase(f):
    traced_calls = phases(f)
    assert traced_calls[:3] == [FORWARD, FORWARD, ("forward", "loss")]
    assert {phase for phase, _ in traced_calls[3:]} == {"backward"}
    assert len(traced_calls) >= 5


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: jax.value_and_grad(mapped(f)),
        lambda f: mapped(lambda w, x: jax.value_and_grad(f)(w, x)),
    ],
    ids=["around the shard_map", "inside the body"],
)
def test_what_a_checkpoint_computes_again_is_recompute(wrap):
    sines = functools.partial(loss, around=lambda f: jax.checkpoint(lambda w, x: jnp.sin(f(w, x))))
    traced_calls = [phase for phase, _ in phases(wrap(sines))]
    assert traced_calls[:3] == ["forward"] * 3
    # The sine after each psum needs its argument again.
    assert traced_calls.count("recompute") == 2
    assert traced_calls.count("backward") == len(traced_calls) - 5


def test_recompute_of_a_full_shard_map():
    f = jax.value_and_grad(lambda w, x: jnp.sin(jax.checkpoint(mapped(loss))(w, x)))
    traced_calls = [phase for phase, _ in phases(f)]
    assert (traced_calls[:3], traced_calls.count("recompute")) == (["forward"] * 3, 2)


def test_layers_in_a_scan_have_phases_too():
    def stack(ws, x):
        y, _ = lax.scan(lambda y, w: (jax.checkpoint(layer)(w, y), None), x, ws)
        return (y**2).sum()

    f = mapped(lambda ws, x: lax.psum(jax.grad(stack)(ws, x), "data"))
    traced_calls = observe(f, ["f32[5,8,8]", X2], MESH).calls
    assert [(call.phase, call.count) for call in traced_calls] == [
        ("forward", 5),
        ("backward", 5),
        *[("backward", 5)] * (len(traced_calls) - 3),
        ("forward", 1),
    ]


@jax.custom_vjp
def doubled(w, x):
    return lax.psum(x @ w, "model")


doubled.defvjp(
    lambda w, x: (lax.psum(x @ w, "model"), (w, x)),
    lambda kept, g: (lax.psum(kept[1].T @ g, ("data", "model")), g @ kept[0].T),
)


def test_a_custom_gradient_is_backward():
    f = jax.shard_map(
        lambda w, x: jax.value_and_grad(lambda w: doubled(w, x).sum())(w),
        in_specs=(P(), P("data")),
        out_specs=P(),
        check_vma=False,
    )
    assert [(call.phase, call.mesh_axes) for call in observe(f, [W2, X2], MESH).calls] == [
        ("forward", ("model",)),
        ("backward", ("data", "model")),
    ]


def test_a_predicate_that_is_the_same_everywhere_is_so_in_the_backward_pass():
    def body(w, x):
        is_large = lax.psum(x.sum(), "data") > 0
        y = lax.cond(is_large, lambda: layer(w, x), lambda: layer(w, jnp.cos(x)))
        return lax.pmean((y**2).sum(), "data")

    f = jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    traced_calls = [c for c in observe(jax.grad(f), [W2, X2], MESH).calls if c.within]
    assert [c.phase for c in traced_calls] == ["forward", "forward", "backward", "backward"]
    assert {c.within[0].varies for c in traced_calls} == {()}
    assert {c.within[0].predicate.line for c in traced_calls} == {line_of(body, "is_large =")}


# ------------------------------------------------------------------------------- the user's line


def test_the_line_is_the_users_in_functions_lambdas_and_loops():
    def inner(c):
        return lax.psum(c, "data")  # the inner line

    def body(x):
        y = inner(x)
        z = (lambda v: lax.pmax(v, "data"))(y)  # the lambda
        return lax.scan(lambda c, _: (lax.pmin(c, "data"), None), z, None, length=2)[0]  # the scan

    traced_calls = calls(body)
    assert [call.source.file for call in traced_calls] == [__file__] * 3
    assert [call.source.line for call in traced_calls] == [
        line_of(inner, "# the inner line"),
        line_of(body, "# the lambda"),
        line_of(body, "# the scan"),
    ]
    assert [call.source.function for call in traced_calls] == ["inner", "<lambda>", "<lambda>"]


def test_the_gradient_of_a_replicated_input_is_summed_where_it_was_used():
    backward = [
        call
        for call in observe(jax.grad(mapped(loss)), [W2, X2], MESH).calls
        if call.phase == "backward" and call.mesh_axes == ("data",)
    ]
    assert {call.source.line for call in backward} == {line_of(layer, "jnp.sin(x @ w)")}


def test_what_jax_itself_inserts_has_the_line_of_the_body():
    def body(w, x):
        return lax.psum((x @ w).sum(), "data")

    f = jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    *_, last = observe(jax.grad(f), [W2, X2], MESH).calls
    assert (last.source.file, last.source.function) == (__file__, "body")


# ------------------------------------------------------------------------------ meshes and programs


def test_nested_shard_maps_have_both_meshes_axes():
    def outer(x):
        inner = jax.shard_map(
            lambda x: lax.psum(x, ("model", "data")),
            in_specs=P(None, "model"),
            out_specs=P(),
            axis_names={"model"},
            check_vma=False,
        )
        return inner(lax.psum(x, "data"))

    f = jax.shard_map(
        outer, in_specs=P("data"), out_specs=P(), axis_names={"data"}, check_vma=False
    )
    first, second = stage_calls(f, [X])
    assert (first.shape, first.group_size, first.varies) == ((3, 20), 2, ("data",))
    assert (second.shape, second.group_size, second.varies) == ((3, 5), 8, ("model",))


def test_a_partly_manual_shard_map_is_noted():
    f = jax.shard_map(total, in_specs=P("data"), out_specs=P(), axis_names={"data"})
    observation = observe(f, [X], MESH)
    assert (len(observation.calls), observation.calls[0].shape) == (1, (3, 20))
    assert [note for note in observation.notes if "leaves 'model' to the compiler" in note]
    assert observe(Model().step, [X], MESH).notes == ()


def stage_calls(f, args):
    """The program's own calls, where the compiler would have to be asked for the rest."""
    return [
        collective_call(site)
        for site in walk_jaxpr(stage_program(f, args, MESH).jaxpr)
        if is_collective_site(site)
    ]


def total(x):
    return lax.psum(x, "data")


def own_mesh(x):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    return jax.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def takes_a_mesh(x, mesh):
    return jax.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


class Model:
    def step(self, x):
        return jax.shard_map(total, in_specs=P("data"), out_specs=P())(x)


ours = shard_map(total, mesh="data=2,model=4", in_specs=P("data"), out_specs=P())


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (own_mesh, "own_mesh"),
        (jax.jit(own_mesh), "own_mesh"),
        (takes_a_mesh, "takes_a_mesh"),
        (functools.partial(takes_a_mesh), "takes_a_mesh"),
        (Model().step, "step"),
        (ours, "total"),
        (jax.jit(ours), "total"),
    ],
    ids=["own mesh", "jit", "keyword", "partial", "method", "ours", "ours in a jit"],
)
def test_any_program_is_retargeted_to_the_requested_mesh(f, name):
    observation = observe(f, ["f32[64,3]"], "data=16,model=32")
    assert (observation.program, observation.mesh) == (name, (("data", 16), ("model", 32)))
    assert [(call.shape, call.group_size) for call in observation.calls] == [((4, 3), 16)]


@pytest.mark.parametrize("f", [own_mesh, ours], ids=["jax.make_mesh", "ours"])
def test_without_a_mesh_the_program_uses_its_own(f):
    observation = observe(f, ["f32[64,3]"], None)
    assert observation.mesh == (("data", 2), ("model", 4))
    assert [(call.shape, call.group_size) for call in observation.calls] == [((32, 3), 2)]


@pytest.mark.parametrize(
    "mesh",
    ["data=4", {"data": 4}, virtual_mesh("data=4"), virtual_mesh("data=4").abstract_mesh],
    ids=["text", "mapping", "Mesh", "AbstractMesh"],
)
def test_a_mesh_may_have_any_form(mesh):
    (call,) = observe(Model().step, ["f32[8]"], mesh).calls
    assert call.group_size == 4


@pytest.mark.parametrize(
    "arg",
    ["f32[8,6]", "8x6:f32", jax.ShapeDtypeStruct((8, 6), jnp.float32), np.ones((8, 6), np.float32)],
    ids=["text", "sizes", "ShapeDtypeStruct", "NumPy"],
)
def test_arguments_may_be_shapes_in_trees(arg):
    f = jax.shard_map(lambda t: lax.psum(t["a"][0], "data"), in_specs=P("data"), out_specs=P())
    staged = stage_program(
        lambda tree, scale, how: f(tree) * scale, [{"a": [arg]}, 3, "f32"], "data=4"
    )
    assert staged.names == ("tree['a'][0]",)
    (call,) = observe(f, [{"a": [arg]}], "data=4").calls
    assert call.shape == (2, 6)


def test_a_function_is_traced_anew_each_time():
    settings = {"reduce": lax.psum}

    def step(x):
        f = jax.shard_map(
            lambda x: settings["reduce"](x, "data"), in_specs=P("data"), out_specs=P()
        )
        return f(x)

    before = observe(step, ["f32[8]"], "data=4").calls
    settings["reduce"] = lax.pmax
    after = observe(step, ["f32[8]"], "data=4").calls
    assert (before[0].op, after[0].op) == ("psum", "pmax")


def test_a_collective_of_a_library_belongs_to_the_line_that_calls_it():
    nnx = pytest.importorskip("flax.nnx")
    norm = nnx.BatchNorm(4, axis_name="data", rngs=nnx.Rngs(0))

    @nnx.jit
    def step(norm, x):
        graph, state = nnx.split(norm)

        def body(state, x):
            return nnx.merge(graph, state)(x)  # the user's line

        return jax.shard_map(body, in_specs=(P(), P("data")), out_specs=P("data"), check_vma=False)(
            state, x
        )

    (call,) = observe(step, [norm, "f32[16,4]"], "data=8").calls
    assert (call.op, call.source.file, call.source.function) == ("psum", __file__, "body")


def test_inserted_collectives_are_listed_with_the_programs_own():
    f = jax.shard_map(lambda x: lax.psum(x, "model"), in_specs=BOTH, out_specs=P("data"))
    observation = observe(lambda x: jnp.sin(f(x)).sum(), [X], MESH)
    assert [(call.op, call.mesh_axes, call.origin) for call in observation.calls] == [
        ("psum", ("model",), "program"),
        ("psum", ("data",), "compiler"),
    ]
    elementwise = observe(lambda x: jnp.sin(f(x)) * 2, [X], MESH)
    assert [call.origin for call in elementwise.calls] == ["program"]
    assert elementwise.memory is None  # nothing had to be compiled


def test_512_virtual_devices():
    observation = observe(Model().step, ["bf16[1024,8]"], "data=512")
    assert (observation.calls[0].shape, observation.calls[0].payload_bytes) == ((2, 8), 32)
    assert len(jax.devices()) == 1


def test_the_program_is_not_run():
    ran = []
    f = jax.shard_map(
        lambda x: (jax.debug.callback(lambda x: ran.append(1), x), lax.psum(x, "data"))[1],
        in_specs=P("data"),
        out_specs=P(),
    )
    assert len(observe(f, [jnp.arange(8.0)], "data=8").calls) == 1
    jax.effects_barrier()
    assert ran == []
