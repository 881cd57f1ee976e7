"""Every error that shardlab raises, in one file.

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
├─ HardwareError (ValueError)
│  ├─ UnknownHardware
│  ├─ InvalidHardwareFile
│  ├─ UnknownFigure
│  ├─ InvalidEfficiency
│  └─ InvalidCalibration
├─ SimulationError (RuntimeError)
│  ├─ CannotSimulate (NotImplementedError)
│  ├─ UnboundAxis (NameError)
│  ├─ DuplicatePermutation (ValueError)
│  ├─ PermutationRange (IndexError)
│  ├─ PermutationOrder
│  ├─ ManualAxisConstraint (ValueError)
│  ├─ Deadlock
│  ├─ Unsupported (NotImplementedError)
│  ├─ NotMeasured
│  ├─ InvalidDeviceCount (ValueError)
│  ├─ NotSharded (TypeError)
│  ├─ HostsDeadlock
│  ├─ HostsDiffer
│  ├─ HostFailed
│  └─ InvalidHosts (ValueError)
├─ InvalidConfig (ValueError)
├─ ProgramNotFound
├─ TargetError
│  ├─ InvalidTarget
│  ├─ UnknownFunction
│  ├─ MissingArguments
│  └─ InvalidArguments
├─ MeshAxesMismatch (ValueError)
├─ ProgramRejected (ValueError)
├─ CompileError (RuntimeError)
│  ├─ CompileTimeout
│  ├─ CompileFailed
│  ├─ TpuCompilerMissing
│  └─ InvalidTopology (ValueError)
├─ ProgramFailed
│  ├─ ProgramRaised
│  ├─ ProgramExited
│  ├─ ProgramCrashed
│  ├─ TimeLimitReached
│  └─ MemoryLimitReached
├─ LaunchError (RuntimeError)
│  ├─ InvalidLaunchTarget (ValueError)
│  ├─ NoCluster
│  ├─ ClusterSplit
│  ├─ ProcessNeverArrived
│  ├─ CollectiveNotReached
│  ├─ LaunchStalled
│  ├─ ProcessDied
│  ├─ ProcessRaised
│  └─ LaunchTimeLimit
├─ FixError
│  ├─ FixFileChanged
│  └─ FixUnwritable
├─ RecordingError (ValueError)
│  ├─ InvalidRecording
│  ├─ NothingToRecord
│  ├─ TooLargeToRecord
│  └─ UnknownEdit
├─ CannotAutoshard (ValueError)
├─ ShardingsDisproven (ValueError)
├─ PlanError (ValueError)
│  ├─ UnknownModel
│  ├─ InvalidModel
│  ├─ InvalidRules
│  ├─ UnknownOption
│  ├─ InvalidPlan
│  ├─ PlanTimeout
│  └─ InvalidRunConfig
├─ SandboxError (RuntimeError)
│  ├─ SandboxLevelUnavailable
│  ├─ ForkServerFailed
│  └─ ReferenceFailed
├─ ServerError
│  ├─ PortInUse
│  ├─ DatabaseUnusable
│  ├─ SecretMissing
│  ├─ WeakSecret
│  ├─ InvalidServerOption
│  ├─ WorkerMismatch
│  ├─ AccountRefused
│  ├─ BackupFailed
│  └─ InvalidBackup
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
└─ PracticeError
   ├─ SolutionFileMissing
   ├─ SolutionFileExists
   ├─ FolderUnwritable
   ├─ UnknownSubmission
   ├─ CaseNotShown
   └─ NoTerminal

Names in parentheses are the built-in exception that the error also is, so that code written for
JAX's own exceptions catches it. Every error has a code and three parts: what happened, where, and
what to try. docs/errors/ has a page for each.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

# Characters that must not reach a terminal from a file or a name: control characters (a terminal
# obeys them), bidirectional marks (they reorder the line), and lone surrogates (UTF-8 cannot encode
# them, so printing would raise). Newline and tab stay, our own messages use them.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def short_repr(value: object, max_length: int = 80) -> str:
    """Return a truncated `repr` for use in messages; it never raises.

    >>> short_repr([1, "two"]), short_repr("x" * 200, 8), short_repr(10**5000)
    ("[1, 'two']", "'xxxxxxx", 'an integer of 16,610 bits')
    """
    if isinstance(value, (str, bytes)):
        value = value[:max_length]  # before repr: the text of a file can have megabytes
    try:
        return quote_text(repr(value)[:max_length])
    except Exception:
        # Python refuses to print integers of more than 4,300 digits, recursion stops a list nested
        # a thousand deep, and `__repr__` of a user's class can raise anything.
        if isinstance(value, int):
            return f"an integer of {int(value).bit_length():,} bits"
        return f"a {type(value).__name__} whose repr fails"


def quote_text(text: str) -> str:
    """Return text with unprintable characters replaced by their escape sequence.

    >>> quote_text("a\\x1b[31mb\\u202e")
    'a\\\\x1b[31mb\\\\u202e'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class LabError(Exception):
    """Base of all errors: a code and three parts, shared by terminal, HTML, JSON and tests.

    >>> print(LabError("Dimension 0 is odd.", where="shape (3,)", fix="pad it to 4."))
    [lab] Dimension 0 is odd.
      where: shape (3,)
      try:   pad it to 4.
    """

    # Stable: tests, documentation pages and JSON output refer to it.
    code: ClassVar[str] = "lab"
    exit_code: ClassVar[int] = 2  # of a command that fails with this error

    def __init_subclass__(cls) -> None:
        # Tracebacks then show the name to catch, `shardlab.errors.X`, even for a subclass that is
        # defined elsewhere.
        cls.__module__ = "shardlab.errors"

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        # Messages quote file contents and names, which must not send escape codes to a terminal.
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
        # Exception's own pickling calls `cls(*args)`, but `where` and `fix` are keyword-only.
        return _unpickle_error, (type(self), self.what, self.where, self.fix)

    def to_json(self) -> dict[str, Any]:
        """Return the parts as plain data."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix}


def _unpickle_error(kind: type[LabError], what: str, where: str, fix: str) -> LabError:
    error = kind.__new__(kind)
    LabError.__init__(error, what, where=where, fix=fix)
    return error


# Layouts: meshes, specs, shapes, dtypes, devices (`shardlab.sharding`)


class LayoutError(LabError, ValueError):
    """A mesh, spec, shape or layout is invalid; JAX rejects most of these too."""

    code = "layout"


class InvalidSyntax(LayoutError):
    """Text is not a valid mesh, spec, shape, dtype or device; `^^^` marks the position."""

    code = "layout.invalid_syntax"


class InvalidType(LayoutError, TypeError):
    """A Python object has the wrong type, such as a float as a size."""

    code = "layout.invalid_type"


class InvalidSize(LayoutError):
    """A size is out of range: negative, a mesh axis of zero, or more devices than XLA can count."""

    code = "layout.invalid_size"


class UnknownDtype(LayoutError):
    """JAX has no dtype of this name."""

    code = "layout.unknown_dtype"


class UnknownDevice(LayoutError):
    """The device id or coordinate is outside the mesh."""

    code = "layout.unknown_device"


class DuplicateMeshAxis(LayoutError):
    """A mesh has the same axis name, or the same device, twice."""

    code = "layout.duplicate_mesh_axis"


class UnknownMeshAxis(LayoutError):
    """A spec uses a mesh axis that the mesh does not have."""

    code = "layout.unknown_axis"


class DuplicateSpecAxis(LayoutError):
    """A spec uses one mesh axis twice."""

    code = "layout.duplicate_spec_axis"


class SpecTooLong(LayoutError):
    """A spec has more entries than the array has dimensions."""

    code = "layout.spec_too_long"


class IndivisibleAxis(LayoutError):
    """The size of a dimension is not divisible by its number of shards."""

    code = "layout.indivisible"


class UnreducedNotAllowed(LayoutError):
    """An `unreduced` or `reduced` mesh axis is not allowed there by JAX."""

    code = "layout.unreduced"


class TooManyDevices(LayoutError):
    """The mesh is too large to list every device."""

    code = "layout.too_many_devices"


class LayoutMismatch(LayoutError):
    """Two layouts do not describe the same array on the same mesh."""

    code = "layout.mismatch"


# Hardware: chips and step-time estimates (`shardlab.hardware`)


class HardwareError(LabError, ValueError):
    """An estimate cannot be computed from the available hardware figures."""

    code = "hardware"


class UnknownHardware(HardwareError):
    """The hardware table has no chip of this name."""

    code = "hardware.unknown"


class InvalidHardwareFile(HardwareError):
    """A hardware file, or a figure passed by the user, is invalid."""

    code = "hardware.invalid_file"


class UnknownFigure(HardwareError):
    """An estimate needs a figure that the vendor does not publish."""

    code = "hardware.unknown_figure"
    figure = ""  # its name


class InvalidEfficiency(HardwareError):
    """An efficiency is not in the range 0 to 1."""

    code = "hardware.invalid_efficiency"


class InvalidCalibration(HardwareError):
    """A calibration file cannot be read, or is not one."""

    code = "hardware.invalid_calibration"


# Simulation: programs on virtual devices (`shardlab.simulator`)


class SimulationError(LabError, RuntimeError):
    """The program cannot be simulated."""

    code = "simulate"
    # File, line and function of the operation, if known; `where` has them as text.
    location: tuple[str, int, str] | None = None


class CannotSimulate(SimulationError, NotImplementedError):
    """The program uses a communication primitive that shardlab does not know."""

    code = "simulate.unknown_primitive"


class UnboundAxis(SimulationError, NameError):
    """A collective runs over a mesh axis that the mesh does not have."""

    code = "simulate.unbound_axis"
    axis: str = ""  # the name that the mesh does not have
    operation: str = ""  # the collective that uses it


class DuplicatePermutation(SimulationError, ValueError):
    """A ppermute lists a device twice as source or destination."""

    code = "simulate.duplicate_permutation"


class PermutationRange(SimulationError, IndexError):
    """A ppermute names a device index beyond the size of its mesh axes."""

    code = "simulate.permutation_range"


class PermutationOrder(SimulationError):
    """A ppermute lists mesh axes in an order that JAX rejects; it must be the mesh's order."""

    code = "simulate.permutation_order"


class ManualAxisConstraint(SimulationError, ValueError):
    """A sharding constraint uses a mesh axis that is manual there (inside `shard_map`)."""

    code = "simulate.manual_axis_constraint"


class Deadlock(SimulationError):
    """Devices diverge before a collective that all of them must reach."""

    code = "simulate.deadlock"


class Unsupported(SimulationError, NotImplementedError):
    """Simulated mode does not support this JAX feature."""

    code = "simulate.unsupported"


class NotMeasured(SimulationError):
    """The figure exists only for a compiled program; this one was simulated."""

    code = "simulate.not_measured"


class InvalidDeviceCount(SimulationError, ValueError):
    """The number of virtual devices is out of range."""

    code = "simulate.invalid_device_count"


class NotSharded(SimulationError, TypeError):
    """The value is not an array, so it has no shards."""

    code = "simulate.not_an_array"


class HostsDeadlock(SimulationError):
    """Every virtual host waits for another one."""

    code = "simulate.hosts_deadlock"
    exit_code = 1


class HostsDiffer(SimulationError):
    """Virtual hosts call different computations, or have different values of a replicated array."""

    code = "simulate.hosts_differ"
    exit_code = 1


class HostFailed(SimulationError):
    """A virtual host ended with an error, and others wait for it."""

    code = "simulate.host_failed"
    exit_code = 1


class InvalidHosts(SimulationError, ValueError):
    """The number of virtual hosts does not fit the devices or the program's own settings."""

    code = "simulate.invalid_hosts"


# Programs: finding, tracing and compiling the user's program (`shardlab.tracing`, `.execution`)


class InvalidConfig(LabError, ValueError):
    """The `[tool.shardlab]` table of pyproject.toml is invalid."""

    code = "config.invalid"


class ProgramNotFound(LabError):
    """The program file does not exist."""

    code = "program.not_found"


class TargetError(LabError):
    """The target (which function to trace or check) cannot be resolved."""

    code = "target"


class InvalidTarget(TargetError):
    """The text is not `file.py:function`, `module:function` or a script."""

    code = "target.invalid_syntax"


class UnknownFunction(TargetError):
    """The file or module has no function of this name."""

    code = "target.unknown_function"


class MissingArguments(TargetError):
    """The function needs arguments that were not passed."""

    code = "target.missing_arguments"


class InvalidArguments(TargetError):
    """The arguments do not match the function, or cannot be created."""

    code = "target.invalid_arguments"


class MeshAxesMismatch(LabError, ValueError):
    """A mesh to try has other axis names than the program's own mesh."""

    code = "trace.mesh_axes_mismatch"


class ProgramRejected(LabError, ValueError):
    """JAX rejects the program, so its communication cannot be traced."""

    code = "trace.rejected"
    # Any, because `findings` imports this module.
    finding: Any = None  # the Finding that `shardlab.check` reports for the rejection


class CompileError(LabError, RuntimeError):
    """The program cannot be compiled for analysis."""

    code = "trace"


class CompileTimeout(CompileError):
    """Compilation exceeded its time limit and was stopped."""

    code = "trace.compile_timeout"


class CompileFailed(CompileError):
    """XLA cannot compile the program; its message is included."""

    code = "trace.compile_failed"


class TpuCompilerMissing(CompileError):
    """A TPU topology was requested, but the TPU compiler is not installed."""

    code = "trace.tpu_compiler_missing"


class InvalidTopology(CompileError, ValueError):
    """The compiler does not know the TPU topology, or it does not match the mesh."""

    code = "trace.invalid_topology"


class ProgramFailed(LabError):
    """The user's program did not finish."""

    code = "program"


class ProgramRaised(ProgramFailed):
    """The program raised an exception; its traceback is shown."""

    code = "program.raised"


class ProgramExited(ProgramFailed):
    """The program exited with a failure status."""

    code = "program.exited"


class ProgramCrashed(ProgramFailed):
    """The program's process ended without a result."""

    code = "program.crashed"


class TimeLimitReached(ProgramFailed):
    """The program was still running at its time limit."""

    code = "program.time_limit"
    exit_code = 124  # the same as timeout(1)


class MemoryLimitReached(ProgramFailed):
    """The program exceeded its memory limit."""

    code = "program.memory_limit"


# Recordings: every step of a program (`shardlab.recording`)


# Launch: real processes (`shardlab.cluster`)


class LaunchError(LabError, RuntimeError):
    """A launch on real processes cannot start, or ended before its records were complete."""

    code = "launch"


class InvalidLaunchTarget(LaunchError, ValueError):
    """The text of `--on`, or a line of a hosts file, is invalid."""

    code = "launch.invalid_target"


class NoCluster(LaunchError):
    """Neither `--on` nor the environment says where the processes are."""

    code = "launch.no_cluster"


class ClusterSplit(LaunchError):
    """JAX sees another number of processes than were started."""

    code = "launch.split_cluster"


class ProcessNeverArrived(LaunchError):
    """A process did not connect to the others."""

    code = "launch.never_arrived"
    exit_code = 1


class CollectiveNotReached(LaunchError):
    """Processes wait in a collective that another process does not reach."""

    code = "launch.collective_not_reached"
    exit_code = 1


class LaunchStalled(LaunchError):
    """All processes are in the same program, and none makes progress."""

    code = "launch.stalled"
    exit_code = 1


class ProcessDied(LaunchError):
    """A process ended before the program did: by a signal, or by an exit."""

    code = "launch.process_died"
    exit_code = 1


class ProcessRaised(LaunchError):
    """The program raised an exception in one or more processes."""

    code = "launch.process_raised"
    exit_code = 1


class LaunchTimeLimit(LaunchError):
    """The launch was still running at its time limit."""

    code = "launch.time_limit"
    exit_code = 124


class FixError(LabError):
    """A proven fix cannot be written (`shardlab check --write`)."""

    code = "fix"


class FixFileChanged(FixError):
    """The file is not the one for which the fix was proven."""

    code = "fix.file_changed"


class FixUnwritable(FixError):
    """The file or its folder does not allow writing."""

    code = "fix.unwritable"


class RecordingError(LabError, ValueError):
    """A recording that cannot be made or read."""

    code = "recording"


class InvalidRecording(RecordingError):
    """A file that is not a recording, or one of another version."""

    code = "recording.invalid"


class NothingToRecord(RecordingError):
    """A program that runs neither a shard_map nor a jit with shardings."""

    code = "recording.no_program"


class TooLargeToRecord(RecordingError):
    """A program whose arguments are too large to compute with, operation by operation."""

    code = "recording.too_large"


class UnknownEdit(RecordingError):
    """An edit that the program does not offer."""

    code = "recording.unknown_edit"


class CannotAutoshard(LabError, ValueError):
    """No shardings were found for a program: none fits, or none is accepted by the compiler."""

    code = "autoshard.not_found"


class ShardingsDisproven(LabError, ValueError):
    """The best shardings that were found all fail a proof: of collectives, values or memory."""

    code = "autoshard.disproven"


# Plans: models, sharding rules and options (`shardlab.planner`)


class PlanError(LabError, ValueError):
    """A model, a rule or an option cannot be used for a plan."""

    code = "plan"


class UnknownModel(PlanError):
    """The name is neither a preset nor a file."""

    code = "plan.unknown_model"


class InvalidModel(PlanError):
    """A model file or object cannot be read."""

    code = "plan.invalid_model"


class InvalidRules(PlanError):
    """Sharding rules cannot be read, or a rule cannot be applied."""

    code = "plan.invalid_rules"


class UnknownOption(PlanError):
    """There is no strategy, optimizer or policy of this name."""

    code = "plan.unknown_option"


class InvalidPlan(PlanError):
    """A saved plan cannot be read."""

    code = "plan.invalid_plan"


class PlanTimeout(PlanError):
    """A plan in a browser took longer than its limit."""

    code = "plan.timeout"


class InvalidRunConfig(PlanError):
    """A training configuration of another framework cannot be read."""

    code = "plan.invalid_config"


# Sandbox: running untrusted submissions (`shardlab.sandbox`)


class SandboxError(LabError, RuntimeError):
    """No sandbox is available to run a submission."""

    code = "sandbox"


class SandboxLevelUnavailable(SandboxError):
    """This machine cannot provide the required confinement level."""

    code = "sandbox.level_unavailable"


class ForkServerFailed(SandboxError):
    """The fork server, which preloads JAX for the worker processes, did not start."""

    code = "sandbox.fork_server_failed"


class ReferenceFailed(SandboxError):
    """The `reference.py` of an uploaded catalogue failed in its sandboxed process.

    Not a `ValueError`: that is what a reference raises where a submission must raise one too.
    """

    code = "sandbox.reference_failed"


# Server: the pages of `shardlab serve` (`shardlab.server`)


class ServerError(LabError):
    """The web server cannot start or go on."""

    code = "server"


class PortInUse(ServerError):
    """Another program uses the TCP port, or this user cannot use it."""

    code = "server.port_in_use"


class DatabaseUnusable(ServerError):
    """The server's database cannot be opened or migrated."""

    code = "server.database"


class SecretMissing(ServerError):
    """Server mode has no secret to sign sessions and links with."""

    code = "server.secret_missing"


class WeakSecret(ServerError):
    """The secret of server mode is short, repetitive, or one from an example."""

    code = "server.weak_secret"


class InvalidServerOption(ServerError):
    """Options of `shardlab serve` do not fit together."""

    code = "server.invalid_option"


class WorkerMismatch(ServerError):
    """A worker has another release than the server that it would work for."""

    code = "server.worker_mismatch"


class AccountRefused(ServerError):
    """An account cannot be created or changed as `shardlab people` was told to."""

    code = "server.account"


class BackupFailed(ServerError):
    """A backup cannot be written, or cannot be restored to this folder."""

    code = "server.backup"


class InvalidBackup(ServerError):
    """A folder is not a complete, intact backup that this release can restore."""

    code = "server.invalid_backup"


# Course: catalogue, progress store and practice (`shardlab.course`)


class CatalogueError(LabError, ValueError):
    """A problem catalogue is invalid."""

    code = "catalogue"


class CatalogueNotFound(CatalogueError):
    """The folder is not a catalogue: it has no `tracks.toml`."""

    code = "catalogue.not_found"


class InvalidTracks(CatalogueError):
    """`tracks.toml` is invalid, or does not match the folders next to it."""

    code = "catalogue.invalid_tracks"


class InvalidProblem(CatalogueError):
    """`problem.toml` is invalid, or a file of the problem is missing."""

    code = "catalogue.invalid_problem"


class InvalidReference(CatalogueError):
    """`reference.py` cannot be loaded, or lacks a function."""

    code = "catalogue.invalid_reference"


class UnknownProblem(CatalogueError):
    """The catalogue has no problem or track of this name."""

    code = "catalogue.unknown_problem"


class ProblemExists(CatalogueError):
    """The folder of a new problem already exists."""

    code = "catalogue.exists"


class InvalidProblemName(CatalogueError):
    """The name is not valid for a problem or track."""

    code = "catalogue.invalid_name"


class StoreError(LabError):
    """The progress store cannot be read or written."""

    code = "store"


class StoreUnwritable(StoreError):
    """The data folder or the store is not writable, or the disk fails."""

    code = "store.unwritable"


class StoreFull(StoreError):
    """The disk is full."""

    code = "store.full"


class StoreBusy(StoreError):
    """Another process holds a lock on the store."""

    code = "store.busy"


class StoreCorrupt(StoreError):
    """The store is not a valid SQLite database; it is moved aside, never deleted."""

    code = "store.corrupt"


class StoreNewerVersion(StoreError):
    """The store was written by a newer shardlab."""

    code = "store.newer_version"


class PracticeError(LabError):
    """A practice command cannot be carried out."""

    code = "practice"


class SolutionFileMissing(PracticeError):
    """The solution file to judge does not exist, or is not a file."""

    code = "practice.no_file"


class SolutionFileExists(PracticeError):
    """A starter file would overwrite the user's own file."""

    code = "practice.file_exists"


class FolderUnwritable(PracticeError):
    """The folder for solutions, or for an export, is not writable."""

    code = "practice.folder_unwritable"


class UnknownSubmission(PracticeError):
    """The store has no submission, or no case, of this number."""

    code = "practice.unknown_submission"


class CaseNotShown(PracticeError):
    """The inputs of a case are hidden, or there is no program in it to step through."""

    code = "practice.case_not_shown"


class NoTerminal(PracticeError):
    """`shardlab learn` needs an interactive terminal."""

    code = "practice.no_terminal"
