"""Programs and settings of a person that cannot be found, loaded, traced or finished."""

from __future__ import annotations

from typing import Any

from shardlab.errors.lab import LabError


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
