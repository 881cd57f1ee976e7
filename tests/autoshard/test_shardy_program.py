"""A program lowered once and partitioned for many shardings: collectives, bytes, FLOPs, memory."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from autoshard_programs import array, layers_args, layers_step, mlp_args, mlp_loss, mlp_step

from shardlab._jax.shardy_program import lower_once
from shardlab.autoshard.arguments import find_state

MESH = (("data", 4), ("model", 2))


def calls(partitioned):
    return [(call.kind, call.axes, call.operand_bytes) for call in partitioned.collectives]


def test_a_contraction_over_a_mesh_axis_ends_in_an_all_reduce():
    program = lower_once(lambda x, w: x @ w, (array(8, 16), array(16, 6)), MESH)
    partitioned = program.partition([((), ("model",)), (("model",), ())])
    assert calls(partitioned) == [("all_reduce", ("model",), 8 * 6 * 2)]
    [product] = partitioned.products
    assert (product.rows, product.inner, product.columns) == (8, 8, 6)
    assert product.flops == 2 * 8 * 8 * 6


def test_column_then_row_needs_one_all_reduce_forward():
    program = lower_once(mlp_loss, mlp_args(batch=64, width=16, hidden=48), MESH)
    # The leaves of a dict are sorted: down, up, x.
    partitioned = program.partition([(("model",), ()), ((), ("model",)), (("data",), ())])
    kinds = [(call.kind, call.axes) for call in partitioned.collectives]
    assert kinds == [("all_reduce", ("model",)), ("all_reduce", ("data",))]


def test_every_candidate_starts_from_the_same_module():
    program = lower_once(mlp_loss, mlp_args(batch=64, width=16, hidden=48), MESH)
    sharded = [(("model",), ()), ((), ("model",)), (("data",), ())]
    first = program.partition(sharded)
    assert program.partition([((), ())] * 3).collectives == ()
    assert program.partition(sharded) == first


def test_a_collective_in_a_scan_counts_once_for_each_layer():
    args = layers_args(layers=5, batch=64, width=16, hidden=48)
    program = lower_once(layers_step, args, MESH, find_state(layers_step, args))
    weights = [((), ("model",), ()), ((), (), ("model",))] * 2
    partitioned = program.partition([*weights, (("data",), ())])
    over_model = [call for call in partitioned.collectives if call.axes == ("model",)]
    assert {call.count for call in over_model} == {5}
    assert {product.count for product in partitioned.products} == {5}
    flops = sum(product.flops * product.count for product in partitioned.products)
    assert flops == 6 * 2 * 64 * 16 * 48 * 5 / 8  # two products, their gradients; 8 devices


def test_the_line_of_a_collective_is_the_users():
    program = lower_once(mlp_loss, mlp_args(batch=64, width=16, hidden=48), MESH)
    partitioned = program.partition([(("model",), ()), ((), ("model",)), ((), ())])
    [call] = partitioned.collectives
    path, _, line = call.source.rpartition(":")
    assert path.endswith("autoshard_programs.py")
    code = Path(path).read_text("utf-8").splitlines()[int(line) - 1]
    assert 'hidden @ params["down"]' in code


def test_a_state_comes_back_with_its_sharding():
    args = mlp_args(batch=64, width=16, hidden=48)
    state = find_state(mlp_step, args)
    program = lower_once(mlp_step, args, MESH, state)
    sharded = [(("data", "model"), ()), ((), ("model",)), (("data",), ())]
    assert program.partition(sharded).result_axes[:2] == tuple(sharded[:2])


def test_argument_bytes_are_those_of_the_shards():
    args = mlp_args(batch=64, width=16, hidden=48)
    program = lower_once(mlp_loss, args, MESH)
    partitioned = program.partition([(("model",), ()), ((), ()), (("data",), ())])
    assert partitioned.argument_bytes == 2 * (48 * 16 // 2 + 16 * 48 + 64 * 16 // 4)


def test_another_mesh_with_the_same_axes_needs_no_lowering():
    program = lower_once(lambda x, w: x @ w, (array(16, 16), array(16, 6)), MESH)
    partitioned = program.partition(
        [((), ("model",)), (("model",), ())], mesh=(("data", 1), ("model", 8))
    )
    assert [call.group_size for call in partitioned.collectives] == [8]
    assert partitioned.products[0].inner == 2


def test_functions_are_inlined_so_that_calls_shard_apart():
    @jax.jit
    def square(x):
        return x @ x

    program = lower_once(lambda x, y: (square(x), square(y)), (array(8, 8), array(8, 8)), MESH)
    partitioned = program.partition([(("data",), ()), ((), ())])
    rows = sorted(product.rows for product in partitioned.products)
    assert rows == [2, 8]


def test_a_reduction_that_is_sharded_at_once_is_a_reduce_scatter():
    args = mlp_args(batch=64, width=16, hidden=48)
    program = lower_once(mlp_step, args, MESH, find_state(mlp_step, args))
    points = {p.name: (("data",), ()) for p in program.points}
    partitioned = program.partition([(("data",), ()), (("data",), ()), (("data",), ())], points)
    kinds = {call.kind for call in partitioned.collectives if len(call.shape) == 2}
    assert kinds == {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize("axes", [(("data",), ()), ((), ("model",))])
def test_a_constraint_at_a_point_shards_the_value(axes):
    def f(x, w):
        return jnp.tanh(x @ w)

    program = lower_once(f, (array(8, 16), array(16, 6)), MESH)
    [point] = program.points
    free = program.partition([((), ()), ((), ())])
    constrained = program.partition([((), ()), ((), ())], {point.name: axes})
    assert point.shape == (8, 6)
    assert free.result_axes == (((), ()),)
    assert constrained.result_axes == (axes,)
