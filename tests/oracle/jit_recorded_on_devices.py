"""Compares the recording of jits without shard_map with 8 real host devices.

Run as a process of its own, because the number of host devices is fixed when JAX starts:

    python jit_recorded_on_devices.py NAME ...

Three questions, each answered by plain JAX and XLA on real devices:

1. How is each value sharded? `jax.debug.inspect_array_sharding` of every intermediate value of the
   program tells what XLA's partitioner decided, also inside loops.
2. What does each device hold? The program runs once more with every intermediate value as a
   further result. Partial sums, which no jit returns, are computed by the same operation inside
   `jax.shard_map`.
3. What is communicated? The text of the unchanged program right after XLA's partitioner.

Prints one JSON object per program: the problems found, and the collectives on either side.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jit_programs import PROGRAMS

from shardlab import _jax
from shardlab.recording import finish_recording, record_program
from shardlab.recording.example_gallery import find_program
from shardlab.recording.opaque_calls import is_opaque_call
from shardlab.recording.record_program import ProgramCall, record_staged
from shardlab.recording.recorder import Recorder
from shardlab.recording.value_summary import SummaryLimits, make_cells
from shardlab.simulator.interpreter.replica_recorder import plain_array
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.simulated_mode import simulated
from shardlab.tracing.hlo.hlo_collectives import hlo_collectives
from shardlab.tracing.hlo.hlo_module import count_array_bytes, parse_module
from shardlab.tracing.stage import stage_program

N_DEVICES = 8
# Sums are taken in another order, and each value is computed from others that were.
TOLERANCE, BF16_TOLERANCE = 1e-4, 2e-2
# What devices compute of these from their shards is a term of the result.
REDUCTIONS = ("dot_general", "reduce_sum", "reduce_max", "reduce_min")


def number_equations(jaxpr, numbers=None):
    """Return a number for each equation by its identity, in depth-first order."""
    numbers = {} if numbers is None else numbers
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        if id(eqn) in numbers:
            continue
        numbers[id(eqn)] = (len(numbers), eqn)
        if not (called_jaxpr(eqn.primitive.name, eqn.params) is not None and is_opaque_call(eqn)):
            for body in _jax.inner_jaxprs(eqn.params):
                number_equations(body, numbers)
    return numbers


# ------------------------------------------------------------------------------------- recordings


class LoggingRecorder(Recorder):
    """A recorder that remembers which steps and values belong to which equation."""

    log = ()

    def finish_equation(self, axes, eqn, ins, outs):
        return self._logged(eqn, super().finish_equation, axes, eqn, ins, outs)

    def finish_placement(self, axes, eqn, ins):
        return self._logged(eqn, super().finish_placement, axes, eqn, ins)

    def _logged(self, eqn, finish, *args):
        first = len(self.steps)
        outs = finish(*args)
        ids = [getattr(out, "value_id", None) for out in outs]
        LoggingRecorder.log.append(
            (eqn, self._scope.path, range(first, len(self.steps)), ids, self._is_paused)
        )
        return outs


record_program.Recorder = LoggingRecorder
# Every value in full: what a page loads is made coarser, by the same code for any value.
finish_recording.fit_to_size = lambda recording: recording


class RecordedJit:
    """A recording, with the steps and results of each executed equation."""

    def __init__(self, function, args):
        staged = stage_program(function, args, None)
        self.numbers = number_equations(staged.jaxpr)
        LoggingRecorder.log = []
        call = ProgramCall(function=function, args=tuple(args))
        self.recording = record_staged(staged, call, findings="none")
        assert self.recording.failure is None, self.recording.failure
        self.executions = []
        counts = Counter()
        for eqn, path, steps, ids, is_paused in LoggingRecorder.log:
            if is_paused:
                continue
            keys = [self.numbers[item][0] for item in path if item in self.numbers]
            number = self.numbers[id(eqn)][0]
            self.executions.append((number, tuple(keys), counts[number], steps, ids))
            counts[number] += 1

    def collectives(self):
        """Return how often each collective is executed, as (operation, groups, bytes)."""
        counts = Counter()
        for step in self.recording.steps:
            if step.collective is not None:
                call = step.collective
                op = "psum_scatter" if call.op == "reduce_scatter" else call.op
                groups = frozenset(frozenset(group) for group in call.groups)
                counts[op, groups, call.payload_bytes] += 1
        return counts


# ----------------------------------------------------------------------------------- real devices


class RealJit:
    """The values and shardings of a jit on real devices, by equation and execution."""

    def __init__(self, function, args):
        self.function, self.args = function, args
        self.closed = function.trace(*args).jaxpr
        self.numbers = number_equations(self.closed)
        self.shardings = {}
        self._n_loops = 0  # around the equation that is evaluated
        self._inspect()
        self._run()

    def _inspect(self):
        """Compile the program with an inspection of every value, which does not change it."""

        def inspect(number, path, outs):
            for index, out in enumerate(outs):
                key = number, path, index

                def keep(sharding, key=key):
                    self.shardings[key] = sharding

                if not _jax.is_extended(out.dtype):
                    jax.debug.inspect_array_sharding(out, callback=keep)

        def run(*leaves):
            return self._evaluate(self.closed, leaves, (), inspect)[0]

        # With the shardings that the program requests of its results, which propagate backwards.
        outs = self.function.lower(*self.args)._lowering.compile_args["out_shardings"]
        requested = [item if isinstance(item, NamedSharding) else None for item in outs]
        jax.jit(run, out_shardings=requested).lower(*jax.tree.leaves(self.args)).compile()

    def _run(self):
        """Run the program with every value as a further result, and number them."""
        order = []

        def run(*leaves):
            outs, values = self._evaluate(self.closed, leaves, (), lambda *_: None)
            order[:] = [(key, depth) for key, depth, _ in values]
            return outs, [value for _, _, value in values]

        _, values = jax.jit(run)(*jax.tree.leaves(self.args))
        self.values = defaultdict(list)
        for (key, depth), value in zip(order, values, strict=True):
            number, index = key
            # The values of a loop come stacked, in the order of the rows, not of the iterations.
            rows = itertools.product(
                *(range(n)[:: -1 if is_reverse else 1] for n, is_reverse in depth)
            )
            self.values[number, index] += [value[row] if row else value for row in rows]

    def _evaluate(self, jaxpr, ins, path, visit):
        """Evaluate in the current trace; also return all values with their loops."""
        inner, consts = _jax.open_jaxpr(jaxpr)
        env = dict(zip((*inner.invars, *inner.constvars), (*ins, *consts), strict=True))
        collected = []

        def read(atom):
            return _jax.literal_value(atom) if isinstance(atom, _jax.Literal) else env[atom]

        for eqn in inner.eqns:
            operands = [read(atom) for atom in eqn.invars]
            number = self.numbers[id(eqn)][0]
            body = called_jaxpr(eqn.primitive.name, eqn.params)
            if body is not None and not is_opaque_call(eqn):
                outs, values = self._evaluate(body, operands, (*path, number), visit)
                collected += values
            elif eqn.primitive.name == "scan":
                outs, values = self._evaluate_scan(eqn, operands, (*path, number), visit)
                collected += values
            else:
                outs = _jax.bind_primitive(eqn.primitive, operands, eqn.params)
                visit(number, path, outs)
                collected += [((number, i), (), out) for i, out in enumerate(outs)]
                if eqn.primitive.name in REDUCTIONS or self._n_loops:
                    collected += [((number, f"in{i}"), (), v) for i, v in enumerate(operands)]
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in inner.outvars], collected

    def _evaluate_scan(self, eqn, ins, path, visit):
        params = eqn.params
        n_consts, n_carry = _jax.scan_operand_counts(params)
        consts, carry, xs = ins[:n_consts], ins[n_consts:][:n_carry], ins[n_consts + n_carry :]
        keys = []

        def body(carry, row):
            self._n_loops += 1
            outs, values = self._evaluate(params["jaxpr"], [*consts, *carry, *row], path, visit)
            self._n_loops -= 1
            keys[:] = [(key, depth) for key, depth, _ in values]
            return outs[:n_carry], (outs[n_carry:], [value for _, _, value in values])

        length, is_reverse = params["length"], params["reverse"]
        carry, (ys, values) = lax.scan(
            body, list(carry), list(xs), length=length, reverse=is_reverse
        )
        loop = (length, is_reverse)
        return [*carry, *ys], [
            (key, (loop, *depth), value) for (key, depth), value in zip(keys, values, strict=True)
        ]

    def collectives(self):
        """Return how often each collective of the compiled program is executed."""
        with tempfile.TemporaryDirectory() as folder:
            dump = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "^spmd-partitioning$"}
            self.function.lower(*self.args).compile(dump)
            paths = [*Path(folder).glob("*.after_spmd-partitioning.*")]
            # Without a sharded array XLA does not partition.
            text = max(paths, key=lambda path: path.stat().st_size).read_text() if paths else ""
        counts = Counter()
        if not text:
            return counts
        module = parse_module(text.splitlines())
        for item in hlo_collectives(module, lambda location: True):
            groups = item.groups
            if item.pairs:
                groups = (tuple(range(N_DEVICES)),)
            if max(map(len, groups), default=1) > 1:
                members = frozenset(frozenset(group) for group in groups)
                counts[item.op, members, count_array_bytes(item.operand)] += item.count or 1
        return counts


# ------------------------------------------------------------------------------------- comparison


def parse_spec(text):
    return eval(text, {"P": P})


def same_sharding(sharding, spec, mesh, ndim):
    return sharding.is_equivalent_to(NamedSharding(mesh, spec), ndim)


def shards_of(value, mesh, sharding):
    """Return what each device holds, by its position in the mesh."""
    position = {device.id: number for number, device in enumerate(mesh.devices.flat)}
    placed = jax.device_put(value, sharding)
    return {
        position[shard.device.id]: np.asarray(shard.data) for shard in placed.addressable_shards
    }


def device_numbers(text):
    parts = [part.split("-") for part in text.split(",")]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]


def compare_shards(recorded, shards, scale):
    """Return the problems of a recorded value, given what each real device holds."""
    problems, n_devices = [], 0
    side = SummaryLimits.for_groups(recorded.n_groups).side
    for group in recorded.groups:
        for device in device_numbers(group.devices):
            n_devices += 1
            shard = plain_array(shards[device])
            if tuple(shard.shape) != recorded.shape:
                problems.append(f"device {device}: shape {recorded.shape} is not {shard.shape}")
                continue
            expected = make_cells(shard, side)
            cells = decode(group.cells)
            reference = decode(expected)
            difference = largest_difference(cells, reference, scale)
            tolerance = BF16_TOLERANCE if recorded.dtype == "bfloat16" else TOLERANCE
            if group.cells.of != expected.of or difference > tolerance:
                problems.append(f"device {device}: differs by {difference:.1e} of the largest")
    if n_devices != N_DEVICES:
        problems.append(f"{n_devices} devices are shown")
    return problems


def largest_difference(value, expected, scale):
    """Return the largest difference, relative to the largest element that it comes from."""
    if value.shape != expected.shape:
        return math.inf
    value, expected = value.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(value), np.isfinite(expected)):
        return math.inf
    return float(np.abs(np.nan_to_num(value) - np.nan_to_num(expected)).max(initial=0)) / scale


def largest_element(values):
    """Return the largest absolute value of arrays: what rounding is relative to."""
    arrays = [np.abs(np.asarray(value, np.float64)) for value in values]
    return max([float(a[np.isfinite(a)].max(initial=0)) for a in arrays]) or 1.0


def decode(cells):
    data = np.frombuffer(base64.b64decode(cells.data), f"<{cells.dtype}")
    return data.reshape(cells.shape)


def compare_value(recorded, real, sharding, mesh, scale):
    """Return the problems of a value that is a slice of the global one."""
    if recorded.spec is None:
        # XLA pads an uneven dimension, and the padding has no defined values. So the recording
        # shows the full array, which is compared.
        full = shards_of(real, mesh, NamedSharding(mesh, P()))
        text = f"has no sharding; {sharding.spec} on real devices"
        return [text, *compare_shards(recorded, full, scale)]
    spec = parse_spec(recorded.spec)
    problems = []
    if not same_sharding(sharding, spec, mesh, real.ndim):
        problems = [f"is sharded as {recorded.spec}; {sharding.spec} on real devices"]
    shards = shards_of(real, mesh, NamedSharding(mesh, spec))
    return [*problems, *compare_shards(recorded, shards, scale)]


def partial_shards(eqn, operands, specs, mesh):
    """Return what each device computes from its shards of the operands, on real devices."""
    names = mesh.axis_names

    def body(*shards):
        (out,) = _jax.bind_primitive(eqn.primitive, list(shards), eqn.params)
        return out.reshape((1,) * len(names) + out.shape)

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=tuple(specs), out_specs=P(*names), check_vma=False
    )
    stacked = np.asarray(jax.jit(mapped)(*operands))
    flat = stacked.reshape(N_DEVICES, *stacked.shape[len(names) :])
    return dict(enumerate(flat))


class Comparison:
    """Compares the recording of one program with real devices."""

    def __init__(self, virtual, real, mesh):
        self.virtual, self.real, self.mesh = virtual, real, mesh
        self.n_values = self.n_partial = 0
        self.problems = []
        names = [
            [eqn.primitive.name for _, eqn in table.values()]
            for table in (virtual.numbers, real.numbers)
        ]
        assert names[0] == names[1], f"the two jaxprs differ: {names}"
        self.equations = dict(real.numbers.values())
        self.value_of = {}  # the number of a recorded value -> the real, global one
        leaves = jax.tree.leaves(real.args)
        for item, leaf in zip(virtual.recording.inputs, leaves, strict=True):
            self.value_of[item.value] = leaf
            self._compare(item.name, item.value, leaf, leaf.sharding)
        for number, path, execution, steps, ids in virtual.executions:
            self._compare_equation(number, path, execution, steps, ids)

    def _compare_equation(self, number, path, execution, steps, ids):
        values, records = self.virtual.recording.values, self.virtual.recording.steps
        name = self.equations[number].primitive.name
        for index, value_id in enumerate(ids):
            if value_id is None or (number, index) not in self.real.values:
                continue
            real = self.real.values[number, index][execution]
            self.value_of[value_id] = real
            sharding = self.real.shardings.get((number, path, index))
            if sharding is None:  # random keys
                continue
            # A sum of terms that cancel is as exact as its terms.
            keys = [(number, f"in{i}") for i in range(len(self.equations[number].invars))]
            terms = [self.real.values[key][execution] for key in keys if key in self.real.values]
            self._compare(f"{name} {number}", value_id, real, sharding, terms)
        # Between the steps of an equation: operands that moved, partial sums, a scattered sum.
        finals = set(ids)
        for step in (records[i] for i in steps):
            is_collective = step.collective is not None or step.op == "all_slice"
            for value_id in step.writes:
                if value_id in finals:
                    continue
                if name in REDUCTIONS and not is_collective:
                    self._compare_partial(number, execution, step, value_id)
                else:
                    real = self._moved_value(number, execution, step, value_id)
                    self.value_of[value_id] = real
                    spec = values[value_id].spec
                    sharding = NamedSharding(self.mesh, parse_spec(spec)) if spec else None
                    if sharding is not None:
                        self._compare(f"{step.op} of {name} {number}", value_id, real, sharding)
                    else:
                        self.problems.append(f"{step.op} of {name} {number}: no sharding")

    def _moved_value(self, number, execution, step, value_id):
        """Return the real value that a step moves: an operand, or the result of the equation."""
        is_collective = step.collective is not None or step.op == "all_slice"
        source = self.value_of.get(step.reads[0]) if is_collective else None
        if source is not None or not is_collective:
            return self.real.values[number, 0][execution] if source is None else source
        moved_type = self.virtual.recording.values[value_id].type
        for index, atom in enumerate(self.equations[number].invars):
            # A row of a loop's input, which no equation computes.
            if _jax.type_text(atom.aval) == moved_type:
                values = self.real.values.get((number, f"in{index}"))
                if values:
                    return values[execution]
        return self.real.values[number, 0][execution]

    def _compare_partial(self, number, execution, step, value_id):
        values = self.virtual.recording.values
        eqn = self.equations[number]
        n_operands = len(eqn.invars)
        operands = [self.real.values[number, f"in{i}"][execution] for i in range(n_operands)]
        specs = [parse_spec(values[i].spec) for i in step.reads]
        specs = specs * 2 if len(specs) < n_operands else specs  # x @ x reads one value twice
        shards = partial_shards(eqn, operands, specs, self.mesh)
        problems = compare_shards(
            values[value_id], shards, largest_element([*operands, *shards.values()])
        )
        self.n_partial += N_DEVICES
        self.problems += [f"partial result of equation {number}: {text}" for text in problems]

    def _compare(self, name, value_id, real, sharding, terms=()):
        recorded = self.virtual.recording.values[value_id]
        self.n_values += N_DEVICES
        scale = largest_element([real, *terms])
        problems = compare_value(recorded, real, sharding, self.mesh, scale)
        self.problems += [f"{name}, {recorded.type}: {text}" for text in problems]


# --------------------------------------------------------------------------------------- programs


def real_mesh(text):
    axes = dict(part.split("=") for part in text.split(","))
    devices = np.array(jax.devices()).reshape(tuple(map(int, axes.values())))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def fill(tree):
    """Return arrays with the shapes and shardings of a tree: small numbers, all different."""
    counter = itertools.count()

    def make(struct):
        seed = next(counter)
        size = math.prod(struct.shape)
        numbers = 0.3 + np.sin(np.arange(size) * 1.7 + seed) / 4  # sums do not cancel
        if jnp.issubdtype(struct.dtype, jnp.integer):
            numbers = (np.arange(size) * 5 + seed) % 8
        array = jnp.asarray(numbers.reshape(struct.shape), struct.dtype)
        return jax.device_put(array, struct.sharding)

    return jax.tree.map(make, tree)


def load_program(name):
    """Return a function of no arguments that makes jit and arguments, and the text of the mesh."""
    if name in PROGRAMS:
        program = PROGRAMS[name]

        def load():
            axes = dict(part.split("=") for part in program.mesh.split(","))
            shape = tuple(map(int, axes.values()))
            auto = (AxisType.Auto,) * len(shape)
            function, args = program.make(jax.make_mesh(shape, tuple(axes), axis_types=auto))
            return function, fill(args)

        return load, program.mesh
    gallery = find_program(name)

    def load_gallery():
        namespace = {"__name__": "program"}
        exec(compile(gallery.source, "program.py", "exec"), namespace)
        return namespace[gallery.target], namespace[f"{gallery.target}_args"]()

    return load_gallery, gallery.mesh


def call_list(counts, mesh):
    """Return collectives as text: operation, mesh axes, bytes -> count."""
    return {
        f"{op} over {axes_of(groups, mesh)}, {size} bytes": count
        for (op, groups, size), count in sorted(counts.items(), key=str)
    }


def axes_of(groups, mesh):
    """Return the mesh axes that groups of devices span, or the groups themselves."""
    sizes = tuple(mesh.shape.values())
    numbers = np.arange(N_DEVICES).reshape(sizes)
    for count in range(1, len(sizes) + 1):
        for chosen in itertools.combinations(range(len(sizes)), count):
            rest = [axis for axis in range(len(sizes)) if axis not in chosen]
            rows = numbers.transpose((*rest, *chosen)).reshape(
                -1, math.prod(sizes[a] for a in chosen)
            )
            if groups == frozenset(frozenset(map(int, row)) for row in rows):
                return ",".join(mesh.axis_names[axis] for axis in chosen)
    return str(sorted(map(sorted, groups)))


def compare_program(name):
    load, mesh_text = load_program(name)
    mesh = real_mesh(mesh_text)
    report = {"name": name, "values": 0, "partial": 0, "problems": []}
    try:
        with simulated(N_DEVICES):
            virtual = RecordedJit(*load())
        real = RealJit(*load())
        comparison = Comparison(virtual, real, mesh)
        report |= {
            "values": comparison.n_values,
            "partial": comparison.n_partial,
            "problems": comparison.problems,
            "notes": list(virtual.recording.notes),
        }
        recorded, compiled = virtual.collectives(), real.collectives()
        report["recorded"] = call_list(recorded, mesh)
        report["compiled"] = call_list(compiled, mesh)
        report["only_recorded"] = call_list(recorded - compiled, mesh)
        report["only_compiled"] = call_list(compiled - recorded, mesh)
    except Exception:
        report["problems"].append(traceback.format_exc(limit=-6))
    return report


if __name__ == "__main__":
    # Before simulated mode, which would start a backend with one device.
    assert len(jax.devices()) == N_DEVICES
    for requested in sys.argv[1:]:
        print(json.dumps(compare_program(requested)), flush=True)
