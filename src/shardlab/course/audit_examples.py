"""The examples of a page, run: what the worked example prints, and the calls under Examples.

They are run where answers are, in a confined process: a catalogue may be another person's.
"""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from typing import Any

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.reference import load_reference
from shardlab.course.problem_lint import Fault
from shardlab.course.statement_page import Page, read_page
from shardlab.judge.protocol.requests import (
    DoctestRequest,
    LoadRequest,
    ScriptRequest,
    WorkerRequest,
)
from shardlab.judge.protocol.responses import DoctestFailure, ScriptResponse
from shardlab.judge.worker_client import send_requests
from shardlab.sandbox.process import ProcessLimits, SandboxPool

# Runs the examples with functions in the solution's place that note what they are given.
_RECORDER = """
import json as _json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
P = PartitionSpec
_calls = []

def _plain(value):
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, PartitionSpec):
        return ["P", *map(str, value)]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ["key", int(jax.random.key_data(value)[-1])]
        return np.asarray(value).astype(float).tolist()
    return value if isinstance(value, (bool, int, float, str)) else repr(value)

def _recorded(name):
    def call(*given, **named):
        _calls.append([name, [_plain(each) for each in (*given, *named.values())]])
        raise StopIteration  # what it gives is of no interest here
    return call

for _name in FUNCTIONS:
    globals()[_name] = _recorded(_name)
for _source in SOURCES:
    try:
        exec(_source, globals())
    except Exception:
        pass
print()
print(_json.dumps(_calls))
"""


def example_faults(house: SandboxPool, problem: Problem) -> Iterator[Fault]:
    """Yield what the examples of a page do other than the page says."""
    page = read_page(problem.text("statement.md"))
    worked, (line, calls) = _worked(page), _pycon(page)
    requests: list[WorkerRequest[Any]] = [
        *(ScriptRequest(source=source) for _, source, _ in worked),
        LoadRequest(source=problem.text("solution.py").encode()),
        DoctestRequest(text=calls),
        ScriptRequest(source=_recorder(problem, calls)),
    ]
    # By the clock there is time: a busy machine is no fault of the page.
    limits = ProcessLimits(wall_seconds=120, cpu_seconds=60)
    *printed, loaded, tested, recorded = send_requests(house, "tracer", limits, requests)
    for (line_number, _, expected), response in zip(worked, printed, strict=True):
        yield from _other_print(line_number, expected, response)
    failures = list(tested.failures)
    if tested.error:
        error = loaded.error or tested.error
        failures = [DoctestFailure(line=0, source="", expected="", actual=error.message)]
    for failure in failures:
        shows = (f">>> {failure.source}", f"want {failure.expected}", f"got  {failure.actual}")
        what = "An example gives something else than the page says."
        yield Fault(
            rule="examples.doctest",
            what=what,
            file="statement.md",
            line=line + failure.line,
            shows=_lines(shows),
        )
    yield from _among_hidden(problem, _calls(recorded))


def _other_print(line: int, wanted: str, response: ScriptResponse) -> Iterator[Fault]:
    printed = response.printed + (response.error.message if response.error else "")
    if printed.rstrip() != wanted.rstrip():
        shows = ("it prints", *(f"  {each}" for each in printed.splitlines()))
        what = "The worked example prints something else than the page says."
        yield Fault(rule="examples.worked", what=what, file="statement.md", line=line, shows=shows)


def _worked(page: Page) -> list[tuple[int, str, str]]:
    """Return each worked example with its line and what it says that it prints."""
    blocks = [b for b in page.section("Worked example").blocks if b.language in ("python", "text")]
    pairs = zip(blocks[::2], blocks[1::2], strict=False)
    return [(source.line, source.text, printed.text) for source, printed in pairs]


def _pycon(page: Page) -> tuple[int, str]:
    block = page.section("Examples").block("pycon")
    return (block.line, block.text) if block else (0, "")


def _lines(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line for text in texts for line in text.rstrip().splitlines())


# --------------------------------------------------------------------- hidden cases stay hidden


def _recorder(problem: Problem, examples: str) -> str:
    """Return a program that prints what each call in the examples is given."""
    functions = sorted({part.function for part in problem.parts})
    sources = [each.source for each in doctest.DocTestParser().get_examples(examples)]
    return _RECORDER.replace("FUNCTIONS", repr(functions)).replace("SOURCES", repr(sources))


def _calls(recorded: ScriptResponse) -> list[Any]:
    printed = recorded.printed.splitlines()
    found: list[Any] = json.loads(printed[-1]) if printed and not recorded.error else []
    return found


def _among_hidden(problem: Problem, calls: list[Any]) -> Iterator[Fault]:
    """Yield the examples whose inputs are those of a hidden case."""
    from shardlab.judge.cases import make_cases

    for part in problem.parts:
        reference = load_reference(problem, part)
        given = [arguments for name, arguments in calls if name == part.function]
        for case in (case for seed in (1, 2) for case in make_cases(part, seed, 2)):
            inputs = reference.inputs(case.draw)
            hidden = [_plain(inputs[name]) for name in part.arguments if name != "mesh"]
            if any(hidden and each[: len(hidden)] == hidden for each in given):
                what = f"An example has the inputs of {case.name} of part {part.number}."
                yield Fault(rule="examples.hidden", what=what, file="statement.md")
                return


def _plain(value: Any) -> Any:
    """Return an input in the form in which the recorder tells of it."""
    import numpy as np

    from shardlab.sharding.spec import Spec

    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Spec):
        return ["P", *map(str, value.entries)]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value).astype(float).tolist()
    if type(value).__name__ == "Key":
        return ["key", value.seed]
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
