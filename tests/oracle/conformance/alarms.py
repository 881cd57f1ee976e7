"""A pytest plugin that checks every shard_map of JAX's own tests, in addition to simulating it.

    pytest -p reroute -p alarms path/to/jax/tests/shard_map_test.py

JAX's tests are correct programs by definition: a finding is either false, or the test is about
exactly that. Each program is analyzed once; checks that run it compare meshes, and it has one mesh.
"""

from __future__ import annotations

import json
import os

import reroute
from jax._src import core
from jax._src import shard_map as shard_map_lib

from shardlab import _jax
from shardlab.checks.check_program import check_program
from shardlab.tracing.collective_calls import collective_call, is_collective_site
from shardlab.tracing.jaxpr_walk import walk_jaxpr
from shardlab.tracing.observation import Observation
from shardlab.tracing.patterns import find_patterns

checked: dict[str, str] = {}  # each program, and the test that ran it first
alarms: dict[tuple[str, str], str] = {}  # test and code -> the text of the finding
failures: dict[str, str] = {}  # test -> why its program could not be analyzed

_simulate = reroute.simulate_shard_map


def _check_and_simulate(params, arrays, sharded_ins):
    key = f"{params['jaxpr']} {params['in_specs']} {params['out_specs']} {params['mesh'].shape}"
    if key not in checked:
        checked[key] = reroute._current
        _check_shard_map(params)
    return _simulate(params, arrays, sharded_ins)


reroute.simulate_shard_map = _check_and_simulate


def _check_shard_map(params):
    try:
        observation = _observe_jaxpr(_single_shard_map(params), params["mesh"])
    except Exception as error:
        failures[reroute._current] = f"{type(error).__name__}: {error}"[:300]
        return
    for finding in check_program(observation):
        if finding.severity != "info":
            alarms[reroute._current, finding.code] = finding.what


def _observe_jaxpr(closed, mesh):
    try:
        jaxpr = _jax.without_dead_code(closed)
    except Exception:  # types of inputs (unreduced, Explicit) that are not rebuilt here
        jaxpr = closed
    sites = list(walk_jaxpr(jaxpr))
    return Observation(
        program=reroute._current,
        mesh=tuple(mesh.shape.items()),
        calls=tuple(collective_call(site) for site in sites if is_collective_site(site)),
        patterns=find_patterns(jaxpr, sites),
    )


def _single_shard_map(params):
    """Return the program that consists of this shard_map."""
    body = params["jaxpr"]
    ins = _global_vars(body.invars, params["in_specs"], params["mesh"])
    outs = _global_vars(body.outvars, params["out_specs"], params["mesh"])
    effects = core.filter_named_axis_effects(body.effects, params["mesh"].axis_names)
    eqn = core.new_jaxpr_eqn(ins, outs, shard_map_lib.shard_map_p, params, effects)
    info = body.debug_info.with_unknown_names()
    return core.ClosedJaxpr(core.Jaxpr((), ins, outs, [eqn], effects, info), ())


def _global_vars(variables, specs, mesh):
    return [core.Var(_global_aval(v.aval, s, mesh)) for v, s in zip(variables, specs, strict=True)]


def _global_aval(aval, spec, mesh):
    shape = list(aval.shape)
    for i, entry in enumerate(spec.partitions):
        for name in entry if isinstance(entry, tuple) else (entry,) if entry else ():
            shape[i] *= mesh.shape[name]
    return core.ShapedArray(tuple(shape), aval.dtype)


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(
        f"checked {len(checked)} programs of {len(set(checked.values()))} tests: "
        f"{len(alarms)} alarms, {len(failures)} not analyzed"
    )
    with open(os.environ["ALARMS_REPORT"], "w") as file:
        findings = [[test, code, text] for (test, code), text in sorted(alarms.items())]
        counts = {"programs": len(checked), "tests": len(set(checked.values()))}
        json.dump({**counts, "alarms": findings, "failures": failures}, file, indent=1)
