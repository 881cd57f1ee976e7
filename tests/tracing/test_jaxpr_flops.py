"""FLOPs of one device, by hand and by XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardlab.tracing.observe import observe


def counted(f, *args, mesh="data=2"):
    return observe(jax.shard_map(f, in_specs=P(), out_specs=P(), check_vma=False), args, mesh)


@pytest.mark.parametrize(
    ("f", "args", "n_flops"),
    [
        (lambda x, w: x @ w, ("f32[6,20]", "f32[20,12]"), 2 * 6 * 20 * 12),
        (lambda x, w: jnp.einsum("bij,bjk->bik", x, w), ("f32[3,4,5]", "f32[3,5,7]"), 840),
        (lambda x: jnp.tanh(x) * 2 + 1, ("f32[6,5]",), 90),
        (lambda x: x.sum(), ("f32[6,5]",), 30),
        (lambda x: x.T.reshape(-1).astype(jnp.bfloat16)[2:], ("f32[6,5]",), 0),
        (lambda x: lax.fori_loop(0, 7, lambda i, c: c * 2.0, x), ("f32[6,5]",), 210),
        (lambda x: lax.cond(x[0] > 0, lambda: x * 2, lambda: x), ("f32[7]",), 8),
        (
            lambda x, k: lax.conv(x, k, (1, 1), "VALID"),
            ("f32[2,3,8,8]", "f32[5,3,3,3]"),
            2 * (2 * 5 * 6 * 6) * (3 * 3 * 3),
        ),
    ],
    ids=["product", "batched", "elementwise", "sum", "moves", "loop", "cond", "convolution"],
)
def test_flops_of_one_device(f, args, n_flops):
    actual = counted(f, *args).flops
    # A loop also counts its iterations, one scalar operation each.
    assert n_flops <= actual <= n_flops + 8


def test_flops_are_of_local_shapes_and_agree_with_xla_on_a_product():
    f = jax.shard_map(lambda x, w: x @ w, in_specs=(P("data"), P()), out_specs=P("data"))
    assert observe(f, ["f32[6,20]", "f32[20,12]"], "data=2").flops == 3 * 12 * 20 * 2
    arrays = jnp.ones((3, 20)), jnp.ones((20, 12))
    cost = jax.jit(jnp.matmul).lower(*arrays).compile().cost_analysis()
    assert cost["flops"] == 3 * 12 * 20 * 2


def test_one_iteration_of_a_while_loop_is_counted_and_noted():
    observation = counted(
        lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: c * 2.0, x), "f32[64]"
    )
    assert 64 <= observation.flops <= 66
    assert [note for note in observation.notes if "one iteration" in note]
