"""The examples of a problem's page run where submissions run."""

from __future__ import annotations

from shardlab.judge.protocol.requests import DoctestRequest, ScriptRequest
from shardlab.judge.protocol.responses import ScriptResponse


def run_script(bench, source):
    return bench.send_request("tracer", ScriptRequest(source=source))


def test_a_script_runs_with_eight_devices_and_its_output_is_returned(bench):
    source = (
        "import jax\nprint(jax.device_count())\nif __name__ == '__main__':\n    print('main')\n"
    )
    assert run_script(bench, source) == ScriptResponse(printed="8\nmain\n")


def test_a_script_that_raises_reports_its_line(bench):
    response = run_script(bench, "print(1)\nprint(1 / 0)\n")
    assert response.printed == "1\n"
    assert response.error.exception_type == "ZeroDivisionError"
    assert response.error.line == 2


def test_examples_use_the_submission_that_is_loaded(bench):
    bench.load("def double(x):\n    return 2 * x\n")
    text = ">>> double(jnp.arange(3)).tolist()\n[0, 2, 4]\n>>> double(2)\n5\n>>> double()\n4\n"
    response = bench.send_request("tracer", DoctestRequest(text=text))
    assert response.n_examples == 3
    first, second = response.failures
    assert (first.line, first.source, first.expected, first.actual) == (
        3,
        "double(2)\n",
        "5\n",
        "4\n",
    )
    assert second.actual.startswith("TypeError: double() missing 1 required")


def test_source_is_compiled_without_our_own_future_imports(bench):
    response = run_script(bench, "def f(x: int): pass\nprint(f.__annotations__)\n")
    assert response == ScriptResponse(printed="{'x': <class 'int'>}\n")
