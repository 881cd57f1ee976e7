"""Causes that only a run with one operation changed can prove."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.analysis.mesh_runs import MeshTrial
from shardlab.analysis.run_arguments import fill_arguments

SPECS = (P(None, "model"), P("model"), P(), P())
ARGS = ("f32[5,8]", "f32[8,5]", "f32[5]", "f32[8,5]")


def train(block, checks_vma=True):
    """Return a train step of two layers, so that no output is a simple multiple of a bias."""

    def step(w1, w2, b, x):
        # all_gather is varying for check_vma.
        @jax.shard_map(in_specs=SPECS, out_specs=P(), check_vma=checks_vma)
        def forward(w1, w2, b, x):
            for _ in range(2):
                x = block(w1, w2, b, x)
            return x

        loss, grad = jax.value_and_grad(lambda w: (forward(w, w2, b, x) ** 2).mean())(w1)
        return w1 - 0.1 * grad, loss

    return step


def bias_inside(w1, w2, b, x):
    return x + lax.psum(jnp.tanh(x @ w1) @ w2 + b, "model")  # here


def residual_inside(w1, w2, b, x):
    return lax.psum(x + jnp.tanh(x @ w1) @ w2, "model") + b  # here


def averaged(w1, w2, b, x):
    return x + lax.pmean(jnp.tanh(x @ w1) @ w2, "model") + b  # here


def normalized_on_each_device(w1, w2, b, x):
    hidden = x @ w1
    return x + lax.psum(hidden / hidden.std(-1, keepdims=True) @ w2, "model") + b


def bias_inside_a_reduce_scatter(w1, w2, b, x):
    full = jnp.tanh(x @ w1) @ w2 + b  # here
    part = lax.psum_scatter(full, "model", scatter_dimension=0, tiled=True)
    return x + lax.all_gather(part, "model", tiled=True)


@pytest.mark.parametrize(
    ("block", "cause"),
    [
        (bias_inside, "bias_n_times"),
        (residual_inside, "bias_n_times"),
        (bias_inside_a_reduce_scatter, "bias_n_times"),
        (averaged, "divided_by_n"),
        (normalized_on_each_device, ""),
    ],
)
def test_a_cause_is_named_if_changing_its_line_makes_all_values_right(block, cause):
    checks_vma = block is not bias_inside_a_reduce_scatter
    report = shardlab.check(train(block, checks_vma), *ARGS, mesh="model=4")
    (finding,) = report.findings
    assert finding.code == "hazard.mesh_dependent"
    assert finding.cause == cause, str(report)
    if cause:
        assert "# here" in finding.where.read_line()
        assert "the values are right on every mesh" in finding.shows[-1]
    else:
        assert "psum over 'model'" in finding.shows[-1]


def ring_sum(rescale):
    """A running maximum and a sum relative to it, over a ring; right if `rescale`."""

    def body(x):
        n = lax.axis_size("seq")
        index = lax.axis_index("seq")
        total, largest = jnp.zeros_like(x[:1]), jnp.full_like(x[:1], -jnp.inf)
        block = x
        for i in range(n):
            visible = jnp.where((index - i) % n <= index, block, -jnp.inf)
            new = jnp.maximum(largest, visible.max(keepdims=True))
            factor = jnp.exp(largest - new) if rescale else 1.0
            total = total * factor + jnp.exp(visible - new).sum(keepdims=True)
            largest = new
            block = lax.ppermute(block, "seq", [(j, (j + 1) % n) for j in range(n)])
        return jnp.broadcast_to(jnp.log(total) + largest, x.shape) - x

    return jax.shard_map(body, in_specs=P("seq"), out_specs=P("seq"))


def test_a_ring_that_does_not_rescale_is_not_called_a_missing_offset():
    report = shardlab.check(ring_sum(False), "f32[24]", mesh="seq=4")
    (finding,) = report.findings
    assert finding.cause == ""
    assert "ppermute over 'seq'" in finding.shows[-1]


def test_positions_inside_a_ring_are_proven_to_need_an_offset():
    def body(x):
        n = lax.axis_size("seq")
        positions = jnp.arange(x.shape[0])  # here
        total = lax.psum((x * jnp.sin(positions)).sum(), "seq")
        return total + lax.ppermute(x, "seq", [(i, i) for i in range(n)])

    f = jax.shard_map(body, in_specs=P("seq"), out_specs=P("seq"))
    report = shardlab.check(f, "f32[24]", mesh="seq=4")
    (finding,) = report.findings
    assert finding.cause == "only_shard_0", str(report)
    assert "# here" in finding.where.read_line()


def test_gradients_summed_before_an_optimizer_are_named_by_their_line():
    def step(w, m, x):
        def body(w, m, x):
            grad = jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
            grad = lax.psum(grad, "data")  # here
            m = 0.9 * m + grad
            return w - 0.1 * jnp.tanh(m), m

        return jax.shard_map(body, in_specs=(P(), P(), P("data")), out_specs=P(), check_vma=False)(
            w, m, x
        )

    report = shardlab.check(step, "f32[3]", "f32[3]", "f32[24,3]", mesh="data=4")
    (finding,) = report.findings
    assert finding.cause == "gradient_scaled_by_n", str(report)
    assert "# here" in finding.where.read_line()


def experts_averaged(w, shared, x):
    @jax.shard_map(in_specs=(P("expert"), P(), P()), out_specs=P())
    def loss(w, shared, x):
        out = lax.pmean(jnp.einsum("td,ed->te", x, w).sum(1), "expert") + jnp.tanh(x @ shared)
        return jnp.mean(out**2)

    value, grads = jax.value_and_grad(loss, (0, 1))(w, shared, x)
    return grads, value


def trial():
    mesh = shardlab.Mesh({"expert": 2})
    args = fill_arguments(("f32[6,3]", "f32[3]", "f32[5,3]"))
    return MeshTrial(experts_averaged, args, mesh, is_reference=False)


def test_gradients_of_a_shard_map_are_recognized_from_outside():
    outputs = trial().run.outputs
    is_gradient = {path: leaf.lineage.is_gradient for path, leaf in outputs.items()}
    assert is_gradient == {"[0][0]": True, "[0][1]": True, "[1]": False}


def test_repairs_that_are_compiled_together_give_what_each_gives_alone():
    program = trial()
    repairs, later_repairs = program.list_repairs()
    # Only the pmean of the forward pass: JAX adds sums of its own to the backward pass.
    assert [(item.kind, item.source.line) for item in repairs] == [
        ("divide", repairs[0].source.line),
        ("multiply", repairs[0].source.line),
    ]
    # The sums of one shard that feed it, tried only if no change of the pmean helps.
    assert {item.kind for item in later_repairs} <= {"sum_shards", "average_shards"}
    together = program.run_repaired(repairs, ["[1]"])
    for repair in repairs:
        alone = program.run_repaired([repair], ["[1]"])
        assert together[repair]["[1]"] == alone[repair]["[1]"]
    divided, multiplied = (float(together[repair]["[1]"]) for repair in repairs)
    wrong = float(program.run.outputs["[1]"].value)
    assert len({divided, multiplied, wrong}) == 3


def ring_of_weighted_blocks(step, index_step):
    """Return a sum over a ring of blocks, each weighted by the number of the device it is from."""

    def body(x):
        n, rank = lax.axis_size("seq"), lax.axis_index("seq")
        total, block = jnp.zeros_like(x), x
        for hop in range(n):
            owner = (rank - index_step * hop) % n
            positions = owner * x.shape[0] + jnp.arange(x.shape[0])
            total = total + (block * jnp.sin(positions)).sum()
            block = lax.ppermute(block, "seq", [(i, (i + step) % n) for i in range(n)])  # here
        return total

    return jax.shard_map(body, in_specs=P("seq"), out_specs=P("seq"))


def keys_and_values(step):
    def body(k, v):
        n, rank = lax.axis_size("seq"), lax.axis_index("seq")
        ring = [(i, (i + step) % n) for i in range(n)]
        total = jnp.zeros_like(k)
        for hop in range(n):
            position = (rank - hop) % n * k.shape[0] + jnp.arange(k.shape[0])
            total = total + (jnp.sin(position) * k * v).sum()
            k = lax.ppermute(k, "seq", ring)  # here
            v = lax.ppermute(v, "seq", ring)
        return total

    spec = P("seq")
    return jax.shard_map(body, in_specs=(spec, spec), out_specs=spec)


def first_rows(offset):
    def body(table, x):
        first = lax.axis_index("model") * x.shape[0] * offset
        rows = lax.dynamic_slice_in_dim(table, first, x.shape[0])  # here
        return lax.psum((x * rows).sum(), "model")

    return jax.shard_map(body, in_specs=(P(), P("model")), out_specs=P(), check_vma=False)


def constant_first_rows():
    def body(table, x):
        rows = lax.dynamic_slice_in_dim(table, 0, x.shape[0])  # here
        return lax.psum((x * rows).sum(), "model")

    return jax.shard_map(body, in_specs=(P(), P("model")), out_specs=P())


def normalized(reduce):
    def body(x, w):
        scale = reduce((x * x).mean(-1, keepdims=True))  # here
        return lax.psum(x * lax.rsqrt(scale) @ w, "model")

    specs = (P(None, "model"), P("model"))
    return jax.shard_map(body, in_specs=specs, out_specs=P())


def softmax_total(reduce):
    def body(x):
        largest = reduce(lax.stop_gradient(x).max())  # here
        return lax.psum(jnp.exp(x - largest).sum(), "model") * jnp.exp(lax.pmax(largest, "model"))

    return jax.shard_map(body, in_specs=P("model"), out_specs=P())


VECTOR = ("f32[24]",)


@pytest.mark.parametrize(
    ("wrong", "right", "args", "mesh", "cause"),
    [
        (
            ring_of_weighted_blocks(-1, 1), ring_of_weighted_blocks(1, 1), VECTOR, "seq=4",
            "reversed_ppermute",
        ),
        (
            ring_of_weighted_blocks(1, -1), ring_of_weighted_blocks(-1, -1), VECTOR, "seq=4",
            "reversed_ppermute",
        ),
        (keys_and_values(-1), keys_and_values(1), VECTOR * 2, "seq=4", "reversed_ppermute"),
        (constant_first_rows(), first_rows(1), VECTOR * 2, "model=4", "only_shard_0"),
        (
            normalized(lambda x: x), normalized(lambda x: lax.pmean(x, "model")),
            ("f32[3,24]", "f32[24,2]"), "model=4", "local_reduction",
        ),
        (
            softmax_total(lambda x: x), softmax_total(lambda x: lax.pmax(x, "model")),
            VECTOR, "model=4", "local_reduction",
        ),
    ],
    ids=["ring", "index", "keys and values", "slice", "mean", "maximum"],
)  # fmt: skip
def test_a_repair_of_one_line_names_the_cause_and_its_right_twin_has_none(
    wrong, right, args, mesh, cause
):
    (finding,) = shardlab.check(wrong, *args, mesh=mesh).findings
    assert finding.cause == cause, str(finding)
    assert "# here" in finding.where.read_line()
    assert "the values are right on every mesh" in finding.shows[-1]
    assert shardlab.check(right, *args, mesh=mesh).findings == ()


def test_a_loss_scale_that_is_summed_is_not_called_a_gradient():
    def step(w, scale, x):
        def body(w, scale, x):
            grad = lax.pmean(jax.grad(lambda w: ((x @ w) ** 2).mean())(w), "data")
            is_finite = jnp.isfinite(grad).all()
            scale = lax.psum(scale, "data")  # here
            return w - 0.1 * grad, jnp.where(is_finite, 2 * scale, scale / 2)

        specs = (P(), P(), P("data"))
        return jax.shard_map(body, in_specs=specs, out_specs=P(), check_vma=False)(w, scale, x)

    (finding,) = shardlab.check(step, "f32[3]", "f32[]", "f32[24,3]", mesh="data=4").findings
    assert finding.cause == "factor_of_n", str(finding)
    assert "# here" in finding.where.read_line()


def test_a_sum_of_updated_weights_is_not_called_a_gradient():
    def step(w, average, x):
        def body(w, average, x):
            grad = lax.pmean(jax.grad(lambda w: ((x @ w) ** 2).mean())(w), "data")
            w = w - 0.1 * grad
            return w, jnp.tanh(0.9 * average + 0.1 * lax.psum(w, "data"))  # here

        specs = (P(), P(), P("data"))
        return jax.shard_map(body, in_specs=specs, out_specs=P(), check_vma=False)(w, average, x)

    (finding,) = shardlab.check(step, "f32[3]", "f32[3]", "f32[24,3]", mesh="data=4").findings
    assert finding.cause == "factor_of_n", str(finding)
    assert "# here" in finding.where.read_line()


def test_collectives_of_a_gradient_without_a_cause_are_listed_with_their_lines():
    @jax.custom_vjp
    def square(x):
        return lax.psum((x**2).sum(), "data")  # forward

    def backward(x, ct):
        # Right on one device; not linear in n.
        return (2 * x * ct * lax.psum(1.0, "data") ** 2 + lax.pmax(x.max(), "data") - x.max(),)

    square.defvjp(lambda x: (square(x), x), backward)
    f = jax.shard_map(square, in_specs=P("data"), out_specs=P(), check_vma=False)
    (finding,) = shardlab.check(f, "f32[24]", mesh="data=4").findings
    assert (finding.cause, finding.details["kind"]) == ("", "gradient"), str(finding)
    assert any("collectives on the path" in line for line in finding.shows)
    assert any("pmax over 'data'" in line for line in finding.shows)


def test_replicas_that_print_alike_are_shown_by_an_element_that_differs():
    def body(x):
        index = lax.axis_index("data")
        return jnp.ones((4, 9)).at[2, 4].add(index.astype(jnp.float32)) * x.sum()

    f = jax.shard_map(body, in_specs=P(), out_specs=P(), check_vma=False)
    (finding,) = shardlab.check(f, "f32[3]", mesh="data=2").findings
    assert finding.shows[0] == "on data=2, element [2, 4]:"
    assert len(set(finding.shows[1:3])) == 2
    first, second = (line.split(": ")[1] for line in finding.shows[1:3])
    assert first != second
    assert "..." not in first


def test_results_that_print_alike_are_shown_by_an_element_that_differs():
    def body(x):
        wrong = lax.psum(1.0, "data") * jnp.sin(lax.axis_size("data") * x.sum())
        return x.at[3, 4].set(jnp.where(wrong > -99, wrong, 0))

    f = jax.shard_map(body, in_specs=P(), out_specs=P())
    (finding,) = shardlab.check(f, "f32[6,9]", mesh="data=2").findings
    (line,) = [line for line in finding.shows if line.startswith("on data=2")]
    assert line.startswith("on data=2: 1 of 54 elements differ; the first, [3, 4], is "), line
