"""What only a compiler knows about a program: its text, cost and memory on its devices.

Simulated mode compiles nothing for the virtual devices. If a program asks, XLA's compiler for CPU
compiles it for that many devices, in a process of its own and without running it; once, and the
result is stored with the lowered program.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

from shardlab._jax import compile_worker
from shardlab._jax.compile_process import COMPILE_LIMIT_S, run_compiler
from shardlab._jax.lowered import computation_input
from shardlab.errors import NotMeasured

_ANALYSIS = "_shardlab_analysis"


class CompiledForCpu(UserWarning):
    """Figures of a compiled program come from XLA's compiler for CPU."""


class CompiledOnRequest:
    """Takes the place of XLA's executable in a simulated program."""

    def __init__(self, computation: Any, n_devices: int) -> None:
        self._computation, self.n_devices = computation, n_devices

    def get_hlo_text(self) -> str:
        """Return the text of the compiled program; a comment at its end says who compiled it."""
        return (
            f"{self._analysis()['text']}\n// shardlab: compiled by XLA for CPU, for "
            f"{self.n_devices} devices; a compiler for TPU or GPU may choose other collectives "
            "and fusions.\n"
        )

    def cost_analysis(self) -> dict[str, float]:
        """Return XLA's estimate of the operations and bytes of one device."""
        cost: dict[str, float] = self._analysis()["cost"]
        _warn_about_cpu()
        return dict(cost)

    def get_compiled_memory_stats(self) -> Any:
        """Return the bytes of one device, with the attributes of jaxlib's CompiledMemoryStats."""
        analysis = self._analysis()
        _warn_about_cpu()
        return CompiledMemoryStats(analysis["memory_text"], analysis["memory"])

    def _analysis(self) -> dict[str, Any]:
        # With the lowered program, because each `.compile()` makes a new executable.
        stored: dict[str, Any] | None = self._computation.__dict__.get(_ANALYSIS)
        if stored is None:
            stored = self._computation.__dict__[_ANALYSIS] = _compile_and_analyze(self._computation)
        return stored

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotMeasured(
            f"A simulated program has no executable for its devices, so '{name}' does not exist.",
            where=f"{name} of a program compiled in simulated mode",
            fix="compile it outside simulated mode, on real or forced host devices; as_text(), "
            "cost_analysis() and memory_analysis() work here.",
        )


class CompiledMemoryStats(types.SimpleNamespace):
    """The memory of one device, as XLA's compiler for CPU assigns it."""

    def __init__(self, text: str, sizes: dict[str, int]) -> None:
        super().__init__(**sizes)
        self._text = text

    def __repr__(self) -> str:
        return self._text


@functools.cache  # once per process
def _warn_about_cpu() -> None:
    warnings.warn(
        "cost and memory of a simulated program are what XLA's compiler for CPU reports; they "
        "differ on a TPU or GPU",
        CompiledForCpu,
        stacklevel=6,
    )


def _compile_and_analyze(computation: Any) -> dict[str, Any]:
    name = str(computation._name)
    program = computation_input(computation)
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        path = Path(folder)
        (path / "module").write_bytes(program.module)
        (path / "options").write_bytes(program.options)
        (path / "dump_options").write_text(json.dumps({}))
        (path / "analyze").touch()
        command = [sys.executable, "-P", compile_worker.__file__, folder]
        response = run_compiler(command, path, {}, name, COMPILE_LIMIT_S)
    analysis: dict[str, Any] = response["analysis"]
    return analysis
