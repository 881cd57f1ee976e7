"""The reference of an uploaded problem: functions that talk to a sandboxed process.

`open_references` returns the references of a problem's parts, wherever they are executed: those of
a trusted catalogue in this process, those of an upload in a process of role `reference`. Whatever
that process does, the judge sees a valid value or `ReferenceFailed`, which is a failure of the
problem and never of a submission.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from shardlab._text.printable import printable_text
from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.problem_schema import BUDGET
from shardlab.catalogue.reference import Draw, Reference, load_reference
from shardlab.errors import LabError, ReferenceFailed
from shardlab.judge.failures import split_stack_dump
from shardlab.judge.protocol.reference_messages import (
    CallReferenceRequest,
    DrawState,
    LoadReferenceRequest,
    ReferenceFunction,
)
from shardlab.judge.protocol.reports import ExceptionReport
from shardlab.judge.protocol.requests import Response, StackDumps, WorkerRequest
from shardlab.judge.protocol.values import Key, array_bytes, pack_value
from shardlab.judge.verdict import CAUSES
from shardlab.sandbox.fields import MAX_INTEGER
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sandbox.process import (
    ExitReason,
    ProcessEnded,
    ProcessLimits,
    SandboxedProcess,
    SandboxPool,
)
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

REFERENCE_ROLE = "reference"
# For all cases of a judgement together. A reference computes small arrays in NumPy.
LIMITS = ProcessLimits(
    wall_seconds=60.0, cpu_seconds=20.0, idle_seconds=10.0, memory_bytes=512 << 20
)
_STACK_DUMP_SHARE = 0.8  # of the time; the rest is for the dump to arrive
_STACK_LINE = re.compile(r'File "reference\.py", line (\d+)')
_MAX_SENTENCES, _MAX_SENTENCE, _MAX_TEXT = 20, 500, 10_000
_MAX_NAME = 80
_FIX = "tell the teacher whose catalogue it is; the submission is not to blame, and is not counted."


@contextlib.contextmanager
def open_references(
    pool: SandboxPool | None, problem: Problem
) -> Iterator[Mapping[int, Reference]]:
    """Return the reference of each part, by its number. Raises `InvalidReference`.

    Those of an uploaded problem raise `ReferenceFailed`, here and whenever they are called.
    """
    if problem.is_trusted:
        yield {part.number: load_reference(problem, part) for part in problem.parts}
        return
    assert pool is not None, "an uploaded reference needs a sandbox"
    process = _ReferenceProcess(pool, problem)
    try:
        yield process.load()
    finally:
        process.close()


class _ReferenceProcess:
    """One sandboxed process with one reference. Used by several threads, one request at a time."""

    def __init__(self, pool: SandboxPool, problem: Problem) -> None:
        self._pool, self._problem = pool, problem
        self._lock = threading.Lock()
        self._process: SandboxedProcess | None = None
        self._failure: ReferenceFailed | None = None

    def load(self) -> Mapping[int, Reference]:
        """Start the process and return the reference of each part."""
        source = self._problem.read_text("reference.py").encode()
        calls = tuple(part.call for part in self._problem.parts)
        response = self.send(LoadReferenceRequest(source=source, calls=calls))
        if response.error is not None:
            self.fail(_exception_text(response.error), response.error.line)
        return {
            part.number: _create_reference(self, part, names)
            for part, names in zip(self._problem.parts, response.functions, strict=True)
        }

    def send(self, request: WorkerRequest[Response]) -> Response:
        """Return the response. Raises `ReferenceFailed`, from the first failure on always."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                return self._exchange(request)
            except InvalidFrame as error:
                self._fail(f"It returned what cannot be used ({error}).")
            except ProcessEnded as ended:
                self._fail(_end_text(ended.reason), _stack_line(self._process))
            except (OSError, LabError) as error:
                self._fail(f"Its process could not be started ({error}).")

    def _exchange(self, request: WorkerRequest[Response]) -> Response:
        if self._process is None:
            self._process = self._pool.start_process(REFERENCE_ROLE, LIMITS)
        dumps = StackDumps(
            wall_seconds=LIMITS.wall_seconds * _STACK_DUMP_SHARE,
            cpu_seconds=LIMITS.cpu_seconds * _STACK_DUMP_SHARE,
        )
        return request.parse_response(self._process.request(request.to_frame(dumps)))

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        """End the process: after one wrong response there is no reason to believe another."""
        with self._lock:
            self._fail(what, line)

    def _fail(self, what: str, line: int | None = None) -> NoReturn:
        self._failure = self.failure(what, line)
        self._close()
        raise self._failure

    def failure(self, what: str, line: int | None = None) -> ReferenceFailed:
        """Return the error for what the reference has done."""
        where = f"'{self._problem.slug}', reference.py"
        return ReferenceFailed(
            f"The problem's reference.py failed. {printable_text(what)}",
            where=f"{where}, line {line}" if line else where,
            fix=_FIX,
        )

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def _create_reference(process: _ReferenceProcess, part: Part, names: tuple[str, ...]) -> Reference:
    """Return functions that call those of the process, as far as it has them."""

    def call(function: ReferenceFunction, mesh: Mesh, arguments: Mapping[str, Any]) -> Any:
        packed, arrays = pack_value(dict(arguments))
        request = CallReferenceRequest(
            part=part.number,
            function=function,
            mesh=mesh,
            packed_arguments=packed,
            arrays=tuple(map(array_bytes, arrays)),
        )
        return receive(request)

    def receive(request: CallReferenceRequest) -> Any:
        response = process.send(request)
        name = request.function
        if response.error is not None:
            _raise_expected(name, response.error)
            # The process goes on: a reference need not accept every input that the judge tries.
            text = f"{name} raised {_exception_text(response.error)}"
            raise process.failure(text, response.error.line)
        try:
            value = response.value()
            _CHECKS[name](value)
        except InvalidFrame as error:
            process.fail(f"{name} returned what cannot be used: {error}.")
        return value

    def draw_inputs(draw: Draw) -> dict[str, Any]:
        state = draw.rng.bit_generator.state
        request = CallReferenceRequest(
            part=part.number,
            function="inputs",
            mesh=draw.mesh,
            draw=DrawState(
                state=str(state["state"]["state"]),
                increment=str(state["state"]["inc"]),
                scale=draw.scale,
                number=draw.number,
            ),
            packed_arguments={},
        )
        inputs: dict[str, Any] = receive(request)
        return inputs

    def remote(function: ReferenceFunction, default: Any = None) -> Callable[..., Any]:
        if function not in names:
            return lambda mesh, **inputs: default
        return lambda mesh, **inputs: call(function, mesh, {"inputs": inputs})

    def properties(mesh: Mesh, inputs: Mapping[str, Any], result: Any) -> Any:
        return call("properties", mesh, {"inputs": dict(inputs), "result": result})

    return Reference(
        inputs=draw_inputs,
        expected=remote("expected"),
        input_specs=remote("input_specs", {}),
        output_specs=remote("output_specs"),
        budget=remote("budget", {}),
        properties=properties if "properties" in names else None,
        accepts=remote("accepts") if "accepts" in names else None,
    )


def _raise_expected(function: str, error: ExceptionReport) -> None:
    """Raise the ValueError of `expected`: it is a result, for submissions must raise it too."""
    if function != "expected" or "ValueError" not in error.base_types:
        return
    name = error.exception_type
    is_name = name.isidentifier() and len(name) <= _MAX_NAME
    # Verdicts compare exceptions by the name of their class.
    exception_class = type(name, (ValueError,), {}) if is_name else ValueError
    raise exception_class(printable_text(error.message[:_MAX_SENTENCE]))


# ----------------------------------------------------------------------------------- valid values


def _check_inputs(value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise InvalidFrame("not a dict of arguments")
    _check_plain(value)


def _check_plain(value: Any) -> None:
    """Raise `InvalidFrame` for a value that grading would not expect, such as a huge integer."""
    match value:
        case dict():
            for key, item in value.items():
                _check_plain(key)
                _check_plain(item)
        case list() | tuple():
            for item in value:
                _check_plain(item)
        case bool() | None | float() | np.ndarray() | Spec() | slice():
            return
        case Key(seed):
            _check_plain(seed)
        case int() if -(1 << 63) <= value < 1 << 63:
            return
        case str() if len(value) <= _MAX_TEXT:
            return
        case _:
            raise InvalidFrame(f"a {type(value).__name__} that is too large or of no use")


def _check_input_specs(value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise InvalidFrame("not a dict of Specs")
    for spec in value.values():
        _check_spec_tree(spec, has_none=False)


def _check_output_specs(value: Any) -> None:
    _check_spec_tree(value, has_none=True)


def _check_spec_tree(value: Any, *, has_none: bool) -> None:
    match value:
        case Spec():
            return
        case None if has_none:
            return
        case dict():
            children = list(value.values())
        case list() | tuple():
            children = list(value)
        case _:
            raise InvalidFrame("not a Spec, or a tree of them")
    for child in children:
        _check_spec_tree(child, has_none=has_none)


def _check_budget(value: Any) -> None:
    if not isinstance(value, dict) or not {*value} <= {*BUDGET}:
        raise InvalidFrame("not a dict of the limits of a budget")
    # `type(n) is int`: True is an int as well.
    if not all(type(n) is int and 0 <= n <= MAX_INTEGER for n in value.values()):
        raise InvalidFrame("a limit of the budget is not a count")


def _check_properties(value: Any) -> None:
    if not isinstance(value, list) or len(value) > _MAX_SENTENCES:
        raise InvalidFrame("not a list of sentences, or too many")
    for item in value:
        cause, sentence = ("", item) if isinstance(item, str) else _read_pair(item)
        if not isinstance(sentence, str) or len(sentence) > _MAX_SENTENCE:
            raise InvalidFrame("a sentence that is no text, or too long")
        if cause and (not isinstance(cause, str) or cause not in CAUSES):
            raise InvalidFrame("an unknown cause")


def _read_pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, (list, tuple)) or len(item) != 2:
        raise InvalidFrame("not a sentence, or a pair of a cause and a sentence")
    return item[0], item[1]


def _check_accepts(value: Any) -> None:
    if type(value) is not bool:
        raise InvalidFrame("not True or False")


_CHECKS: Mapping[ReferenceFunction, Callable[[Any], None]] = {
    "inputs": _check_inputs,
    "expected": _check_plain,
    "input_specs": _check_input_specs,
    "output_specs": _check_output_specs,
    "budget": _check_budget,
    "properties": _check_properties,
    "accepts": _check_accepts,
}


# ------------------------------------------------------------------------------- failures in words


def _exception_text(error: ExceptionReport) -> str:
    if error.what:
        return error.what[:_MAX_SENTENCE]
    return f"{error.exception_type[:_MAX_NAME]}: {error.message[:_MAX_SENTENCE]}".rstrip(": ") + "."


def _end_text(reason: ExitReason) -> str:
    match reason.kind:
        case "time":
            return f"It reached its time limit ({LIMITS.cpu_seconds:g} s of processor time)."
        case "memory":
            return f"It reached its memory limit of {LIMITS.memory_bytes >> 20} MiB."
        case "output":
            return "It printed or returned more than is allowed."
        case "protocol":
            return "Its process returned something else than a result."
        case "internal":
            return f"Its process was ended from outside ({reason.detail})."
    return "Its process ended by itself."


def _stack_line(process: SandboxedProcess | None) -> int | None:
    if process is None:
        return None
    _, stack_dump = split_stack_dump(process.output)
    lines = _STACK_LINE.findall(stack_dump)
    return int(lines[0]) if lines else None
