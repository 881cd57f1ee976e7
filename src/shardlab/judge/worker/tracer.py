"""Loads an answer, and makes of it what the judge asks for: programs, or plain values.

Everything here shares an interpreter with another person's code: what it reports can make a verdict
worse and not better, but for the facts that docs/judge.md names. Whether an answer is right is read
from the exported program, by the runner.

load      source -> the names that it defines
export    shapes and a mesh -> hazards, and the program as bytes
simulate  values and a large mesh -> what every virtual device holds
call      values -> the value that the answer returns
script    source of our own -> what it prints
doctest   a page's examples -> those that give something else
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from shardlab.judge.protocol.values import ArrayLeaf, array_bytes, array_from, pack, unpack
from shardlab.judge.worker import page_examples as examples
from shardlab.judge.worker.crash_location import telling_where
from shardlab.judge.worker.eager_allocations import eager_bytes
from shardlab.judge.worker.errors import AnswerError, told
from shardlab.judge.worker.fast_compile import compile_all_quickly, lower_quickly
from shardlab.judge.worker.host_mesh import host_mesh, keeping_devices, one_device
from shardlab.judge.worker.simulation import simulate
from shardlab.judge.worker.submission import Submission, arguments
from shardlab.judge.worker.tracing import Stopped, trace
from shardlab.sandbox.frame import Frame, InvalidFrame


class Author:
    """Answers requests about one submission."""

    def __init__(self) -> None:
        self._submission = Submission()

    def answer(self, request: Frame) -> Frame:
        """Return what a request asks for, or why it cannot be given."""
        do: dict[str, Callable[[Frame], Frame]] = {
            "load": self._load,
            "export": self._export,
            "simulate": self._simulate,
            "call": self._call,
            "script": self._script,
            "doctest": self._doctest,
        }
        try:
            return do[request.header["do"]](request)
        except Stopped as stop:
            return Frame(stop.header)
        except (Exception, SystemExit) as error:
            return Frame({"error": told(error)})

    def _load(self, request: Frame) -> Frame:
        """Execute the submission's source."""
        with keeping_devices():
            return Frame({"defines": self._submission.load(request.buffers[0])})

    def _export(self, request: Frame) -> Frame:
        """Trace the answer on a mesh, look for hazards, and return it as a program.

        On one device JAX leaves no sign of a shard_map in the program; there the count of the
        trace is all there is, and it is the answer's own claim.
        """
        asked = request.header
        traced = trace(self._submission, asked, host_mesh(asked["mesh"]) if asked["mesh"] else None)
        header = {
            "findings": traced.findings,
            "n_shard_maps": traced.n_shard_maps,
            "n_unchecked": traced.n_unchecked,
            "eager_bytes": eager_bytes(traced.jaxpr),
        }
        return Frame(header, (traced.export(),))

    def _simulate(self, request: Frame) -> Frame:
        """Call the answer on a mesh of virtual devices."""
        return simulate(self._submission, request.header, _inputs(request))

    def _call(self, request: Frame) -> Frame:
        """Call the answer with plain values."""
        asked = request.header
        function = self._submission.function(asked)
        inputs = _inputs(request)
        given = arguments(asked, None, lambda leaf: jnp.asarray(inputs[leaf.number]))
        with one_device():
            result = function(*given)
        if result is None:
            raise AnswerError(
                "no_result",
                f"{asked['function']} returned None.",
                "end the function with a return statement.",
            )
        return _packed(result)

    def _script(self, request: Frame) -> Frame:
        """Run a script as `python` would, and return what it prints."""
        return Frame(examples.script(request.buffers[0].decode("utf-8")))

    def _doctest(self, request: Frame) -> Frame:
        """Try the examples of a page with the names of the answer that was loaded."""
        text = request.buffers[0].decode("utf-8")
        return Frame(examples.doctests(text, self._submission.names))


def _inputs(request: Frame) -> list[Any]:
    """Return the arrays of a request, by number."""
    found: dict[int, Any] = {}

    def take(leaf: ArrayLeaf) -> None:
        found[leaf.number] = array_from(leaf, request.buffers[leaf.number])

    unpack(request.header["arguments"], take)
    return [found[number] for number in sorted(found)]


def _packed(value: Any) -> Frame:
    try:
        data, arrays = pack(value)
    except InvalidFrame as error:
        raise AnswerError(
            "not_a_value",
            f"The answer returned a {type(value).__name__}: {error}.",
            "return numbers, text, slices or arrays, or dicts, lists and tuples of them.",
        ) from None
    return Frame({"value": data}, tuple(map(array_bytes, arrays)))


def main(requests: int, answers: int) -> None:
    """Answer requests until there are no more."""
    from shardlab.sandbox.frame import read_frame, write_frame

    compile_all_quickly()
    lower_quickly()
    author = Author()
    while (request := read_frame(requests)) is not None:
        with telling_where(request.header):
            answer = author.answer(request)
        sys.stdout.flush()
        write_frame(answers, answer)
