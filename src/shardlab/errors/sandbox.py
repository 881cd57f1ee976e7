"""Machines on which another person's code cannot be run as asked."""

from __future__ import annotations

from shardlab.errors.lab import LabError


class SandboxError(LabError, RuntimeError):
    """No place to run another person's code."""

    code = "sandbox"


class NotConfined(SandboxError):
    """A level of confinement that was required, and that this machine does not hold."""

    code = "sandbox.not_confined"


class NoForkServer(SandboxError):
    """The process that loads JAX for the judge's processes did not start."""

    code = "sandbox.no_fork_server"
