"""A pytest plugin that reroutes every shard_map of JAX's own tests to the simulator.

    pytest -p reroute -p passed_tests path/to/jax/tests/shard_map_test.py

JAX's checks, types, differentiation and batching stay; only the lowering and the eager evaluation
of a shard_map are replaced. The plugin counts for each test how often the simulator really ran, so
that a test that passes without it does not count as evidence.
"""

from __future__ import annotations

from collections import Counter

import jax
import pytest
from jax._src import shard_map as shard_map_lib
from jax._src.interpreters import mlir
from jax.sharding import PartitionSpec as P

from shardlab import _jax
from shardlab._jax.shard_map_hooks import hook_shard_map
from shardlab.simulator.interpreter.evaluate import evaluate_shard_map
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray, arrange_dims
from shardlab.simulator.shard_map import simulate_shard_map

runs: Counter[str] = Counter()
_current = ""


def _count_and_simulate(params, arrays, sharded_ins):
    runs[_current] += 1
    return simulate_shard_map(params, arrays, sharded_ins)


def _pin_outputs(ctx, params, outs):
    """Give lowered outputs the sharding of their out_specs, as JAX's own lowering does."""
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    if mesh.size == 1:
        return outs
    pinned = []
    for out, spec, aval in zip(outs, params["out_specs"], ctx.avals_out, strict=True):
        sharding = shard_map_lib._shardy_shard_map_sharding(ctx, mesh, manual, spec, aval)
        pinned.append(mlir.wrap_with_sharding_op(ctx, out, aval, sharding))
    return pinned


hook_shard_map(lambda mesh: True, _count_and_simulate, _pin_outputs)
_lower_simulated = mlir._lowerings[shard_map_lib.shard_map_p].rule

# --------------------------------------------------------------------------- unreduced arrays
#
# An `unreduced` array on real devices is n buffers that add up to it, and tests read them. Around
# the simulator they are stacked into one array and unstacked again, by JAX's own lowering.


def _lower(ctx, *nodes, **params):
    specs = (*params["in_specs"], *params["out_specs"])
    if not any(spec.unreduced for spec in specs) or params["mesh"].size == 1:
        return _lower_simulated(ctx, *nodes, **params)
    ins = [
        _stack(ctx, node, aval, spec, params)
        if spec.unreduced
        else (node, _jax.strip_sharding(aval))
        for node, aval, spec in zip(nodes, ctx.avals_in, params["in_specs"], strict=True)
    ]
    unreduced_axes = [tuple(sorted(spec.unreduced)) for spec in params["in_specs"]]

    def simulate_stacked(*arrays):
        runs[_current] += 1
        values = [
            StackedArray(array, {name: i for i, name in enumerate(names)})
            for array, names in zip(arrays, unreduced_axes, strict=True)
        ]
        outs = evaluate_shard_map(MeshAxes(), params, values, keep_partial_sums=True)
        return [_partial_sums_first(out.materialize()) for out in outs]

    with _jax.no_mesh():
        stacked_ctx = ctx.replace(avals_in=[aval for _, aval in ins])
        outs = mlir.lower_fun(simulate_stacked, multiple_results=True)(
            stacked_ctx, *(n for n, _ in ins)
        )
    pinned = _pin_plain(ctx, params, outs)
    return [
        _unstack(ctx, out, aval, spec, params) if spec.unreduced else plain
        for out, plain, aval, spec in zip(
            outs, pinned, ctx.avals_out, params["out_specs"], strict=True
        )
    ]


def _partial_sums_first(value):
    rest = tuple(dim for dim in value.dims if isinstance(dim, int))
    return arrange_dims(value, (*sorted(value.device_axes), *rest), value.array.shape)


def _pin_plain(ctx, params, outs):
    plain = [i for i, spec in enumerate(params["out_specs"]) if not spec.unreduced]
    sub = ctx.replace(avals_out=[ctx.avals_out[i] for i in plain])
    specs = [params["out_specs"][i] for i in plain]
    pinned = _pin_outputs(sub, {**params, "out_specs": specs}, [outs[i] for i in plain])
    pinned_at = dict(zip(plain, pinned, strict=True))
    return [pinned_at.get(i) for i in range(len(outs))]


def _stacked_type(aval, spec, params):
    """Return the type and spec of an unreduced array with its partial sums stacked in front."""
    names = tuple(sorted(spec.unreduced))
    sizes = tuple(params["mesh"].shape[name] for name in names)
    shape = (*sizes, *aval.shape)
    return _jax.plain_aval(shape, aval.dtype), P(*names, *spec.partitions), len(names)


def _local_aval(aval, spec, params):
    shape = list(aval.shape)
    for i, entry in enumerate(spec.partitions):
        for name in entry if isinstance(entry, tuple) else (entry,) if entry else ():
            shape[i] //= params["mesh"].shape[name]
    return _jax.plain_aval(tuple(shape), aval.dtype)


def _lower_with_jax(ctx, node, body, aval_in, spec_in, aval_out, spec_out, params):
    """Lower one small shard_map for real devices with JAX's own rule."""
    closed = _jax.trace_plain(body, [_local_aval(aval_in, spec_in, params)])
    inner = closed if not hasattr(closed, "jaxpr") or closed.jaxpr is closed else closed.jaxpr
    (out,) = shard_map_lib._shard_map_lowering(
        ctx.replace(avals_in=[aval_in], avals_out=[aval_out]),
        node,
        jaxpr=inner,
        mesh=params["mesh"],
        in_specs=(spec_in,),
        out_specs=(spec_out,),
        check_vma=False,
        newly_manual_axes=params["newly_manual_axes"],
    )
    return out


def _stack(ctx, node, aval, spec, params):
    stacked, stacked_spec, n = _stacked_type(aval, spec, params)
    body = lambda x: jax.numpy.expand_dims(x, tuple(range(n)))  # noqa: E731 - traced once
    return _lower_with_jax(ctx, node, body, aval, spec, stacked, stacked_spec, params), stacked


def _unstack(ctx, node, aval, spec, params):
    stacked, stacked_spec, n = _stacked_type(aval, spec, params)
    body = lambda x: jax.numpy.squeeze(x, tuple(range(n)))  # noqa: E731 - traced once
    return _lower_with_jax(ctx, node, body, stacked, stacked_spec, aval, spec, params)


mlir.register_lowering(shard_map_lib.shard_map_p, _lower)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global _current
    _current = item.name
    return (yield)
