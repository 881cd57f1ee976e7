"""The observer that records a run: one draft step per equation, one draft value per result."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from shardlab import _jax
from shardlab._jax.explicit_collectives import Entries
from shardlab.errors import Deadlock
from shardlab.hardware.collective_time import CollectiveTimer
from shardlab.recording.collective_steps import device_groups, record_collective, split_arrivals
from shardlab.recording.device_sets import device_set
from shardlab.recording.draft_records import DraftStep, DraftValue, LoopRun, Scope
from shardlab.recording.global_steps import (
    finish_global_equation,
    finish_placement,
    shard_globally,
)
from shardlab.recording.opaque_calls import is_opaque_call
from shardlab.recording.program_sources import ProgramSources
from shardlab.recording.shard_slices import shard_slices, spec_text
from shardlab.recording.sharding_flow import ShardingFlow
from shardlab.recording.sharding_plan import ProgramShardings
from shardlab.recording.step_records import Frame, TakenBranch, Waiting
from shardlab.recording.value_summary import Slices, spread_mask, summarize_value
from shardlab.sharding.mesh import MeshSizes
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES
from shardlab.simulator.interpreter.shard_boundary import ShardedOutput, spec_axes, spec_entries
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.step_observer import ObservedArray
from shardlab.tracing.collective_calls import executed_call
from shardlab.tracing.jaxpr_flops import count_equation_flops, count_jaxpr_flops

FIRST_ITERATIONS = 8  # of a loop; the last one is recorded too if its number is known


# Called after each equation with its outputs and the mesh axes in scope; tests read full values.
OnEquation = Callable[[Any, Sequence[StackedArray], MeshAxes], None]


class Recorder:
    """Records the equations that the interpreter evaluates (a `StepObserver`)."""

    def __init__(
        self,
        mesh: MeshSizes,
        *,
        timer: CollectiveTimer | None = None,
        max_steps: int,
        on_equation: OnEquation | None = None,
    ) -> None:
        self.mesh = mesh
        self.sources = ProgramSources()
        self.steps: list[DraftStep] = []
        self.values: list[DraftValue] = []
        self.is_truncated = False
        self.n_unrecorded = 0  # iterations of loops
        self.hidden_outputs: set[Any] = set()  # residuals that only a backward shard_map takes
        self.timer = timer
        self.shardings = ProgramShardings()  # of the program around shard_maps
        self._max_steps, self._on_equation = max_steps, on_equation
        self._scope = Scope()
        self._is_paused = False
        self._flow = ShardingFlow()
        self._loops: dict[int, LoopRun] = {}
        self._parameter_names: dict[Any, str] = {}  # of the bodies of loops

    def add_global(
        self,
        value: StackedArray,
        aval: Any,
        entries: Entries | None,
        *,
        name: str | None = None,
        display: StackedArray | None = None,
    ) -> ObservedArray:
        """Record a value outside of shard_map, which devices hold by its sharding.

        `display` is what they hold if that is not a slice of the value: partial sums.
        """
        shards = shard_globally(value, entries, self) if display is None else display
        is_known = entries is not None and (shards is not value or not any(entries))
        slices = None
        if entries is not None and is_known and display is None:
            slices = shard_slices(entries, value.array.shape, self.mesh)
        spec = entries if is_known else None
        observed = self._add_value(shards, aval, MeshAxes(), name=name, spec=spec, slices=slices)
        return ObservedArray(value.array, value.device_axes, observed.value_id)

    # ------------------------------------------------------------------------------- equations

    def finish_equation(
        self, axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray], outs: Sequence[StackedArray]
    ) -> list[StackedArray]:
        """Record one equation and number its outputs."""
        if not self._is_recording():
            return list(outs)
        if self._on_equation is not None:
            self._on_equation(eqn, outs, axes)
        plan = self.shardings.equations.get((self._scope.path, id(eqn)))
        if plan is not None and not axes.manual:
            return finish_global_equation(self, axes, eqn, ins, outs, plan)
        operands = self._read_operands(axes, eqn, ins)
        observed = [
            self._add_value(out, var.aval, axes) for out, var in zip(outs, eqn.outvars, strict=True)
        ]
        writes = [value.value_id for value in observed]
        reads = [value for value, _ in operands if value is not None]
        step = self.add_step(axes, eqn, reads, writes)
        if eqn.primitive.name in COLLECTIVES:
            self._add_collective(axes, eqn, step)
        if axes.manual:
            self._flow.follow_equation(eqn, operands, writes)
            for value_id in writes:
                self.values[value_id].partial_over |= self._flow.partial_axes(value_id)
        return list(observed)

    def finish_placement(
        self, axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray]
    ) -> list[StackedArray]:
        """Record an equation that only changes how a global value is sharded."""
        plan = self.shardings.equations.get((self._scope.path, id(eqn)))
        if plan is None or axes.manual or not self._is_recording():
            return list(ins[: len(eqn.outvars)])
        return finish_placement(self, axes, eqn, ins, plan)

    def _is_recording(self) -> bool:
        if len(self.steps) >= self._max_steps:
            self.is_truncated = True
        return not self._is_paused and not self.is_truncated

    def _read_operands(
        self, axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray]
    ) -> list[tuple[int | None, frozenset[str]]]:
        """Return the number of each operand, None for a literal, and the axes it varies over."""
        operands: list[tuple[int | None, frozenset[str]]] = []
        for atom, value in zip(eqn.invars, ins, strict=True):
            # A literal that was only cast (pvary) is still no value of the program.
            is_cast_literal = isinstance(value.array, np.ndarray) and value.array.ndim == 0
            is_literal = isinstance(atom, _jax.Literal) or is_cast_literal
            name = None if is_literal else self._parameter_names.get(atom)
            value_id = None if is_literal else self.value_id(value, atom.aval, axes, name)
            operands.append((value_id, frozenset(value.device_axes)))
        return operands

    def value_id(self, value: Any, aval: Any, axes: MeshAxes, name: str | None = None) -> int:
        """Return the number of a value; one that is not recorded yet gets a number now."""
        if isinstance(value, ObservedArray):
            return value.value_id
        if isinstance(value, ShardedOutput):
            if value.value_id is not None:
                return value.value_id
            if isinstance(value.shards, ObservedArray):
                return value.shards.value_id
            value = value.shards
        return self._add_value(value, aval, axes, name=name).value_id

    def _add_value(
        self,
        value: StackedArray,
        aval: Any,
        axes: MeshAxes,
        *,
        name: str | None = None,
        spec: Any = None,
        slices: Slices | None = None,
    ) -> ObservedArray:
        summary = summarize_value(value, self.mesh, axes.active, slices)
        value_id = len(self.values)
        is_typed = bool(axes.manual) and self._scope.is_checked
        declared = _jax.declared_varying_axes(aval)
        dtype = getattr(aval, "dtype", value.array.dtype)
        shape = value.local_shape
        self.values.append(
            DraftValue(
                id=value_id,
                name=name,
                type=_jax.type_text(aval),
                dtype=str(dtype),
                shape=tuple(int(size) for size in shape),
                spec=None if spec is None else spec_text(spec),
                declared_over=axes.in_mesh_order(declared) if is_typed else None,
                summary=summary,
                n_bytes=int(np.prod(shape, dtype=int)) * int(getattr(dtype, "itemsize", 4)),
            )
        )
        return ObservedArray(value.array, value.device_axes, value_id)

    def add_step(
        self, axes: MeshAxes, eqn: Any, reads: Sequence[int], writes: Sequence[int], op: str = ""
    ) -> DraftStep:
        """Add a step; a call of a function of JAX has the name of that function."""
        body = called_jaxpr(eqn.primitive.name, eqn.params)
        if not op and body is not None:
            op = _jax.function_location(body)[0].lstrip("_")
        step = DraftStep(
            scope=dataclasses.replace(self._scope, phase=self._phase(eqn)),
            frames=self._frames(eqn),
            region="body" if axes.manual else "outside",
            op=op or str(eqn.primitive.name),
            reads=list(reads),
            writes=list(writes),
        )
        step.n_bytes = sum(self.values[i].n_bytes for i in (*dict.fromkeys(reads), *writes))
        if body is not None:
            step.flops = count_jaxpr_flops(body).total
        elif op in ("", eqn.primitive.name):
            step.flops = count_equation_flops(eqn)
        self.steps.append(step)
        return step

    def _add_collective(self, axes: MeshAxes, eqn: Any, step: DraftStep) -> None:
        call = executed_call(eqn, axes, step.scope.phase)
        reads, writes = step.reads[:1] or [-1], step.writes[:1] or [-1]
        step.call = call
        step.collective = record_collective(call, self.mesh, self.timer, reads[0], writes[0])

    # --------------------------------------------------------------------------------- places

    def _frames(self, eqn: Any) -> tuple[Frame, ...]:
        if self._scope.is_library:
            return self._scope.frames
        frames = self.sources.own_frames(_jax.user_frames(eqn)) or self._scope.frames
        return frames or self._definition_frames(eqn)

    def _definition_frames(self, eqn: Any) -> tuple[Frame, ...]:
        """Return where the called function is defined, for a call that no line of the person makes.

        A function decorated with `jax.shard_map` and recorded itself is called by shardlab alone.
        """
        is_shard_map = eqn.primitive.name == "shard_map"
        params = eqn.params
        body = params["jaxpr"] if is_shard_map else called_jaxpr(eqn.primitive.name, params)
        if body is None:
            return ()
        name, file, line = _jax.function_location(body)
        return self.sources.own_frames([(file, line, name)]) if line else ()

    def _line(self, eqn: Any) -> int:
        frames = self._frames(eqn)
        return frames[0][1] if frames else 0

    def _phase(self, eqn: Any) -> Literal["forward", "backward"]:
        # Names that jax.grad and jax.checkpoint leave on the name stack.
        stack = _jax.name_stack(eqn)
        is_backward = "transpose(" in stack or "rematted_computation" in stack
        return "backward" if is_backward else self._scope.phase

    @contextlib.contextmanager
    def _enter(self, **changes: Any) -> Iterator[None]:
        before = self._scope
        self._scope = dataclasses.replace(before, **changes)
        try:
            yield
        finally:
            self._scope = before

    @contextlib.contextmanager
    def inside(self, eqn: Any) -> Iterator[None]:
        """Enter a call, a branch or the body of a shard_map."""
        frames = self._frames(eqn)
        body = called_jaxpr(eqn.primitive.name, eqn.params)
        is_library = self._scope.is_library
        if body is not None and not is_library:
            # JAX traces its own jitted functions once: their equations have the line of the first
            # call, wherever this one is.
            file = _jax.function_location(body)[1]
            is_library = not file.startswith("<") and not self.sources.is_own(file)
        is_checked = eqn.params.get("check_vma", self._scope.is_checked)
        with self._enter(
            frames=frames,
            is_library=is_library,
            phase=self._phase(eqn),
            is_checked=is_checked,
            path=(*self._scope.path, id(eqn)),
        ):
            yield

    def is_opaque(self, eqn: Any) -> bool:
        """Return whether a call is one step: a small function of JAX, such as `jnp.where`."""
        return is_opaque_call(eqn)

    def is_recorded(self, number: int, length: int | None) -> bool:
        """Return whether an iteration is among the first ones, or the last."""
        is_wanted = number < FIRST_ITERATIONS or number + 1 == length
        return is_wanted and not self._is_paused and not self.is_truncated

    @contextlib.contextmanager
    def iteration(self, eqn: Any, number: int, length: int | None) -> Iterator[None]:
        """Enter one iteration of a loop; most iterations of a long loop are not recorded."""
        if number == 0:
            self._loops[id(eqn)] = LoopRun(str(eqn.primitive.name), self._line(eqn), length)
            for body in _jax.inner_jaxprs(eqn.params):
                variables = _jax.open_jaxpr(body)[0].invars
                names = _jax.argument_names(body)
                self._parameter_names.update(zip(variables, names, strict=False))
        loop = (*self._scope.loop, (self._loops[id(eqn)], number))
        with self.inside(eqn), self._enter(loop=loop):
            if self.is_recorded(number, length):
                yield
            else:
                self.skip_iterations(1)
                with self.paused():
                    yield

    def skip_iterations(self, count: int) -> None:
        """Count iterations that are computed and not recorded."""
        self.n_unrecorded += 0 if self._is_paused else count

    def finish_loop(self, eqn: Any, length: int) -> None:
        """Set the length of a while loop."""
        if id(eqn) in self._loops:
            self._loops.pop(id(eqn)).length = length

    @contextlib.contextmanager
    def branch(self, axes: MeshAxes, eqn: Any) -> Iterator[None]:
        """Enter a branch that only some devices take."""
        assert axes.active is not None
        taken_by = device_set(np.flatnonzero(spread_mask(axes.active, self.mesh)))
        with self._enter(branch=TakenBranch(line=self._line(eqn), taken_by=taken_by)):
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Compute without recording."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    # ----------------------------------------------------------------------------- shard_map

    def enter_shard_map(
        self, inner: MeshAxes, eqn: Any, ins: Sequence[Any], shards: Sequence[StackedArray]
    ) -> list[StackedArray]:
        """Record how the inputs are sharded; residuals of a forward body keep their numbers."""
        if not self._is_recording():
            return list(shards)
        params = eqn.params
        body, _ = _jax.open_jaxpr(params["jaxpr"])
        names = _jax.argument_names(params["jaxpr"])
        outer = dataclasses.replace(inner, manual=inner.manual - set(params["newly_manual_axes"]))
        reads: list[int] = []
        writes: list[int] = []
        observed: list[StackedArray] = []
        with self._enter(is_checked=params["check_vma"]):
            for index, (value, shard, spec) in enumerate(
                zip(ins, shards, params["in_specs"], strict=True)
            ):
                if isinstance(shard, ObservedArray):
                    observed.append(shard)
                    continue
                atom = eqn.invars[index]
                source = None
                if not isinstance(atom, _jax.Literal):
                    reads.append(source := self.value_id(value, atom.aval, outer))
                entered = self._add_value(
                    shard,
                    body.invars[index].aval,
                    inner,
                    name=names[index] if names else self._name(source),
                    spec=spec,
                    slices=shard_slices(spec, tuple(atom.aval.shape), self.mesh),
                )
                rank = shard.local_ndim
                entries = [*spec_entries(spec), *[()] * rank][:rank]
                self._flow.place(entered.value_id, entries, spec.unreduced)
                writes.append(entered.value_id)
                observed.append(entered)
            if writes:
                with self.inside(eqn):
                    self.add_step(inner, eqn, reads, writes, "enter shard_map")
        return observed

    def _name(self, value: int | None) -> str | None:
        return None if value is None else self.values[value].name

    def leave_shard_map(
        self, inner: MeshAxes, eqn: Any, outs: Sequence[StackedArray]
    ) -> list[int | None]:
        """Record the outputs as `out_specs` declares them, and whether the copies agree."""
        if not self._is_recording():
            return [None] * len(outs)
        params = eqn.params
        newly_manual = frozenset(params["newly_manual_axes"])
        outer = dataclasses.replace(inner, manual=inner.manual - newly_manual)
        ids: list[int | None] = []
        reads = []
        for out, spec, var in zip(outs, params["out_specs"], eqn.outvars, strict=True):
            if var in self.hidden_outputs:
                ids.append(None)
                continue
            body_value = self.value_id(out, var.aval, inner)
            shape = tuple(var.aval.shape)
            left = self._add_value(
                out, var.aval, outer, spec=spec, slices=shard_slices(spec, shape, self.mesh)
            )
            replicated = newly_manual - spec_axes(spec) - frozenset(spec.unreduced)
            value = self.values[left.value_id]
            if replicated & set(value.summary.varies_over):
                value.disagrees = self.values[body_value].disagrees = True
            value.partial_over |= set(spec.unreduced)
            reads.append(body_value)
            ids.append(left.value_id)
        writes = [value_id for value_id in ids if value_id is not None]
        if writes:
            self.add_step(outer, eqn, reads, writes, "leave shard_map")
        return ids

    # ------------------------------------------------------------------------------ deadlock

    def block(
        self, axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray], deadlock: Deadlock
    ) -> None:
        """Record the collective that never completes."""
        reads = [v for v, _ in self._read_operands(axes, eqn, ins) if v is not None]
        step = self.add_step(axes, eqn, reads, [])
        self._add_collective(axes, eqn, step)
        assert axes.active is not None
        assert step.call is not None
        # The rendezvous of a ppermute spans every device of the mesh (see `interpreter/deadlock`).
        is_global = eqn.primitive.name.startswith("ppermute")
        arrived = spread_mask(axes.active, self.mesh)
        groups = [tuple(range(len(arrived)))] if is_global else device_groups(step.call, self.mesh)
        waiting, missing = split_arrivals(groups, arrived)
        step.waiting = Waiting(
            devices=device_set(waiting), missing=device_set(missing), text=deadlock.what
        )
