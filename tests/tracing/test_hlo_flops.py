"""FLOPs of one device, from the text of a partitioned program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from shardlab.tracing.compiler.inserted_collectives import observe_compiled
from shardlab.tracing.hlo.hlo_flops import count_hlo_flops
from shardlab.tracing.hlo.hlo_module import parse_module
from shardlab.tracing.jaxpr_flops import count_jaxpr_flops
from shardlab.tracing.stage import stage_program

TEXT = """HloModule m, num_partitions=4

%body (s: (s32[], f32[6,6])) -> (s32[], f32[6,6]) {
  %s = (s32[], f32[6,6]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[6,6]{1,0} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %y = f32[6,6]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %dead = f32[6,6]{1,0} dot(%y, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[6,6]{1,0}) tuple(%next, %y)
}

%test (s: (s32[], f32[6,6])) -> pred[] {
  %s = (s32[], f32[6,6]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}

ENTRY %main (x: f32[6,6]) -> f32[] {
  %x = f32[6,6]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %first = (s32[], f32[6,6]{1,0}) tuple(%zero, %x)
  %loop = (s32[], f32[6,6]{1,0}) while(%first), condition=%test, body=%body
  %y = f32[6,6]{1,0} get-tuple-element(%loop), index=1
  %z = f32[] constant(0)
  ROOT %sum = f32[] reduce(%y, %z), dimensions={0,1}, to_apply=%test
}
"""


def test_loops_are_multiplied_and_dead_code_is_not_counted():
    counted = count_hlo_flops(parse_module(TEXT.splitlines()))
    # Five iterations of a product (2 x 36 x 6), its counter and its test; then a sum of 36.
    assert (counted.total, counted.n_unknown_loops) == (5 * (432 + 1 + 1) + 36, 0)


def local(w, x):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    return lax.scan(layer, x, w)[0].sum()


@pytest.mark.parametrize(
    ("specs", "share"),
    [((P(), P("data")), 4), ((P(None, None, "data"), P()), 4), ((P(), P()), 1)],
    ids=["batch", "columns", "replicated"],
)
def test_sharded_work_is_divided_and_replicated_work_is_not(specs, share):
    """Three scanned products, 2 x 8 x 20 x 20 each; the elementwise rest is small beside them."""

    def step(w, x):
        given = zip((w, x), specs, strict=True)
        w, x = (lax.with_sharding_constraint(array, spec) for array, spec in given)
        return local(w, x)

    shapes = ["f32[3,20,20]", "f32[8,20]"]
    staged = stage_program(jax.jit(step), shapes, "data=4")
    counted = observe_compiled(staged).flops
    total = count_jaxpr_flops(stage_program(local, shapes, "data=4").jaxpr).total
    assert 3 * 2 * 8 * 20 * 20 / share <= counted <= 1.1 * total / share
