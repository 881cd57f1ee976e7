"""What `jax.debug.print` prints in a submission: one line per device, in mesh order.

The program that is judged has no such calls, because it runs in another process. So the function is
simulated here once more, with inputs that may be shown.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardlab.judge.protocol.requests import DebugPrintRequest
from shardlab.judge.protocol.responses import ScriptResponse
from shardlab.judge.worker.jax_overrides import single_device
from shardlab.judge.worker.loaded_submission import LoadedSubmission, build_arguments
from shardlab.judge.worker.tracing import trace_submission
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.devices import virtual_mesh

_MAX_CHARACTERS = 4000
_CUT_TEXT = "\n... more was printed\n"


class BoundedText(io.StringIO):
    """A text that ignores what exceeds a number of characters.

    >>> text = BoundedText(3)
    >>> text.write("abcd"), text.getvalue()
    (4, 'abc\\n... more was printed\\n')
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._remaining = limit

    def write(self, text: str, /) -> int:
        if self._remaining >= 0:
            super().write(text[: self._remaining])
            self._remaining -= len(text)
            if self._remaining < 0:
                super().write(_CUT_TEXT)
        return len(text)


def run_debug_prints(
    submission: LoadedSubmission, request: DebugPrintRequest, inputs: Sequence[Any]
) -> ScriptResponse:
    """Return what a function prints while it runs; nothing is judged here."""
    output = BoundedText(_MAX_CHARACTERS)
    # What it raises is reported by the case itself: here it only ends what is printed.
    with contextlib.redirect_stdout(output), contextlib.suppress(BaseException):
        if request.call.mesh is None:
            function = submission.find_function(request.call)
            arguments = build_arguments(
                request.call, None, lambda leaf: jnp.asarray(inputs[leaf.number])
            )
            with single_device():
                jax.block_until_ready(function(*arguments))
        else:
            _simulate(submission, request, inputs)
        # It is printed from another thread; wait until all of it is in the output.
        jax.effects_barrier()
    return ScriptResponse(printed=output.getvalue())


def _simulate(
    submission: LoadedSubmission, request: DebugPrintRequest, inputs: Sequence[Any]
) -> None:
    assert request.call.mesh is not None
    axes = dict(request.call.mesh.shape)
    with simulated(int(np.prod(list(axes.values())))):
        with contextlib.redirect_stdout(io.StringIO()):
            # What Python's own print shows while tracing is in the output of the case already.
            traced = trace_submission(submission, request.call, virtual_mesh(axes))
        arrays = [
            jax.device_put(np.asarray(array, shape.dtype), shape.sharding)
            for array, shape in zip(inputs, traced.shapes, strict=True)
        ]
        jax.block_until_ready(traced.printing_jit(*arrays))
        jax.effects_barrier()
