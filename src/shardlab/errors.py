"""Errors a person meets, each in three parts: what happened, where, and what to try.

LabError
├─ LayoutError (ValueError)
│  ├─ InvalidSyntax
│  ├─ InvalidType (TypeError)
│  ├─ InvalidSize
│  ├─ UnknownDtype
│  ├─ UnknownDevice
│  ├─ DuplicateMeshAxis
│  ├─ UnknownMeshAxis
│  ├─ DuplicateSpecAxis
│  ├─ SpecTooLong
│  ├─ IndivisibleAxis
│  ├─ UnreducedNotAllowed
│  ├─ TooManyDevices
│  └─ LayoutMismatch
├─ ProgramNotFound
├─ InvalidConfig (ValueError)
├─ HardwareError (ValueError)
│  ├─ UnknownHardware
│  ├─ InvalidHardwareFile
│  ├─ UnknownFigure
│  └─ InvalidEfficiency
├─ PlanError (ValueError)
│  ├─ UnknownModel
│  ├─ InvalidModel
│  ├─ InvalidRules
│  ├─ UnknownOption
│  └─ InvalidPlan
├─ CatalogueError (ValueError)
│  ├─ CatalogueNotFound
│  ├─ InvalidTracks
│  ├─ InvalidProblem
│  ├─ InvalidReference
│  ├─ UnknownProblem
│  ├─ ProblemExists
│  └─ InvalidProblemName
├─ StoreError
│  ├─ StoreUnwritable
│  ├─ StoreFull
│  ├─ StoreBusy
│  ├─ StoreCorrupt
│  └─ StoreNewerVersion
├─ PracticeError
│  ├─ SolutionFileMissing
│  ├─ SolutionFileExists
│  ├─ FolderUnwritable
│  ├─ UnknownSubmission
│  └─ NoTerminal
├─ MeshAxesMismatch (ValueError)
├─ ProgramRejected (ValueError)
├─ TargetError
│  ├─ InvalidTarget
│  ├─ UnknownFunction
│  ├─ MissingArguments
│  └─ InvalidArguments
├─ ProgramFailed
│  ├─ ProgramRaised
│  ├─ ProgramExited
│  ├─ ProgramCrashed
│  ├─ TimeLimitReached
│  └─ MemoryLimitReached
├─ CompileError (RuntimeError)
│  ├─ CompileTimeout
│  ├─ CompileFailed
│  ├─ TpuCompilerMissing
│  └─ InvalidTopology (ValueError)
├─ SandboxError (RuntimeError)
│  ├─ SandboxLevelUnavailable
│  └─ ForkServerFailed
└─ SimulationError (RuntimeError)
   ├─ CannotSimulate (NotImplementedError)
   ├─ UnboundAxis (NameError)
   ├─ DuplicatePermutation (ValueError)
   ├─ PermutationRange (IndexError)
   ├─ PermutationOrder
   ├─ ManualAxisConstraint (ValueError)
   ├─ Deadlock
   ├─ Unsupported (NotImplementedError)
   ├─ NotMeasured
   ├─ InvalidDeviceCount (ValueError)
   └─ NotSharded (TypeError)

What every error of shardlab is: a code and three parts.

Values and texts as errors show them: never long, never failing, and moving no cursor.

>>> short_repr([1, "two"]), short_repr("x" * 200, 8), short_repr(10**5000)
("[1, 'two']", "'xxxxxxx", 'a whole number of 16,610 bits')

Layouts that JAX would refuse too.

Programs that cannot be simulated as they stand.

Programs and settings of a person that cannot be found, loaded, traced or finished.

Programs that the compiler could not be asked about.

Hardware and figures that an estimate cannot use.

Models and rules that cannot be planned.

Machines on which another person's code cannot be run as asked.

Problems, and catalogues of them, that cannot be read or written.

A person's record of practice that cannot be kept, and answers that cannot be found.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

# What a terminal obeys, what turns the reading direction, and halves of characters, which no
# terminal can be sent; lines and tabs are ours.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def short_repr(value: object, most: int = 80) -> str:
    """Return how Python writes a value, cut off; in words where it cannot write it.

    Python refuses whole numbers of thousands of digits and lists a thousand deep, and what
    a person's class says of itself may raise anything.
    """
    if isinstance(value, (str, bytes)):
        value = value[:most]
    try:
        return quote_text(repr(value)[:most])
    except Exception:
        if isinstance(value, int):
            return f"a whole number of {int(value).bit_length():,} bits"
        return f"a {type(value).__name__} that cannot be shown"


def quote_text(text: str) -> str:
    """Return text with an escape in place of each character that nobody would see.

    >>> quote_text("a\\x1b[31mb\\u202e")
    'a\\\\x1b[31mb\\\\u202e'
    """
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class LabError(Exception):
    """An error with a code and three parts, so that terminal, page, JSON and tests share the words.

    >>> print(LabError("Array axis 0 is odd.", where="shape (3,)", fix="pad it to 4."))
    [lab] Array axis 0 is odd.
      where: shape (3,)
      try:   pad it to 4.
    """

    code: ClassVar[str] = "lab"
    exit_code: ClassVar[int] = 2  # of a command that ends with it

    def __init_subclass__(cls) -> None:
        # The name by which a person catches it, also in tracebacks.
        cls.__module__ = "shardlab.errors"

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        # What is shown of a file or a name must not move a cursor.
        what, where, fix = quote_text(what), quote_text(where), quote_text(fix)
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


class InvalidSyntax(LayoutError):
    """Text that is not a mesh, spec, shape or dtype; `where` points at the place with `^^^`."""

    code = "layout.invalid_syntax"


class InvalidType(LayoutError, TypeError):
    """A Python object that cannot be read as the thing asked for."""

    code = "layout.invalid_type"


class InvalidSize(LayoutError):
    """A size that no array or mesh can have: zero, negative, or beyond counting."""

    code = "layout.invalid_size"


class UnknownDtype(LayoutError):
    """A dtype name that JAX does not have."""

    code = "layout.unknown_dtype"


class UnknownDevice(LayoutError):
    """A device id or coordinate outside the mesh."""

    code = "layout.unknown_device"


class DuplicateMeshAxis(LayoutError):
    """A mesh with the same axis name (or the same device) twice."""

    code = "layout.duplicate_mesh_axis"


class UnknownMeshAxis(LayoutError):
    """A spec that names a mesh axis the mesh does not have."""

    code = "layout.unknown_axis"


class DuplicateSpecAxis(LayoutError):
    """A spec that uses one mesh axis in two places."""

    code = "layout.duplicate_spec_axis"


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


class SimulationError(LabError, RuntimeError):
    """A program that cannot be simulated as it stands."""

    code = "simulate"
    # File, line and function of the operation, where one is known; `where` has them as text.
    location: tuple[str, int, str] | None = None


class CannotSimulate(SimulationError, NotImplementedError):
    """A primitive that communicates in a way shardlab does not know."""

    code = "simulate.unknown_primitive"


class UnboundAxis(SimulationError, NameError):
    """A collective over a mesh axis that the mesh does not have."""

    code = "simulate.unbound_axis"
    axis: str = ""  # the name that the mesh does not have
    operation: str = ""  # the collective that uses it


class DuplicatePermutation(SimulationError, ValueError):
    """A ppermute with a device twice among its sources or destinations."""

    code = "simulate.duplicate_permutation"


class PermutationRange(SimulationError, IndexError):
    """A ppermute that names a device beyond the last one of its mesh axes."""

    code = "simulate.permutation_range"


class PermutationOrder(SimulationError):
    """A ppermute over mesh axes in another order than the mesh, where JAX refuses it."""

    code = "simulate.permutation_order"


class ManualAxisConstraint(SimulationError, ValueError):
    """A sharding constraint over an axis that is manual at that place."""

    code = "simulate.manual_axis_constraint"


class Deadlock(SimulationError):
    """Devices that part ways before a collective that needs them all."""

    code = "simulate.deadlock"


class Unsupported(SimulationError, NotImplementedError):
    """A feature of JAX that simulated mode does not take over."""

    code = "simulate.unsupported"


class NotMeasured(SimulationError):
    """A figure of a compiled program, asked of one that was only simulated."""

    code = "simulate.not_measured"


class InvalidDeviceCount(SimulationError, ValueError):
    """A number of devices that no machine can have."""

    code = "simulate.invalid_device_count"


class NotSharded(SimulationError, TypeError):
    """Something other than an array where the shards of an array were asked for."""

    code = "simulate.not_an_array"


class InvalidConfig(LabError, ValueError):
    """A `[tool.shardlab]` table in pyproject.toml that is not understood."""

    code = "config.invalid"


class ProgramNotFound(LabError):
    """A program to run that is not there."""

    code = "program.not_found"


class MeshAxesMismatch(LabError, ValueError):
    """A mesh to try a program on, with other axis names than the program's own mesh."""

    code = "trace.mesh_axes_mismatch"


class ProgramRejected(LabError, ValueError):
    """A program that JAX refuses, so that nothing can be said of what it sends."""

    code = "trace.rejected"
    finding: Any = None  # what `shardlab.check` says of it, a Finding


class TargetError(LabError):
    """A program to look at that was not given in a way that can be followed."""

    code = "target"


class InvalidTarget(TargetError):
    """Text that is neither `file.py:function`, `module:function` nor a script."""

    code = "target.invalid_syntax"


class UnknownFunction(TargetError):
    """A name that the file or module does not have, or that is not a function."""

    code = "target.unknown_function"


class MissingArguments(TargetError):
    """A function that needs arguments which nobody gave."""

    code = "target.missing_arguments"


class InvalidArguments(TargetError):
    """Arguments that do not fit the function, or that cannot be made."""

    code = "target.invalid_arguments"


class ProgramFailed(LabError):
    """A person's program that did not get to its end."""

    code = "program"


class ProgramRaised(ProgramFailed):
    """A program that raised an exception; its own traceback is shown."""

    code = "program.raised"


class ProgramExited(ProgramFailed):
    """A program that ended itself, and said that it had failed."""

    code = "program.exited"


class ProgramCrashed(ProgramFailed):
    """A program whose process ended before it had said anything."""

    code = "program.crashed"


class TimeLimitReached(ProgramFailed):
    """A program that was still running when its time was over."""

    code = "program.time_limit"
    exit_code = 124  # that of timeout(1)


class MemoryLimitReached(ProgramFailed):
    """A program that wanted more memory than it was allowed."""

    code = "program.memory_limit"


class CompileError(LabError, RuntimeError):
    """A program that the compiler would be asked about, and could not be."""

    code = "trace"


class CompileTimeout(CompileError):
    """A compile that took longer than its limit; it was ended."""

    code = "trace.compile_timeout"


class CompileFailed(CompileError):
    """A program that XLA refuses to compile, in its own words."""

    code = "trace.compile_failed"


class TpuCompilerMissing(CompileError):
    """A TPU topology, asked for where the TPU compiler is not installed."""

    code = "trace.tpu_compiler_missing"


class InvalidTopology(CompileError, ValueError):
    """A TPU topology that the compiler does not know, or that does not fit the mesh."""

    code = "trace.invalid_topology"


class HardwareError(LabError, ValueError):
    """A question about time that the figures at hand cannot answer."""

    code = "hardware"


class UnknownHardware(HardwareError):
    """A name of hardware that is not in the table."""

    code = "hardware.unknown"


class InvalidHardwareFile(HardwareError):
    """A hardware file, or a figure given, that cannot be used."""

    code = "hardware.invalid_file"


class UnknownFigure(HardwareError):
    """A figure that an estimate needs and nobody publishes."""

    code = "hardware.unknown_figure"


class InvalidEfficiency(HardwareError):
    """An efficiency that is not a share of the peak."""

    code = "hardware.invalid_efficiency"


class PlanError(LabError, ValueError):
    """A model, a rule or a choice that a plan cannot use."""

    code = "plan"


class UnknownModel(PlanError):
    """A name that is no preset, and no file either."""

    code = "plan.unknown_model"


class InvalidModel(PlanError):
    """A file or an object whose tensors cannot be read."""

    code = "plan.invalid_model"


class InvalidRules(PlanError):
    """Rules that cannot be read, or a rule that cannot be applied."""

    code = "plan.invalid_rules"


class UnknownOption(PlanError):
    """A strategy, an optimizer or a policy that there is not."""

    code = "plan.unknown_option"


class InvalidPlan(PlanError):
    """A saved plan that cannot be read."""

    code = "plan.invalid_plan"


class SandboxError(LabError, RuntimeError):
    """No place to run another person's code."""

    code = "sandbox"


class SandboxLevelUnavailable(SandboxError):
    """A level of confinement that was required, and that this machine does not hold."""

    code = "sandbox.level_unavailable"


class ForkServerFailed(SandboxError):
    """The process that loads JAX for the judge's processes did not start."""

    code = "sandbox.fork_server_failed"


class CatalogueError(LabError, ValueError):
    """A catalogue of problems that cannot be used as it stands."""

    code = "catalogue"


class CatalogueNotFound(CatalogueError):
    """A folder that is not a catalogue: it has no `tracks.toml`."""

    code = "catalogue.not_found"


class InvalidTracks(CatalogueError):
    """A `tracks.toml` that is not understood, or that does not fit the folders beside it."""

    code = "catalogue.invalid_tracks"


class InvalidProblem(CatalogueError):
    """A `problem.toml` that is not understood, or a file of a problem that is missing."""

    code = "catalogue.invalid_problem"


class InvalidReference(CatalogueError):
    """A `reference.py` that cannot be loaded, or lacks a function."""

    code = "catalogue.invalid_reference"


class UnknownProblem(CatalogueError):
    """A problem or a track that the catalogue does not have."""

    code = "catalogue.unknown_problem"


class ProblemExists(CatalogueError):
    """A new problem whose folder is there already."""

    code = "catalogue.exists"


class InvalidProblemName(CatalogueError):
    """A name for a new problem or track that cannot be one."""

    code = "catalogue.invalid_name"


class StoreError(LabError):
    """The record of submissions and progress cannot be read or written."""

    code = "store"


class StoreUnwritable(StoreError):
    """A data folder or record that may not be written, or a disk that fails."""

    code = "store.unwritable"


class StoreFull(StoreError):
    """A disk with no room for what should be kept."""

    code = "store.full"


class StoreBusy(StoreError):
    """A record that another process does not let go of."""

    code = "store.busy"


class StoreCorrupt(StoreError):
    """A record that is not what SQLite wrote; it is kept beside, never deleted."""

    code = "store.corrupt"


class StoreNewerVersion(StoreError):
    """A record written by a newer shardlab."""

    code = "store.newer_version"


class PracticeError(LabError):
    """Something asked of an exercise that cannot be done."""

    code = "practice"


class SolutionFileMissing(PracticeError):
    """An answer to judge that is not there, or is no file."""

    code = "practice.no_file"


class SolutionFileExists(PracticeError):
    """A file of the person's own in the place where a starter should go."""

    code = "practice.file_exists"


class FolderUnwritable(PracticeError):
    """A folder for answers, or for an export of them, that may not be written."""

    code = "practice.folder_unwritable"


class UnknownSubmission(PracticeError):
    """A submission number, or a case, that the record does not have."""

    code = "practice.unknown_submission"


class NoTerminal(PracticeError):
    """`shardlab learn` without a terminal to read keys from."""

    code = "practice.no_terminal"
