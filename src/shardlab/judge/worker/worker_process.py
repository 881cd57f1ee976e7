"""The request loop of a worker, and its compiler settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

import jax

from shardlab.judge.protocol.requests import WorkerRequest, parse_request
from shardlab.judge.protocol.responses import WorkerResponse
from shardlab.judge.worker.stack_dumps import dump_stacks
from shardlab.sandbox.frame import MAX_BODY, read_frame, write_frame


def serve_requests(
    handle_request: Callable[[WorkerRequest[Any]], WorkerResponse],
    requests_fd: int,
    responses_fd: int,
    max_body: int = MAX_BODY,
) -> None:
    """Respond to requests until the client closes the pipe."""
    while (frame := read_frame(requests_fd, max_body)) is not None:
        received = parse_request(frame)
        with dump_stacks(received.stack_dumps):
            response = handle_request(received.request)
        sys.stdout.flush()
        write_frame(responses_fd, response.to_frame())


# ------------------------------------------------------------------------------ compiler settings

# Programs run once or a few times, so the time that counts is the compiler's.
_COMPILER_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # Otherwise each kernel runs an MLIR pipeline of its own: 2 to 4 times the work (JAX 0.10.2;
    # from 0.11 on the option does not exist, and there is no other way).
    "xla_cpu_use_fusion_emitters": False,
    # One LLVM module instead of one per core: the programs are small.
    "xla_cpu_parallel_codegen_split_count": 1,
    # The combiner merges several all-reduces of the program into one; the judge counts them.
    "xla_disable_hlo_passes": "cpu-all-reduce-combiner",
}
# An unknown option raises, an unknown flag aborts the process.
_FLAGS = {
    name: value for name, value in _COMPILER_OPTIONS.items() if name != "xla_disable_hlo_passes"
}
if jax.__version_info__ >= (0, 11):
    del _FLAGS["xla_cpu_use_fusion_emitters"]
_UNKNOWN_OPTION = re.compile(r"No such compile option: '(\w+)'")


def compile_fast(lowered: Any) -> Any:
    """Return a compiled program; options that this version of XLA lacks are dropped."""
    while True:
        try:
            return lowered.compile(compiler_options=_COMPILER_OPTIONS)
        except Exception as error:
            match = _UNKNOWN_OPTION.search(str(error))
            if match is None or _COMPILER_OPTIONS.pop(match[1], None) is None:
                raise


def set_fast_lowering() -> None:
    """Leave source locations out of the programs that this process lowers: they are not used."""
    jax.config.update("jax_include_full_tracebacks_in_locations", False)
    jax.config.update("jax_traceback_in_locations_limit", 0)


def set_fast_compilation() -> None:
    """Apply the compiler settings to all programs of this process, before the first is compiled."""
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in _FLAGS.items())
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
