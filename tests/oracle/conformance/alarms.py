"""A pytest plugin that checks every shard_map of JAX's own tests, beside simulating it.

    pytest -p reroute -p alarms path/to/jax/tests/shard_map_test.py

JAX's tests are right programs by definition: an alarm is either false, or the test is about the
very thing. Each program is read once (checks that run it compare meshes, and these have one).
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
alarms: dict[tuple[str, str], str] = {}  # test and code -> what was said
failures: dict[str, str] = {}  # test -> why its program could not be read

_simulate = reroute._simulate


def _checking(params, arrays, kept):
    key = f"{params['jaxpr']} {params['in_specs']} {params['out_specs']} {params['mesh'].shape}"
    if key not in checked:
        checked[key] = reroute._current
        _check(params)
    return _simulate(params, arrays, kept)


reroute._simulate = _checking


def _check(params):
    try:
        seen = _seen(_alone(params), params["mesh"])
    except Exception as error:
        failures[reroute._current] = f"{type(error).__name__}: {error}"[:300]
        return
    for found in check_program(seen):
        if found.severity != "info":
            alarms[reroute._current, found.code] = found.what


def _seen(closed, mesh):
    try:
        jaxpr = _jax.without_dead_code(closed)
    except Exception:  # it has types at its border (unreduced, Explicit) that are not rebuilt here
        jaxpr = closed
    sites = list(walk_jaxpr(jaxpr))
    return Observation(
        program=reroute._current,
        mesh=tuple(mesh.shape.items()),
        calls=tuple(collective_call(site) for site in sites if is_collective_site(site)),
        patterns=find_patterns(jaxpr, sites),
    )


def _alone(params):
    """The program that is this shard_map and nothing else."""
    body = params["jaxpr"]
    ins = _whole_vars(body.invars, params["in_specs"], params["mesh"])
    outs = _whole_vars(body.outvars, params["out_specs"], params["mesh"])
    effects = core.filter_named_axis_effects(body.effects, params["mesh"].axis_names)
    eqn = core.new_jaxpr_eqn(ins, outs, shard_map_lib.shard_map_p, params, effects)
    info = body.debug_info.with_unknown_names()
    return core.ClosedJaxpr(core.Jaxpr((), ins, outs, [eqn], effects, info), ())


def _whole_vars(variables, specs, mesh):
    return [core.Var(_whole(v.aval, s, mesh)) for v, s in zip(variables, specs, strict=True)]


def _whole(aval, spec, mesh):
    shape = list(aval.shape)
    for i, entry in enumerate(spec.partitions):
        for name in entry if isinstance(entry, tuple) else (entry,) if entry else ():
            shape[i] *= mesh.shape[name]
    return core.ShapedArray(tuple(shape), aval.dtype)


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(
        f"checked {len(checked)} programs of {len(set(checked.values()))} tests: "
        f"{len(alarms)} alarms, {len(failures)} not read"
    )
    with open(os.environ["ALARMS_REPORT"], "w") as file:
        found = [[test, code, what] for (test, code), what in sorted(alarms.items())]
        told = {"programs": len(checked), "tests": len(set(checked.values()))}
        json.dump({**told, "alarms": found, "failures": failures}, file, indent=1)
