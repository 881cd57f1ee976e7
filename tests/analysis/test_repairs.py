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
