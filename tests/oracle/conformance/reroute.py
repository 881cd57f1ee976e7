"""A pytest plugin that reroutes every shard_map of JAX's own tests to the simulator.

    pytest -p reroute -p passed_tests path/to/jax/tests/shard_map_test.py

JAX's checks, types, differentiation and batching stay; only the two places that run a shard_map
(its lowering and its eager evaluation) are ours. The plugin counts, test by test, how often the
simulator really ran, so that a test which passes without it is not taken for proof.
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
from shardlab.simulator.interpreter import evaluate as simulate
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray, arrange_dims
from shardlab.simulator.shard_map import _simulate

runs: Counter[str] = Counter()
_current = ""


def _counting(params, arrays, kept):
    runs[_current] += 1
    return _simulate(params, arrays, kept)


def _pin(ctx, params, outs):
    """Give lowered outputs the sharding their out_specs promise, as JAX's own lowering does."""
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    if mesh.size == 1:
        return outs
    pinned = []
    for out, spec, aval in zip(outs, params["out_specs"], ctx.avals_out, strict=True):
        sharding = shard_map_lib._shardy_shard_map_sharding(ctx, mesh, manual, spec, aval)
        pinned.append(mlir.wrap_with_sharding_op(ctx, out, aval, sharding))
    return pinned


hook_shard_map(lambda mesh: True, _counting, _pin)
_lower_whole = mlir._lowerings[shard_map_lib.shard_map_p].rule

# ------------------------------------------------------- arrays whose summands lie on devices
#
# An `unreduced` array on real devices is n buffers that add up to it, and tests look into them.
# Around the simulator they are stacked into one array and taken apart again, by JAX's lowering.


def _lower(ctx, *nodes, **params):
    specs = (*params["in_specs"], *params["out_specs"])
    if not any(spec.unreduced for spec in specs) or params["mesh"].size == 1:
        return _lower_whole(ctx, *nodes, **params)
    ins = [
        _stack(ctx, node, aval, spec, params)
        if spec.unreduced
        else (node, _jax.strip_sharding(aval))
        for node, aval, spec in zip(nodes, ctx.avals_in, params["in_specs"], strict=True)
    ]
    names_in = [tuple(sorted(spec.unreduced)) for spec in params["in_specs"]]

    def whole(*arrays):
        runs[_current] += 1
        values = [
            StackedArray(array, {name: i for i, name in enumerate(names)})
            for array, names in zip(arrays, names_in, strict=True)
        ]
        outs = simulate.evaluate_shard_map(MeshAxes(), params, values, keep_partial_sums=True)
        return [_in_front(out.materialize()) for out in outs]

    with _jax.no_mesh():
        stacked_ctx = ctx.replace(avals_in=[aval for _, aval in ins])
        outs = mlir.lower_fun(whole, multiple_results=True)(stacked_ctx, *(n for n, _ in ins))
    pinned = _pin_plain(ctx, params, outs)
    return [
        _unstack(ctx, out, aval, spec, params) if spec.unreduced else plain
        for out, plain, aval, spec in zip(
            outs, pinned, ctx.avals_out, params["out_specs"], strict=True
        )
    ]


def _in_front(value):
    rest = tuple(slot for slot in value.dims if isinstance(slot, int))
    return arrange_dims(value, (*sorted(value.device_axes), *rest), value.array.shape)


def _pin_plain(ctx, params, outs):
    plain = [i for i, spec in enumerate(params["out_specs"]) if not spec.unreduced]
    sub = ctx.replace(avals_out=[ctx.avals_out[i] for i in plain])
    specs = [params["out_specs"][i] for i in plain]
    pinned = _pin(sub, {**params, "out_specs": specs}, [outs[i] for i in plain])
    found = dict(zip(plain, pinned, strict=True))
    return [found.get(i) for i in range(len(outs))]


def _stacked(aval, spec, params):
    """Return the shape and spec of an unreduced array whose summands are stacked in front."""
    names = tuple(sorted(spec.unreduced))
    sizes = tuple(params["mesh"].shape[name] for name in names)
    shape = (*sizes, *aval.shape)
    return _jax.plain_aval(shape, aval.dtype), P(*names, *spec.partitions), len(names)


def _local(aval, spec, params):
    cut = list(aval.shape)
    for i, entry in enumerate(spec.partitions):
        for name in entry if isinstance(entry, tuple) else (entry,) if entry else ():
            cut[i] //= params["mesh"].shape[name]
    return _jax.plain_aval(tuple(cut), aval.dtype)


def _by_jax(ctx, node, body, aval_in, spec_in, aval_out, spec_out, params):
    """Lower one tiny shard_map for real devices."""
    closed = _jax.trace_plain(body, [_local(aval_in, spec_in, params)])
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
    stacked, stacked_spec, n = _stacked(aval, spec, params)
    body = lambda x: jax.numpy.expand_dims(x, tuple(range(n)))  # noqa: E731 - traced once
    return _by_jax(ctx, node, body, aval, spec, stacked, stacked_spec, params), stacked


def _unstack(ctx, node, aval, spec, params):
    stacked, stacked_spec, n = _stacked(aval, spec, params)
    body = lambda x: jax.numpy.squeeze(x, tuple(range(n)))  # noqa: E731 - traced once
    return _by_jax(ctx, node, body, stacked, stacked_spec, aval, spec, params)


mlir.register_lowering(shard_map_lib.shard_map_p, _lower)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global _current
    _current = item.name
    return (yield)
