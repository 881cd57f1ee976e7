"""Compares each step of a recording with the same equation on 8 real host devices.

Run as a process of its own, because the number of host devices is fixed when JAX starts:

    python recorded_on_devices.py gallery
    python recorded_on_devices.py written NAME ...

JAX traces the program twice, on a virtual mesh and on real devices; the two jaxprs have the same
equations in the same order. On real devices each equation is followed by a callback that reports
the value on that device, also inside loops and branches; the recorder's values are compared with
these one by one. Prints one JSON object per program.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections import defaultdict

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from program import Runtime, with_gradients
from runtimes import device_runtime
from written import PROGRAMS

from shardlab import _jax
from shardlab.recording.example_gallery import gallery_programs
from shardlab.recording.opaque_calls import is_opaque_call
from shardlab.recording.record_program import ProgramCall, record_staged
from shardlab.recording.recorder import FIRST_ITERATIONS
from shardlab.recording.value_summary import device_copies, spread_mask
from shardlab.simulator.interpreter.replica_recorder import plain_array
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import IDENTITY_COLLECTIVES
from shardlab.simulator.shard_map import shard_map as shardlab_shard_map
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.stage import stage_program

# They block on real devices. There, a collective inside a branch is left out, so that they return;
# everything that a device computes before it is compared.
DEADLOCKS = ("deadlock_in_branch", "mismatched_collectives")
COLLECTIVES = ("psum", "psum_invariant", "pmax", "pmin")

# --------------------------------------------------------------------------- numbers of equations


def number_equations(jaxpr, numbers=None):
    """Return a number for each equation that is a step, by its identity, in depth-first order."""
    numbers = {} if numbers is None else numbers
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        # Casts and placements change no value; where JAX puts them depends on the context mesh.
        if id(eqn) in numbers or eqn.primitive.name in IDENTITY_COLLECTIVES:
            continue
        numbers[id(eqn)] = (len(numbers), eqn)
        if not (called_jaxpr(eqn.primitive.name, eqn.params) is not None and is_opaque_call(eqn)):
            for body in _jax.inner_jaxprs(eqn.params):
                number_equations(body, numbers)
    return numbers


# ------------------------------------------------------------------------------------- real devices


class DeviceLog:
    """The values that devices report: (equation, output) -> device -> values in order."""

    def __init__(self, numbers, is_deadlock=False):
        self.numbers = numbers
        self.is_deadlock = is_deadlock
        self.n_branches = 0  # around the equation that is evaluated
        self.values = defaultdict(lambda: defaultdict(list))

    def add(self, number, output, device, value):
        self.values[number, output][int(device)].append(np.asarray(value))

    def report(self, eqn, outs, device):
        number = self.numbers[id(eqn)][0]
        for index, out in enumerate(outs):
            if _jax.is_extended(out.dtype):
                out = jax.random.key_data(out)
            jax.debug.callback(lambda d, v, index=index: self.add(number, index, d, v), device, out)


def run_instrumented(log, jaxpr, args, device):
    """Evaluate a jaxpr in the current trace and report the outputs of each of its steps."""
    inner, consts = _jax.open_jaxpr(jaxpr)
    values = dict(zip(inner.invars, args, strict=True))
    values.update(zip(inner.constvars, consts, strict=True))

    def read(atom):
        return _jax.literal_value(atom) if isinstance(atom, _jax.Literal) else values[atom]

    for eqn in inner.eqns:
        ins = [read(atom) for atom in eqn.invars]
        outs = run_equation(log, eqn, ins, device)
        values.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in inner.outvars]


def run_equation(log, eqn, ins, device):
    name, params = eqn.primitive.name, eqn.params
    body = called_jaxpr(name, params)
    if body is not None and not is_opaque_call(eqn):
        return run_instrumented(log, body, ins, device)
    if name == "shard_map":
        return run_shard_map(log, params, ins)
    if name == "scan":
        return run_scan(log, params, ins, device)
    if name == "while":
        return run_while(log, params, ins, device)
    if name == "cond":
        return run_cond(log, params, ins, device)
    if log.is_deadlock and log.n_branches and name in COLLECTIVES:
        # Here real devices block. What they would continue with is in no recording.
        return [jnp.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars]
    outs = _jax.bind_primitive(eqn.primitive, ins, params)
    if name not in IDENTITY_COLLECTIVES:
        if device is None:  # outside of shard_map: one global array
            number = log.numbers[id(eqn)][0]
            for index, out in enumerate(outs):
                data = jax.random.key_data(out) if _jax.is_extended(out.dtype) else out
                log.add(number, index, 0, data)
        else:
            log.report(eqn, outs, device)
    return outs


def run_cond(log, params, ins, device):
    def run_branch(branch, args):
        log.n_branches += 1
        outs = run_instrumented(log, branch, args, device)
        log.n_branches -= 1
        return outs

    branches = [
        lambda *args, branch=branch: run_branch(branch, args) for branch in params["branches"]
    ]
    return lax.switch(jnp.asarray(ins[0], jnp.int32), branches, *ins[1:])


def run_scan(log, params, ins, device):
    n_consts, n_carry = _jax.scan_operand_counts(params)
    consts, carry, xs = (
        ins[:n_consts],
        ins[n_consts : n_consts + n_carry],
        ins[n_consts + n_carry :],
    )

    def body(carry, x):
        outs = run_instrumented(log, params["jaxpr"], [*consts, *carry, *x], device)
        return outs[:n_carry], outs[n_carry:]

    if device is not None:
        carry, ys = lax.scan(
            body, list(carry), list(xs), length=params["length"], reverse=params["reverse"]
        )
        return [*carry, *ys]
    order = range(params["length"])
    rows = []
    for i in reversed(order) if params["reverse"] else order:
        carry, y = body(carry, [x[i] for x in xs])
        rows.append(y)
    rows = rows[::-1] if params["reverse"] else rows
    return [*carry, *(jnp.stack(column) for column in zip(*rows, strict=True))]


def run_while(log, params, ins, device):
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = ins[:n_cond], ins[n_cond : n_cond + n_body]

    def predicate(carry):
        return run_instrumented(log, params["cond_jaxpr"], [*cond_consts, *carry], device)[0]

    def body(carry):
        return run_instrumented(log, params["body_jaxpr"], [*body_consts, *carry], device)

    return lax.while_loop(predicate, body, list(ins[n_cond + n_body :]))


def run_shard_map(log, params, ins):
    sizes = list(params["mesh"].shape.items())

    def body(*args):
        device = jnp.int32(0)
        for name, size in sizes:
            device = device * size + lax.axis_index(name)
        return tuple(run_instrumented(log, params["jaxpr"], args, device))

    mapped = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        check_vma=params["check_vma"],
        axis_names=set(params["newly_manual_axes"]),
    )
    return list(jax.jit(mapped)(*ins))


# ------------------------------------------------------------------------------------- recordings


def recorded_values(function, args, mesh, is_deadlock=False):
    """Return the number of steps, and the values by equation and output, by device, in order."""
    staged = stage_program(function, args, mesh)
    numbers = number_equations(staged.jaxpr)
    sizes = staged.sizes or tuple(max(staged.meshes, key=lambda m: m.size).shape.items())
    values = defaultdict(lambda: defaultdict(list))

    def add_outputs(eqn, outs, axes):
        for index, out in enumerate(outs):
            key = numbers[id(eqn)][0], index
            for device, copy in copies_by_device(out, axes, sizes).items():
                values[key][device].append(copy)

    call = ProgramCall(function=function, args=tuple(args), mesh=mesh)
    recording = record_staged(staged, call, findings="none", on_equation=add_outputs)
    if is_deadlock:
        assert recording.failure.kind == "deadlock"
    else:
        assert recording.failure is None, recording.failure
    return len(recording.steps), numbers, values


def copies_by_device(out, axes, mesh):
    names = [name for name, _ in mesh if name in out.device_axes]
    copies = device_copies(out, names)
    if not axes.manual:
        return {0: copies}
    sizes = [size for _, size in mesh]
    active = np.ones(math.prod(sizes), bool)
    if axes.active is not None:
        active = spread_mask(axes.active, mesh)
    by_device = {}
    for device in np.flatnonzero(active):
        coordinate = np.unravel_index(device, sizes)
        index = dict(zip([name for name, _ in mesh], coordinate, strict=True))
        by_device[int(device)] = copies[tuple(index[name] for name in names)]
    return by_device


def real_values(function, args, is_deadlock=False):
    closed = jax.jit(function).trace(*args).jaxpr
    numbers = number_equations(closed)
    log = DeviceLog(numbers, is_deadlock)
    run_instrumented(log, closed, jax.tree.leaves(tuple(args)), None)
    jax.effects_barrier()
    return numbers, log.values


def compare_values(recorded, real):
    """Return how many values were compared, and the problems found."""
    n_compared, problems = 0, []
    for key, by_device in recorded.items():
        for device, values in by_device.items():
            expected = real.get(key, {}).get(device, [])
            if len(expected) > len(values):
                # A long loop: the first iterations are recorded, and the last one of a scan.
                n_first = min(len(values), FIRST_ITERATIONS)
                expected = [*expected[:n_first], *expected[-1:]][: len(values)]
            if len(expected) < len(values):
                problems.append(f"equation {key}, device {device}: {len(expected)} real values")
                continue
            for value, reference in zip(values, expected, strict=True):
                n_compared += 1
                if not is_close(value, reference):
                    problems.append(f"equation {key}, device {device}: {value} is not {reference}")
    return n_compared, problems


def is_close(value, expected):
    is_narrow = jnp.issubdtype(expected.dtype, jnp.inexact) and expected.dtype.itemsize < 4
    # A sum over devices or of a product may be taken in another order.
    tolerance = 4 * float(jnp.finfo(expected.dtype).eps) if is_narrow else 2e-5
    expected = plain_array(np.asarray(expected))
    if value.shape != expected.shape:
        return False
    if value.dtype.kind not in "fc":
        return bool((value == expected).all())
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=1e-3))
    return np.allclose(value, expected, rtol=tolerance, atol=tolerance / 10 * scale, equal_nan=True)


def compare_program(name, virtual, real):
    """Return a line of the report for one program, given what makes its function and arguments."""
    try:
        n_steps, numbers, recorded = virtual()
        real_numbers, expected = real()
        names = [
            [eqn.primitive.name for _, eqn in table.values()] for table in (numbers, real_numbers)
        ]
        assert names[0] == names[1], f"the two jaxprs differ: {names}"
        n_compared, problems = compare_values(recorded, expected)
    except Exception:
        n_steps, n_compared, problems = 0, 0, [traceback.format_exc(limit=-6)]
    return {"name": name, "steps": n_steps, "compared": n_compared, "problems": problems[:3]}


def compare_gallery(slug):
    program = next(item for item in gallery_programs() if item.slug == slug)
    is_deadlock = slug in DEADLOCKS

    def load():
        namespace = {"__name__": "program"}
        exec(compile(program.source, "program.py", "exec"), namespace)
        return namespace[program.target], namespace[f"{program.target}_args"]()

    def virtual():
        with simulated(8):
            function, args = load()
            return recorded_values(function, args, program.mesh, is_deadlock)

    return compare_program(f"gallery/{slug}", virtual, lambda: real_values(*load(), is_deadlock))


def compare_written(name):
    program = PROGRAMS[name]
    args = [item.make(seed) for seed, item in enumerate(program.inputs)]

    def build(runtime):
        function = program.build(runtime)
        return function if not program.grad else with_gradients(function, args)

    def virtual():
        runtime = Runtime(shardlab_shard_map, virtual_mesh(dict(program.mesh)))
        return recorded_values(build(runtime), args, None)

    return compare_program(
        f"written/{name}", virtual, lambda: real_values(build(device_runtime(program)), args)
    )


if __name__ == "__main__":
    # Before simulated mode, which would start a backend with one device.
    assert len(jax.devices()) == 8
    compare = {"gallery": compare_gallery, "written": compare_written}[sys.argv[1]]
    for requested in sys.argv[2:]:
        print(json.dumps(compare(requested)), flush=True)
