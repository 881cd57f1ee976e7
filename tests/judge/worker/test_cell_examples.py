"""What a page shows is run where answers are run."""

from __future__ import annotations

from shardlab.sandbox.frame import Frame


def test_a_script_is_run_with_eight_devices_and_what_it_prints_comes_back(bench):
    source = (
        b"import jax\nprint(jax.device_count())\nif __name__ == '__main__':\n    print('main')\n"
    )
    answer = bench.ask("author", Frame({"do": "script"}, (source,)))
    assert answer.header == {"printed": "8\nmain\n"}


def test_a_script_that_raises_says_where(bench):
    answer = bench.ask("author", Frame({"do": "script"}, (b"print(1)\nprint(1 / 0)\n",)))
    assert answer.header["printed"] == "1\n"
    assert answer.header["error"]["kind"] == "ZeroDivisionError"
    assert answer.header["error"]["line"] == 2


def test_examples_are_tried_with_the_answer_that_is_loaded(bench):
    bench.load("def double(x):\n    return 2 * x\n")
    text = ">>> double(jnp.arange(3)).tolist()\n[0, 2, 4]\n>>> double(2)\n5\n>>> double()\n4\n"
    told = bench.ask("author", Frame({"do": "doctest"}, (text.encode(),))).header
    assert told["n_examples"] == 3
    first, second = told["failures"]
    assert (first["line"], first["source"], first["want"], first["got"]) == (
        3,
        "double(2)\n",
        "5\n",
        "4\n",
    )
    assert second["got"].startswith("TypeError: double() missing 1 required")


def test_source_is_compiled_as_it_is_with_none_of_our_own_settings(bench):
    source = b"def f(x: int): pass\nprint(f.__annotations__)\n"
    answer = bench.ask("author", Frame({"do": "script"}, (source,)))
    assert answer.header == {"printed": "{'x': <class 'int'>}\n"}
