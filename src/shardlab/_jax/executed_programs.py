"""Sees every compiled program that this process executes on its real devices.

JAX runs a jit again from C++ without entering Python. While programs are observed that fast path is
off for programs of several devices, so that each execution passes through `ExecuteReplicated`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
from jax._src import (
    distributed,  # the client of the coordination service
    pjit,  # _resolve_and_lower and _get_fastpath_data: every jit that is called or lowered
)
from jax._src.clusters import ClusterEnv  # which cluster manager started this process
from jax._src.interpreters import pxla  # MeshComputation, ExecuteReplicated

from shardlab._jax.device_hooks import AttributePatches

_LOWERED_FROM = "_shardlab_lowered_from"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LoweredFrom:
    """What JAX lowered: the types of the arguments and the parameters of the jit."""

    args: Any
    params: dict[str, Any]

    @property
    def jaxpr(self) -> Any:
        return self.params["jaxpr"]


@dataclasses.dataclass(kw_only=True, eq=False)
class Executable:
    """One compiled program of this process."""

    name: str
    call: Any  # JAX's ExecuteReplicated, kept so that its id stays unique
    loaded: Any  # XLA's executable
    device_ids: tuple[int, ...]  # by partition
    compile_seconds: float
    lowered_from: LoweredFrom | None

    @property
    def is_on_several_processes(self) -> bool:
        return len(self.device_ids) > len(self.loaded.local_devices())

    def hlo_text(self) -> str:
        """Return the text of the compiled program."""
        return "\n\n".join(module.to_string() for module in self.loaded.hlo_modules())


class ExecutionObserver(Protocol):
    """Is called in the thread that compiles or executes."""

    def compiling(self, name: str) -> contextlib.AbstractContextManager[None]: ...

    def compiled(self, executable: Executable) -> None: ...

    def execute(self, executable: Executable, run: Callable[[], Any]) -> Any:
        """Return what `run` returns."""


@contextlib.contextmanager
def observe_executions(observer: ExecutionObserver) -> Iterator[None]:
    """Within this block the observer sees what this process compiles and executes."""
    patches, executables = AttributePatches(), dict[int, Executable]()

    def observe_lowering(original: Any) -> Any:
        @functools.wraps(original)
        def lower(args: Any, **params: Any) -> Any:
            computation = original(args, **params)
            # JAX caches `computation` weakly by the jaxpr, which this keeps alive: acceptable in a
            # process that runs one program and ends.
            computation.__dict__.setdefault(_LOWERED_FROM, LoweredFrom(args=args, params=params))
            return computation

        # jax.clear_caches calls it; a function has no such attribute for mypy.
        lower.cache_clear = getattr(original, "cache_clear", None)  # type: ignore[attr-defined]
        return lower

    def observe_compilation(original: Any) -> Any:
        @functools.wraps(original)
        def compile_program(computation: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            with observer.compiling(str(computation._name)):
                compiled = original(computation, *args, **kwargs)
            call = compiled.unsafe_call
            if id(call) not in executables and isinstance(call, pxla.ExecuteReplicated):
                executable = _make_executable(computation, call, time.perf_counter() - start)
                executables[id(call)] = executable
                observer.compiled(executable)
            return compiled

        return compile_program

    def observe_execution(original: Any) -> Any:
        @functools.wraps(original)
        def execute(call: Any, *args: Any) -> Any:
            executable = executables.get(id(call))
            if executable is None:
                return original(call, *args)
            return observer.execute(executable, lambda: original(call, *args))

        return execute

    def without_fast_path(original: Any) -> Any:
        @functools.wraps(original)
        def find_fast_path(executable: Any, *args: Any) -> Any:
            known = executables.get(id(getattr(executable, "unsafe_call", None)))
            if known is not None and len(known.device_ids) > 1:
                return None
            return original(executable, *args)

        return find_fast_path

    try:
        patches.replace(pjit, "_resolve_and_lower", observe_lowering)
        patches.replace(pjit, "_get_fastpath_data", without_fast_path)
        patches.replace(pxla.MeshComputation, "compile", observe_compilation)
        patches.replace(pxla.ExecuteReplicated, "__call__", observe_execution)
        # Programs that are compiled ahead of time have a fast path of their own.
        patches.replace(pxla.MeshExecutable, "create_cpp_call", lambda _: lambda *args: None)
        yield
    finally:
        patches.restore_originals()


def _make_executable(computation: Any, call: Any, seconds: float) -> Executable:
    devices = computation._device_list or call.xla_executable.local_devices()
    return Executable(
        name=str(computation._name),
        call=call,
        loaded=call.xla_executable,
        device_ids=tuple(device.id for device in devices),
        compile_seconds=seconds,
        lowered_from=computation.__dict__.get(_LOWERED_FROM),
    )


# ------------------------------------------------------------------------------ jax.distributed


@contextlib.contextmanager
def distributed_calls_ignored() -> Iterator[None]:
    """Within this block a program's own `jax.distributed.initialize` and `shutdown` do nothing.

    The processes of a launch are connected before the program starts, and must stay connected until
    its records have been collected.
    """
    patches = AttributePatches()

    def ignore(original: Any) -> Any:
        @functools.wraps(original)
        def return_none(*args: Any, **kwargs: Any) -> None:
            return None

        return return_none

    try:
        for name in ("initialize", "shutdown"):
            patches.replace(jax.distributed, name, ignore)
            patches.replace(distributed, name, ignore)
        yield
    finally:
        patches.restore_originals()


def coordination_client() -> Any:
    """Return the client of the key-value store, or None before jax.distributed is initialized."""
    return distributed.global_state.client


def process_position() -> tuple[int, int]:
    """Return the number of this process and how many there are, without starting a backend."""
    return distributed.global_state.process_id, distributed.global_state.num_processes


def detected_cluster() -> str | None:
    """Return JAX's name of the cluster manager that started this process, or None."""
    for environment in ClusterEnv._cluster_types:
        if not environment.opt_in_only_method and environment.is_env_present():
            return str(environment.name or environment.__name__)
    return None
