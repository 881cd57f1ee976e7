"""Runs what a page shows: a worked example as a script, and examples as doctests."""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import textwrap
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab.judge.worker.errors import told

EXAMPLE = "example.py"


def script(source: str) -> dict[str, Any]:
    """Return what a script prints, and what it raises.

    >>> script("print(1 + 1)")
    {'printed': '2\\n'}
    """
    linecache.cache[EXAMPLE] = (len(source), None, source.splitlines(True), EXAMPLE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            code = compile(source, EXAMPLE, "exec", dont_inherit=True)
            exec(code, {"__name__": "__main__", "__file__": EXAMPLE})
            jax.effects_barrier()
        except Exception as error:
            return {"printed": printed.getvalue(), "error": _placed(error)}
    return {"printed": printed.getvalue()}


def _placed(error: Exception) -> dict[str, Any]:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == EXAMPLE]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return {**told(error), "line": lines[-1] if lines else None}


def doctests(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return how many examples a text has, and those that give something else, each in words.

    >>> doctests(">>> 1 + 1\\n3\\n", {})["failures"][0]["got"]
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
    found = doctest.DocTestParser().get_doctest(textwrap.dedent(text), scope, "examples", None, 0)
    runner = _Runner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(found, out=lambda said: None, clear_globs=False)
    return {"n_examples": len(found.examples), "failures": runner.failures_told}


class _Runner(doctest.DocTestRunner):
    """Keeps what fails instead of printing it."""

    def __init__(self, optionflags: int) -> None:
        super().__init__(verbose=False, optionflags=optionflags)
        self.failures_told: list[dict[str, Any]] = []

    def report_failure(self, out: Any, test: Any, example: Any, got: str) -> None:
        self._keep(example, got)

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        kind, error, _ = exc_info
        self._keep(example, f"{kind.__name__}: {error}")

    def _keep(self, example: Any, got: str) -> None:
        self.failures_told.append(
            {
                "line": example.lineno + 1,
                "source": example.source,
                "want": example.want,
                "got": got[:4000],
            }
        )
