"""What `jax.debug.print` and `jax.debug.callback` print in a submission, by device.

The program that is judged has no such calls, because it runs in another process. So the function is
simulated here once more, in a process of its own and with inputs that may be shown. Format strings
are evaluated here too, inside the sandbox: the judge receives text and never formats anything.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from shardlab._jax import bind_primitive, no_mesh, open_jaxpr
from shardlab._jax.debug_calls import has_debug_calls
from shardlab.judge.protocol.reports import ExceptionReport, FunctionCall
from shardlab.judge.protocol.requests import DebugPrintRequest
from shardlab.judge.protocol.responses import (
    MAX_DEVICE_CHARACTERS,
    MAX_PLACE,
    MAX_PRINTING_DEVICES,
    DebugPrintResponse,
    DeviceText,
)
from shardlab.judge.worker.error_reports import report_exception
from shardlab.judge.worker.loaded_submission import LoadedSubmission
from shardlab.judge.worker.tracing import TracedSubmission, trace_submission
from shardlab.simulator.interpreter.device_context import current_coordinate, without_labels
from shardlab.simulator.shard_map import simulate_shard_map
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.devices import is_virtual, virtual_mesh

_MAX_COUNTED_DEVICES = 4096


class DeviceStream(io.TextIOBase):
    """A text stream that keeps what each device writes, up to a number of characters.

    >>> stream = DeviceStream(max_characters=3)
    >>> stream.write("abcd"), stream.device_texts()
    (4, (DeviceText(place='', text='abc', is_truncated=True),))
    """

    def __init__(
        self,
        max_characters: int = MAX_DEVICE_CHARACTERS,
        max_devices: int = MAX_PRINTING_DEVICES,
    ) -> None:
        super().__init__()
        self._max_characters, self._max_devices = max_characters, max_devices
        self._texts: dict[str, str] = {}
        self._truncated: set[str] = set()
        self._places: set[str] = set()

    def write(self, text: str, /) -> int:
        # The simulator calls back once per device, with its coordinate set; outside of a shard_map
        # there is one call, and no coordinate.
        place = ",".join(f"{name}={index}" for name, index in current_coordinate().items())
        place = place[:MAX_PLACE]
        if len(self._places) < _MAX_COUNTED_DEVICES:
            self._places.add(place)
        if place in self._texts or len(self._texts) < self._max_devices:
            earlier = self._texts.get(place, "")
            self._texts[place] = earlier + text[: self._max_characters - len(earlier)]
            if len(earlier) + len(text) > self._max_characters:
                self._truncated.add(place)
        return len(text)

    @property
    def n_devices(self) -> int:
        """Return how many devices have printed, also those that are left out."""
        return len(self._places)

    def device_texts(self) -> tuple[DeviceText, ...]:
        """Return what each device has printed."""
        return tuple(
            DeviceText(place=place, text=text, is_truncated=place in self._truncated)
            for place, text in self._texts.items()
        )


def run_debug_prints(
    submission: LoadedSubmission, request: DebugPrintRequest, inputs: Sequence[Any]
) -> DebugPrintResponse:
    """Return what a function prints while it runs; nothing is judged here."""
    stream = DeviceStream()
    error: ExceptionReport | None = None
    try:
        with _traced_program(submission, request.call) as traced:
            _run_printing(traced, inputs, stream)
    # Anything: a callback may raise what it likes. It ends what is printed, and no verdict.
    except BaseException as exception:
        error = report_exception(exception)
    return DebugPrintResponse(
        error=error, devices=stream.device_texts(), n_devices=stream.n_devices
    )


@contextlib.contextmanager
def _traced_program(submission: LoadedSubmission, call: FunctionCall) -> Iterator[TracedSubmission]:
    with contextlib.ExitStack() as stack:
        mesh = None
        if call.mesh is not None:
            axes = dict(call.mesh.shape)
            stack.enter_context(simulated(int(np.prod(list(axes.values())))))
            mesh = virtual_mesh(axes)
        with contextlib.redirect_stdout(io.StringIO()):
            # What Python's own print shows while tracing is in the output of the case already.
            traced = trace_submission(submission, call, mesh)
        yield traced


def _run_printing(traced: TracedSubmission, inputs: Sequence[Any], stream: DeviceStream) -> None:
    arrays = [
        jax.device_put(np.asarray(array, shape.dtype), shape.sharding)
        for array, shape in zip(inputs, traced.shapes, strict=True)
    ]
    with contextlib.redirect_stdout(stream), without_labels():
        try:
            jax.block_until_ready(_evaluate_in_order(traced.printing_jaxpr, arrays))
        finally:
            # It is printed from another thread; wait until all of it is in the stream.
            jax.effects_barrier()


def _evaluate_in_order(closed_jaxpr: Any, arrays: Sequence[Any]) -> list[Any]:
    """Evaluate a program equation by equation, so that it prints in the order it is written in.

    Not as one jit: JAX lowers ordered effects for one device only, and the compiler is free to
    reorder all others. Nor by calling the submission once more: what Python prints here comes from
    a debug call alone.
    """
    jaxpr, consts = open_jaxpr(closed_jaxpr)
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arrays), strict=True))

    def read_atom(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        operands = [read_atom(atom) for atom in eqn.invars]
        values.update(zip(eqn.outvars, _evaluate_equation(eqn, operands), strict=True))
    return [read_atom(atom) for atom in jaxpr.outvars]


def _evaluate_equation(eqn: Any, operands: list[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    if name == "shard_map" and is_virtual(eqn.params["mesh"]):
        with no_mesh():
            outputs, _ = simulate_shard_map(eqn.params, operands, [None] * len(operands))
        return outputs
    if name in ("jit", "pjit") and has_debug_calls(eqn.params["jaxpr"]):
        return _evaluate_in_order(eqn.params["jaxpr"], operands)
    return bind_primitive(eqn.primitive, operands, eqn.params)
