"""Runs what a problem's page shows: a worked example as a script, and examples as doctests."""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import textwrap
import traceback
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab.judge.protocol.reports import ExceptionReport
from shardlab.judge.protocol.responses import DoctestFailure, DoctestResponse, ScriptResponse
from shardlab.judge.worker.error_reports import report_exception

EXAMPLE_FILE = "example.py"
_MAX_OUTPUT = 4000


def run_script(source: str) -> ScriptResponse:
    """Return what a script prints, and what it raises.

    >>> run_script("print(1 + 1)").printed
    '2\\n'
    """
    lines = source.splitlines(True)
    linecache.cache[EXAMPLE_FILE] = (len(source), None, lines, EXAMPLE_FILE)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            # dont_inherit: otherwise this file's own `from __future__` imports apply to it.
            code = compile(source, EXAMPLE_FILE, "exec", dont_inherit=True)
            exec(code, {"__name__": "__main__", "__file__": EXAMPLE_FILE})
            # jax.debug.print prints from another thread; wait until all of it is in the output.
            jax.effects_barrier()
        except Exception as error:
            return ScriptResponse(printed=output.getvalue(), error=_report_script_error(error))
    return ScriptResponse(printed=output.getvalue())


def _report_script_error(error: Exception) -> ExceptionReport:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == EXAMPLE_FILE]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return replace(report_exception(error), line=lines[-1] if lines else None)


def run_doctests(text: str, names: dict[str, Any]) -> DoctestResponse:
    """Return how many examples a text has, and those that give something else.

    >>> run_doctests(">>> 1 + 1\\n3\\n", {}).failures[0].actual
    '2\\n'
    """
    scope = {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "P": PartitionSpec,
        "PartitionSpec": PartitionSpec,
        "Mesh": Mesh,
        "NamedSharding": NamedSharding,
        **{name: value for name, value in names.items() if not name.startswith("__")},
    }
    parser = doctest.DocTestParser()
    examples = parser.get_doctest(textwrap.dedent(text), scope, "examples", None, 0)
    runner = _CollectingRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(examples, out=lambda line: None, clear_globs=False)
    return DoctestResponse(
        n_examples=len(examples.examples), failures=tuple(runner.doctest_failures)
    )


class _CollectingRunner(doctest.DocTestRunner):
    """Collects failures instead of printing them."""

    def __init__(self, optionflags: int) -> None:
        super().__init__(verbose=False, optionflags=optionflags)
        self.doctest_failures: list[DoctestFailure] = []

    def report_failure(self, out: Any, test: Any, example: Any, got: str) -> None:
        self._add_failure(example, got)

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        exception_type, error, _ = exc_info
        self._add_failure(example, f"{exception_type.__name__}: {error}")

    def _add_failure(self, example: Any, output: str) -> None:
        self.doctest_failures.append(
            DoctestFailure(
                line=example.lineno + 1,
                source=example.source,
                expected=example.want,
                actual=output[:_MAX_OUTPUT],
            )
        )
