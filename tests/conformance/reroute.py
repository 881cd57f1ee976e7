"""A pytest plugin that reroutes every shard_map of JAX's own tests to the simulator.

    pytest -p reroute path/to/jax/tests/shard_map_test.py

JAX's checks, types, differentiation and batching stay; only the two places that run a shard_map
(its lowering and its eager evaluation) are ours. The plugin counts, test by test, how often the
simulator really ran, so that a test which passes without it is not taken for proof.
"""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from jax._src import shard_map as shard_map_lib
from jax._src.interpreters import mlir

from shardlab.engine._jax.hooks import hook_shard_map
from shardlab.engine.shard_map import _simulate

_runs: Counter[str] = Counter()
_current = ""


def _counting(params, *args):
    _runs[_current] += 1
    return _simulate(params, *args)


def _pin(ctx, params, outs):
    """Give lowered outputs the sharding their out_specs promise, as JAX's own lowering does."""
    mesh = params["mesh"]
    manual = params["newly_manual_axes"]
    if mesh.size == 1:
        return outs
    pinned = []
    for out, spec, aval in zip(outs, params["out_specs"], ctx.avals_out, strict=True):
        sharding = shard_map_lib._shardy_shard_map_sharding(ctx, mesh, manual, spec, aval)
        pinned.append(mlir.wrap_with_sharding_op(ctx, out, aval, sharding))
    return pinned


hook_shard_map(lambda mesh: True, _counting, _pin)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global _current
    _current = item.name
    return (yield)


def pytest_terminal_summary(terminalreporter):
    passed = {report.nodeid.split("::")[-1] for report in terminalreporter.stats.get("passed", [])}
    executed = sorted(name for name in passed if _runs[name])
    terminalreporter.write_line(
        f"rerouted: {len(passed)} passed, of which {len(executed)} executed the simulator "
        f"({sum(_runs.values())} shard_map evaluations)"
    )
    target = os.environ.get("REROUTE_REPORT")
    if target:
        with open(target, "w") as file:
            json.dump({"passed": sorted(passed), "executed": executed}, file)
