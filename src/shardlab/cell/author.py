"""Loads an answer, and makes of it what the judge asks for: programs, or plain values.

Everything here shares an interpreter with another person's code: what it reports can only make a
verdict worse. Whether an answer is right is read from the exported program, by the runner.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab.cell.meshes import host_mesh, partition_spec
from shardlab.cell.placing import placing_where_traced
from shardlab.checks.program import check_program
from shardlab.engine.observe import observe_staged
from shardlab.engine.refusals import refused
from shardlab.engine.results import arrays_only
from shardlab.engine.stage import Staged
from shardlab.frames.frame import Frame
from shardlab.frames.values import ArrayLeaf, array_bytes, array_from, pack, unpack
from shardlab.layouts.spec import parse_spec
from shardlab.records.observation import Observation

ANSWER = "answer.py"
_ANY_SIZE = 1 << 62  # a small array left whole is no finding in an exercise


class Author:
    """Answers requests about one submission."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def answer(self, request: Frame) -> Frame:
        """Return what a request asks for, or why it cannot be given."""
        do: Callable[[Frame], Frame] = {
            "load": self._load,
            "export": self._export,
            "simulate": self._simulate,
            "call": self._call,
        }[request.header["do"]]
        try:
            return do(request)
        except Exception as error:
            return Frame({"error": _told(error)})

    def _load(self, request: Frame) -> Frame:
        """Execute the submission's source."""
        source = request.buffers[0].decode("utf-8")
        linecache.cache[ANSWER] = (len(source), None, source.splitlines(True), ANSWER)
        self._names = {"__name__": "answer", "__file__": ANSWER}
        exec(compile(source, ANSWER, "exec"), self._names)
        return Frame({"defines": sorted(n for n, v in self._names.items() if callable(v))})

    def _export(self, request: Frame) -> Frame:
        """Trace the answer on a mesh, look for hazards, and return it as a program."""
        asked = request.header
        mesh = host_mesh(asked["mesh"]) if asked["mesh"] else None
        program, shapes = self._program(asked, mesh)
        try:
            traced = jax.jit(program).trace(*shapes)
        except Exception as error:
            return self._refused(error, program)
        staged = Staged(asked["function"], traced, None, tuple(shapes), lambda: None)
        findings = _findings(observe_staged(staged, compiled="never"))
        if any(found["severity"] == "error" for found in findings):
            return Frame({"findings": findings})
        exported = jax.export.export(jax.jit(program))(*shapes)
        return Frame({"findings": findings}, (bytes(exported.serialize()),))

    def _refused(self, error: Exception, program: Any) -> Frame:
        """Return what JAX refuses in its own words and ours; anything else as it was raised."""
        clue = refused(error, program)
        findings = _findings(Observation("", (), clues=(clue,))) if clue else []
        return Frame({"error": _told(error), "findings": findings})

    def _program(
        self, asked: Mapping[str, Any], mesh: Mesh | None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return the answer as a function of arrays alone, and their shapes and shardings."""
        leaves: list[tuple[ArrayLeaf, str]] = []

        def note(leaf: ArrayLeaf) -> ArrayLeaf:
            leaves.append((leaf, asked["specs"][leaf.number]))
            return leaf

        unpack(asked["arguments"], note)
        function = self._function(asked)

        def program(*arrays: Any) -> Any:
            with placing_where_traced():
                given = self._arguments(asked, mesh, lambda leaf: arrays[leaf.number])
                return plain(arrays_only(function(*given)))

        program.__name__ = program.__qualname__ = asked["function"]
        return program, [_shape(leaf, spec, mesh) for leaf, spec in leaves]

    def _function(self, asked: Mapping[str, Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = self._names[asked["function"]]
        return function

    def _arguments(
        self, asked: Mapping[str, Any], mesh: Any, leaf: Callable[[ArrayLeaf], Any]
    ) -> list[Any]:
        given = unpack(
            asked["arguments"],
            leaf,
            spec=partition_spec,
            key=lambda key: jax.random.key(key.seed),
        )
        return [mesh if name == "mesh" else given[name] for name in asked["order"]]

    def _simulate(self, request: Frame) -> Frame:
        """Call the answer on a mesh of virtual devices."""
        from shardlab.engine.simulated import simulated
        from shardlab.engine.virtual import virtual_mesh

        asked = request.header
        with simulated(np.prod(list(asked["mesh"]["axes"].values())).item()):
            mesh = virtual_mesh(dict(asked["mesh"]["axes"]))
            given = self._arguments(asked, mesh, lambda leaf: jnp.asarray(_numbers(request, leaf)))
            result = jax.tree.map(np.asarray, plain(arrays_only(self._function(asked)(*given))))
        return _packed(result)

    def _call(self, request: Frame) -> Frame:
        """Call the answer with plain values."""
        asked = request.header
        given = self._arguments(asked, None, lambda leaf: jnp.asarray(_numbers(request, leaf)))
        return _packed(self._function(asked)(*given))


def plain(result: Any) -> Any:
    """Return a result in dicts, lists and tuples alone: an exported program knows no others.

    >>> plain({"w": (1, [2])})
    {'w': (1, [2])}
    """
    if isinstance(result, dict):
        return {key: plain(value) for key, value in result.items()}
    if type(result) in (list, tuple):
        return type(result)(plain(value) for value in result)
    leaves = jax.tree_util.tree_leaves_with_path(result)
    if len(leaves) == 1 and not leaves[0][0]:
        return result
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _numbers(request: Frame, leaf: ArrayLeaf) -> Any:
    return array_from(leaf, request.buffers[leaf.number])


def _packed(value: Any) -> Frame:
    data, arrays = pack(value)
    return Frame({"value": data}, tuple(map(array_bytes, arrays)))


def _shape(leaf: ArrayLeaf, spec: str, mesh: Mesh | None) -> Any:
    dtype = jnp.dtype(leaf.dtype)
    if mesh is None:
        return jax.ShapeDtypeStruct(leaf.shape, dtype)
    sharding = NamedSharding(mesh, PartitionSpec(*parse_spec(spec).entries))
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


def _findings(seen: Observation) -> list[dict[str, Any]]:
    return [found.to_json() for found in check_program(seen, replicated_bytes=_ANY_SIZE)]


def _told(error: BaseException) -> dict[str, Any]:
    """Return an exception as text, with the last line of the answer that it came through."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == ANSWER
    ]
    if isinstance(error, SyntaxError) and error.filename == ANSWER:
        lines = [error.lineno]
    return {
        "kind": type(error).__name__,
        "words": str(error)[:4000],
        "line": lines[-1] if lines else None,
        "parents": [kind.__name__ for kind in type(error).__mro__],
    }


def main(requests: int, answers: int) -> None:
    """Answer requests until there are no more."""
    from shardlab.frames.frame import read_frame, write_frame

    author = Author()
    while (request := read_frame(requests)) is not None:
        write_frame(answers, author.answer(request))
        sys.stdout.flush()
