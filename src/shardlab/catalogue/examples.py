"""The examples of a page, run: what the worked example prints, and the calls under Examples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from shardlab.catalogue.fault import Fault
from shardlab.catalogue.page import Page, read_page
from shardlab.catalogue.problem import Problem

_CHILD = """
import contextlib, doctest, io, json, sys, traceback
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
job = json.load(sys.stdin)
told = {"printed": [], "failures": "", "calls": []}
for source in job["scripts"]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(source, "example", "exec"), {"__name__": "__main__"})
        except Exception:
            traceback.print_exc(limit=-2, file=out)
    told["printed"].append(out.getvalue())
names = dict(jax=jax, jnp=jnp, np=np, P=PartitionSpec, PartitionSpec=PartitionSpec,
             Mesh=Mesh, NamedSharding=NamedSharding, __name__="answer")
out = io.StringIO()
try:
    exec(compile(job["solution"], "solution.py", "exec"), names)
    def plain(value):
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        if isinstance(value, PartitionSpec):
            return ["P", *map(str, value)]
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                return ["key", int(jax.random.key_data(value)[-1])]
            return np.asarray(value).astype(complex if value.dtype.kind == "c" else float).tolist()
        return value if isinstance(value, (bool, int, float, str)) else repr(value)
    def recorded(name, function):
        def call(*given, **named):
            try:
                told["calls"].append([name, [plain(g) for g in (*given, *named.values())]])
            except Exception:
                pass
            return function(*given, **named)
        return call
    for name in job["functions"]:
        names[name] = recorded(name, names[name])
    parser = doctest.DocTestParser()
    test = parser.get_doctest(job["examples"], names, "Examples", None, job["line"])
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=out.write)
except Exception:
    traceback.print_exc(limit=-2, file=out)
told["failures"] = out.getvalue()
print(json.dumps(told))
"""


def example_faults(problem: Problem) -> Iterator[Fault]:
    """Yield what the examples of a page do other than the page says."""
    page = read_page(problem.text("statement.md"))
    told = _ran(problem, page)
    if isinstance(told, str):
        yield Fault("examples.process", "The examples cannot be run.", "statement.md", 0, (told,))
        return
    for (line, _, wanted), printed in zip(_worked(page), told["printed"], strict=True):
        if printed.rstrip() != wanted.rstrip():
            shows = ("it prints", *(f"  {each}" for each in printed.splitlines()))
            what = "The worked example prints something else than the page says."
            yield Fault("examples.worked", what, "statement.md", line, shows)
    if told["failures"]:
        shows = tuple(told["failures"].splitlines())
        what = "An example does not give what the page says."
        yield Fault("examples.doctest", what, "statement.md", _pycon(page)[0], shows)
    yield from _among_hidden(problem, told["calls"])


def _worked(page: Page) -> list[tuple[int, str, str]]:
    blocks = [b for b in page.section("Worked example").blocks if b.language in ("python", "text")]
    pairs = zip(blocks[::2], blocks[1::2], strict=False)
    return [(source.line, source.text, printed.text) for source, printed in pairs]


def _pycon(page: Page) -> tuple[int, str]:
    block = page.section("Examples").block("pycon")
    return (block.line, block.text) if block else (0, "")


def _ran(problem: Problem, page: Page) -> Any:
    line, examples = _pycon(page)
    job = {
        "scripts": [source for _, source, _ in _worked(page)],
        "solution": problem.text("solution.py"),
        "functions": sorted({part.function for part in problem.parts}),
        "examples": examples,
        "line": line,
    }
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return done.stderr[-2000:]


# --------------------------------------------------------------------- hidden cases stay hidden


def _among_hidden(problem: Problem, calls: list[Any]) -> Iterator[Fault]:
    """Yield the examples whose inputs are those of a hidden case."""
    from shardlab.judge.cases import cases_of

    for part in problem.parts:
        reference = _reference(problem, part)
        for case in (case for seed in (1, 2) for case in cases_of(part, seed, 2)):
            inputs = reference.inputs(case.draw)
            hidden = [_plain(inputs[name]) for name in part.arguments if name != "mesh"]
            for name, given in calls:
                if name == part.function and hidden and given[: len(hidden)] == hidden:
                    what = f"An example has the inputs of {case.name} of part {part.number}."
                    yield Fault("examples.hidden", what, "statement.md")
                    return


def _reference(problem: Problem, part: Any) -> Any:
    from shardlab.catalogue.reference import load_reference

    return load_reference(problem, part)


def _plain(value: Any) -> Any:
    """Return an input in the form in which the child tells of it."""
    import numpy as np

    from shardlab.layouts.spec import Spec

    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Spec):
        return ["P", *map(str, value.entries)]
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic)):
        kind = complex if value.dtype.kind == "c" else float
        return np.asarray(value).astype(kind).tolist()
    if type(value).__name__ == "Key":
        return ["key", value.seed]
    return value if isinstance(value, (bool, int, float, str)) else repr(value)
