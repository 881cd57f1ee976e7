"""Errors a person meets, each in three parts: what happened, where, and what to try.

LabError
├─ LayoutError (ValueError)
│  ├─ BadText
│  ├─ BadType (TypeError)
│  ├─ BadSize
│  ├─ UnknownDtype
│  ├─ UnknownDevice
│  ├─ MeshAxisRepeated
│  ├─ UnknownMeshAxis
│  ├─ MeshAxisUsedTwice
│  ├─ SpecTooLong
│  ├─ IndivisibleAxis
│  ├─ UnreducedNotAllowed
│  ├─ TooManyDevices
│  └─ LayoutMismatch
├─ ProgramNotFound
├─ BadConfig (ValueError)
├─ CostError (ValueError)
│  ├─ UnknownHardware
│  ├─ BadHardware
│  ├─ UnknownFigure
│  └─ BadEfficiency
├─ OtherAxes (ValueError)
├─ Refused (ValueError)
├─ TargetError
│  ├─ BadTarget
│  ├─ NoSuchFunction
│  ├─ NoArguments
│  └─ BadArguments
├─ ProgramFailed
│  ├─ ProgramRaised
│  ├─ ProgramExited
│  ├─ ProgramDied
│  ├─ TimeLimitReached
│  └─ MemoryLimitReached
├─ CompileError (RuntimeError)
│  ├─ CompileTimeout
│  ├─ CompileFailed
│  ├─ NoTpuCompiler
│  └─ BadTopology (ValueError)
└─ SimulationError (RuntimeError)
   ├─ CannotSimulate (NotImplementedError)
   ├─ UnboundAxis (NameError)
   ├─ DuplicatePermutation (ValueError)
   ├─ PermutationOrder
   ├─ ManualAxisConstraint (ValueError)
   ├─ Deadlock
   ├─ Unsupported (NotImplementedError)
   ├─ NotMeasured
   ├─ BadDeviceCount (ValueError)
   └─ NotSharded (TypeError)
"""

from __future__ import annotations

from typing import Any, ClassVar


class LabError(Exception):
    """An error with a code and three parts, so that terminal, page, JSON and tests share the words.

    >>> print(LabError("Array axis 0 is odd.", where="shape (3,)", fix="pad it to 4."))
    [lab] Array axis 0 is odd.
      where: shape (3,)
      try:   pad it to 4.
    """

    code: ClassVar[str] = "lab"
    exit_code: ClassVar[int] = 2  # of a command that ends with it

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where, fix)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  try:   {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # The parts are keywords, which Exception's own pickling does not hand back.
        return _restored, (type(self), self.what, self.where, self.fix)

    def to_json(self) -> dict[str, Any]:
        """Return the parts as plain data."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix}


def _restored(kind: type[LabError], what: str, where: str, fix: str) -> LabError:
    error = kind.__new__(kind)
    LabError.__init__(error, what, where=where, fix=fix)
    return error


class LayoutError(LabError, ValueError):
    """A layout that JAX would refuse too."""

    code = "layout"


class BadText(LayoutError):
    """Text that is not a mesh, spec, shape or dtype; `where` points at the place with `^^^`."""

    code = "layout.bad_text"


class BadType(LayoutError, TypeError):
    """A Python object that cannot be read as the thing asked for."""

    code = "layout.bad_type"


class BadSize(LayoutError):
    """A size that no array or mesh can have: zero, negative, or beyond counting."""

    code = "layout.bad_size"


class UnknownDtype(LayoutError):
    """A dtype name that JAX does not have."""

    code = "layout.unknown_dtype"


class UnknownDevice(LayoutError):
    """A device id or coordinate outside the mesh."""

    code = "layout.unknown_device"


class MeshAxisRepeated(LayoutError):
    """A mesh with the same axis name (or the same device) twice."""

    code = "layout.mesh_axis_repeated"


class UnknownMeshAxis(LayoutError):
    """A spec that names a mesh axis the mesh does not have."""

    code = "layout.unknown_axis"


class MeshAxisUsedTwice(LayoutError):
    """A spec that uses one mesh axis in two places."""

    code = "layout.axis_used_twice"


class SpecTooLong(LayoutError):
    """A spec with more entries than the array has axes."""

    code = "layout.spec_too_long"


class IndivisibleAxis(LayoutError):
    """An array axis whose size its number of shards does not divide."""

    code = "layout.indivisible"


class UnreducedNotAllowed(LayoutError):
    """An `unreduced` or `reduced` mesh axis where JAX does not allow one."""

    code = "layout.unreduced"


class TooManyDevices(LayoutError):
    """A list of every device, asked of a mesh too large to list."""

    code = "layout.too_many_devices"


class LayoutMismatch(LayoutError):
    """Two layouts that are not of the same array on the same mesh."""

    code = "layout.mismatch"


class BadConfig(LabError, ValueError):
    """A `[tool.shardlab]` table in pyproject.toml that is not understood."""

    code = "config.bad"


class ProgramNotFound(LabError):
    """A program to run that is not there."""

    code = "run.no_program"


class OtherAxes(LabError, ValueError):
    """A mesh to try a program on, with other axis names than the program's own mesh."""

    code = "trace.other_axes"


class Refused(LabError, ValueError):
    """A program that JAX refuses, so that nothing can be said of what it sends."""

    code = "trace.refused"
    finding: Any = None  # what `shardlab.check` says of it, a Finding


class TargetError(LabError):
    """A program to look at that was not given in a way that can be followed."""

    code = "target"


class BadTarget(TargetError):
    """Text that is neither `file.py:function`, `module:function` nor a script."""

    code = "target.bad_text"


class NoSuchFunction(TargetError):
    """A name that the file or module does not have, or that is not a function."""

    code = "target.no_function"


class NoArguments(TargetError):
    """A function that needs arguments which nobody gave."""

    code = "target.no_arguments"


class BadArguments(TargetError):
    """Arguments that do not fit the function, or that cannot be made."""

    code = "target.bad_arguments"


class ProgramFailed(LabError):
    """A person's program that did not get to its end."""

    code = "program"


class ProgramRaised(ProgramFailed):
    """A program that raised an exception; its own traceback is shown."""

    code = "program.raised"


class ProgramExited(ProgramFailed):
    """A program that ended itself, and said that it had failed."""

    code = "program.exited"


class ProgramDied(ProgramFailed):
    """A program whose process ended before it had said anything."""

    code = "program.died"


class TimeLimitReached(ProgramFailed):
    """A program that was still running when its time was over."""

    code = "program.time_limit"
    exit_code = 124  # that of timeout(1)


class MemoryLimitReached(ProgramFailed):
    """A program that wanted more memory than it was allowed."""

    code = "program.memory_limit"


class CostError(LabError, ValueError):
    """A question about time that the figures at hand cannot answer."""

    code = "cost"


class UnknownHardware(CostError):
    """A name of hardware that is not in the table."""

    code = "cost.unknown_hardware"


class BadHardware(CostError):
    """A hardware file, or a figure given, that cannot be used."""

    code = "cost.bad_hardware"


class UnknownFigure(CostError):
    """A figure that an estimate needs and nobody publishes."""

    code = "cost.unknown_figure"


class BadEfficiency(CostError):
    """An efficiency that is not a share of the peak."""

    code = "cost.bad_efficiency"


class CompileError(LabError, RuntimeError):
    """A program that the compiler would be asked about, and could not be."""

    code = "trace"


class CompileTimeout(CompileError):
    """A compile that took longer than its limit; it was ended."""

    code = "trace.compile_timeout"


class CompileFailed(CompileError):
    """A program that XLA refuses to compile, in its own words."""

    code = "trace.compile_failed"


class NoTpuCompiler(CompileError):
    """A TPU topology, asked for where the TPU compiler is not installed."""

    code = "trace.no_tpu_compiler"


class BadTopology(CompileError, ValueError):
    """A TPU topology that the compiler does not know, or that does not fit the mesh."""

    code = "trace.bad_topology"


class SimulationError(LabError, RuntimeError):
    """A program that cannot be simulated as it stands."""

    code = "simulate"


class CannotSimulate(SimulationError, NotImplementedError):
    """A primitive that communicates in a way shardlab does not know."""

    code = "simulate.unknown_primitive"


class UnboundAxis(SimulationError, NameError):
    """A collective over a mesh axis that the mesh does not have."""

    code = "simulate.unbound_axis"


class DuplicatePermutation(SimulationError, ValueError):
    """A ppermute with a device twice among its sources or destinations."""

    code = "simulate.duplicate_permutation"


class PermutationOrder(SimulationError):
    """A ppermute over mesh axes in another order than the mesh, where JAX refuses it."""

    code = "simulate.permutation_order"


class ManualAxisConstraint(SimulationError, ValueError):
    """A sharding constraint over an axis that is manual at that place."""

    code = "simulate.manual_axis"


class Deadlock(SimulationError):
    """Devices that part ways before a collective that needs them all."""

    code = "simulate.deadlock"


class Unsupported(SimulationError, NotImplementedError):
    """A feature of JAX that simulated mode does not take over."""

    code = "simulate.unsupported"


class NotMeasured(SimulationError):
    """A figure of a compiled program, asked of one that was only simulated."""

    code = "simulate.not_measured"


class BadDeviceCount(SimulationError, ValueError):
    """A number of devices that no machine can have."""

    code = "simulate.device_count"


class NotSharded(SimulationError, TypeError):
    """Something other than an array where the shards of an array were asked for."""

    code = "simulate.not_an_array"
