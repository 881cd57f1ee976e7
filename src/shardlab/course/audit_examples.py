"""Runs the examples of a page: the worked example, and the calls under Examples.

They run in a sandboxed process, as submissions do: a catalogue may come from somebody else.
"""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from typing import Any

from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.reference import Reference
from shardlab.course.problem_lint import Fault
from shardlab.course.statement_page import Page, parse_page
from shardlab.judge.confined_reference import open_references
from shardlab.judge.protocol.requests import (
    DoctestRequest,
    LoadRequest,
    ScriptRequest,
    WorkerRequest,
)
from shardlab.judge.protocol.responses import DoctestFailure, ScriptResponse
from shardlab.judge.worker_client import send_requests
from shardlab.sandbox.process import ProcessLimits, SandboxPool

# Generous elapsed time: a busy machine is not a fault of the page.
_LIMITS = ProcessLimits(wall_seconds=120, cpu_seconds=60)

# Runs the examples with functions in place of the solution's that record their arguments.
_RECORDER = """
import json as _json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
P = PartitionSpec
_calls = []

def _to_plain(value):
    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, PartitionSpec):
        return ["P", *map(str, value)]
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ["key", int(jax.random.key_data(value)[-1])]
        return np.asarray(value).astype(float).tolist()
    return value if isinstance(value, (bool, int, float, str)) else repr(value)

def _make_recorder(name):
    def call(*args, **kwargs):
        _calls.append([name, [_to_plain(value) for value in (*args, *kwargs.values())]])
        raise StopIteration  # the result does not matter here
    return call

for _name in FUNCTIONS:
    globals()[_name] = _make_recorder(_name)
for _source in SOURCES:
    try:
        exec(_source, globals())
    except Exception:
        pass
print()
print(_json.dumps(_calls))
"""


def check_examples(pool: SandboxPool, problem: Problem) -> Iterator[Fault]:
    """Yield the examples whose output differs from the page, or that reveal a hidden case."""
    page = parse_page(problem.read_text("statement.md"))
    worked_examples, (first_line, calls) = _worked_examples(page), _example_calls(page)
    requests: list[WorkerRequest[Any]] = [
        *(ScriptRequest(source=source) for _, source, _ in worked_examples),
        LoadRequest(source=problem.read_text("solution.py").encode()),
        DoctestRequest(text=calls),
        ScriptRequest(source=_recorder_source(problem, calls)),
    ]
    *outputs, load_result, doctest_result, recorded_calls = send_requests(
        pool, "tracer", _LIMITS, requests
    )
    for (line, _, expected), output in zip(worked_examples, outputs, strict=True):
        yield from _check_output(line, expected, output)
    failures = list(doctest_result.failures)
    if doctest_result.error:  # the process ended, or the solution could not be loaded
        error = load_result.error or doctest_result.error
        failures = [DoctestFailure(line=0, source="", expected="", actual=error.message)]
    for failure in failures:
        details = (
            f">>> {failure.source}",
            f"expected {failure.expected}",
            f"got      {failure.actual}",
        )
        yield Fault(
            rule="examples.doctest",
            message="An example gives something else than the page shows.",
            file="statement.md",
            line=first_line + failure.line,
            details=tuple(line for text in details for line in text.rstrip().splitlines()),
        )
    yield from _check_hidden_cases(pool, problem, _parse_calls(recorded_calls))


def _check_output(line: int, expected: str, output: ScriptResponse) -> Iterator[Fault]:
    printed = output.printed + (output.error.message if output.error else "")
    if printed.rstrip() != expected.rstrip():
        details = ("it prints", *(f"  {text}" for text in printed.splitlines()))
        yield Fault(
            rule="examples.worked",
            message="The worked example prints something else than the page shows.",
            file="statement.md",
            line=line,
            details=details,
        )


def _worked_examples(page: Page) -> list[tuple[int, str, str]]:
    """Return each worked example: its line, its source, and the output on the page."""
    section = page.find_section("Worked example")
    blocks = [block for block in section.blocks if block.language in ("python", "text")]
    pairs = zip(blocks[::2], blocks[1::2], strict=False)
    return [(source.line, source.text, printed.text) for source, printed in pairs]


def _example_calls(page: Page) -> tuple[int, str]:
    block = page.find_section("Examples").first_block("pycon")
    return (block.line, block.text) if block else (0, "")


# ------------------------------------------------------------------------------------ hidden cases


def _recorder_source(problem: Problem, examples: str) -> str:
    """Return a program that prints the arguments of each call in the examples."""
    functions = sorted({part.function for part in problem.parts})
    sources = [example.source for example in doctest.DocTestParser().get_examples(examples)]
    return _RECORDER.replace("FUNCTIONS", repr(functions)).replace("SOURCES", repr(sources))


def _parse_calls(output: ScriptResponse) -> list[Any]:
    lines = output.printed.splitlines()
    calls: list[Any] = json.loads(lines[-1]) if lines and not output.error else []
    return calls


def _check_hidden_cases(pool: SandboxPool, problem: Problem, calls: list[Any]) -> Iterator[Fault]:
    """Yield the examples whose inputs are those of a hidden case."""
    with open_references(pool, problem) as references:
        for part in problem.parts:
            yield from _check_part(part, references[part.number], calls)


def _check_part(part: Part, reference: Reference, calls: list[Any]) -> Iterator[Fault]:
    from shardlab.judge.cases import make_cases

    shown_inputs = [arguments for name, arguments in calls if name == part.function]
    # Two seeds, because inputs that depend on no seed are the same in both.
    for case in (case for seed in (1, 2) for case in make_cases(part, seed, 2)):
        inputs = reference.inputs(case.draw)
        hidden = [_to_plain(inputs[name]) for name in part.arguments if name != "mesh"]
        if any(hidden and arguments[: len(hidden)] == hidden for arguments in shown_inputs):
            message = f"An example has the inputs of {case.name} of part {part.number}."
            yield Fault(rule="examples.hidden", message=message, file="statement.md")
            return


def _to_plain(value: Any) -> Any:
    """Return an input in the form in which the recorder prints it."""
    import numpy as np

    from shardlab.sharding.spec import Spec

    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, Spec):
        return ["P", *map(str, value.entries)]
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value).astype(float).tolist()
    if type(value).__name__ == "Key":
        return ["key", value.seed]
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
