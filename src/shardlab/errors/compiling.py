"""Programs that the compiler could not be asked about."""

from __future__ import annotations

from shardlab.errors.lab import LabError


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
