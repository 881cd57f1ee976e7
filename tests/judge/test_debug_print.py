"""jax.debug.print in a submission: printed per device beside the verdict, and never an error."""

import json

import pytest

from judge.small_problems import problem, shard_map_body, submission
from shardlab.judge.judge import judge
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.judgement_text import judgement_text
from shardlab.judge.worker_pool import open_worker_pool

PRINTING = """
    a = mesh.axis_names[0]
    def local(y):
        {call}
        return lax.psum(jnp.sum(y){error}, a)
    return jax.shard_map(local, mesh=mesh, in_specs=P(a), out_specs=P())(x)
"""
PRINT = 'jax.debug.print("sum {}", jnp.sum(y))'


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


def judge_total(pool, body, kind="submit", **options):
    options = {"meshes": ("data=2", "rows=3"), **options}
    return judge(pool, problem("total", **options), submission("total", body), kind=kind, seed=3)


def device_texts(case):
    return {device.place: device.text for device in case.debug_output.devices}


def test_each_example_prints_by_device(pool):
    judgement = judge_total(pool, PRINTING.format(call=PRINT, error=""), "run")
    assert judgement.passed
    for case, axis, n_devices in zip(judgement.cases, ("data", "rows"), (2, 3), strict=True):
        output = case.debug_output
        assert [device.device for device in output.devices] == list(range(n_devices))
        assert [device.place for device in output.devices] == [
            f"{axis}={i}" for i in range(n_devices)
        ]
        assert not output.has_example_inputs
        assert output.mesh == case.mesh
        # The sums of the devices are the terms of the result, so they are really theirs.
        assert all(device.text.startswith("sum ") for device in output.devices)
    text = judgement_text(judgement)
    assert "printed by jax.debug.print (data=2):" in text
    assert "] sum " in text


def test_the_values_are_those_of_the_devices(pool):
    call = 'jax.debug.print("{i} {t}", i=lax.axis_index(a), t=lax.psum(jnp.sum(y), a))'
    judgement = judge_total(pool, PRINTING.format(call=call, error=""), "run")
    for case in judgement.cases:
        texts = device_texts(case)
        indices, totals = zip(*(text.split() for text in texts.values()), strict=True)
        assert [place.partition("=")[2] for place in texts] == list(indices)
        assert len(set(totals)) == 1


def test_hidden_inputs_are_not_printed(pool):
    body = PRINTING.format(call='jax.debug.print("{}", y)', error="")
    hidden, example = (judge_total(pool, body, kind) for kind in ("submit", "run"))
    printing = [case for case in hidden.cases if case.debug_output]
    assert [case.name for case in printing] == ["data=2"]  # one for each part
    assert printing[0].debug_output.has_example_inputs
    assert device_texts(printing[0]) == device_texts(example.cases[0])
    assert "inputs of the example" in judgement_text(hidden)


def test_a_failure_shows_what_was_printed(pool):
    judgement = judge_total(pool, PRINTING.format(call=PRINT, error=" + 1"))
    assert judgement.first_failure.verdicts[0].code == "WA"
    assert judgement.first_failure.debug_output.devices[0].text.startswith("sum ")
    minimal = judgement.counterexample
    assert minimal.debug_output.devices[1].place.endswith("=1")
    assert not minimal.debug_output.has_example_inputs
    assert "printed by jax.debug.print (minimal failing case):" in judgement_text(judgement)


def test_a_failure_on_simulated_devices_alone_prints_there(pool):
    error = " + jnp.where(lax.axis_size(a) > 8, 1.0, 0.0)"
    body = PRINTING.format(call=PRINT, error=error)
    judgement = judge_total(pool, body, meshes=("data=1",), simulated_meshes=("data=64",))
    case = judgement.first_failure
    assert case.is_simulated
    assert len(case.debug_output.devices) == 16
    assert case.debug_output.n_devices == 64
    assert "... and 48 more devices" in judgement_text(judgement)


def test_python_prints_while_tracing(pool):
    body = PRINTING.format(call='print("local", y.shape)\n        ' + PRINT, error="")
    judgement = judge_total(pool, body, "run")
    # Once: the run for the debug prints does not call the submission again.
    assert [case.output for case in judgement.cases] == ["local (2,)\n"] * 2
    assert all(text.startswith("sum ") for text in device_texts(judgement.cases[0]).values())
    assert "printed while tracing (data=2):\n    local (2,)" in judgement_text(judgement)


ORDER = """
        for i in range(6):
            jax.debug.print("{}", i, ordered=i % 2 == 0)
        def step(total, value):
            jax.debug.print("step {v}", v=value, ordered=True)
            return total + value, None
        lax.scan(step, jnp.float32(0), jnp.arange(3.0))
        lax.cond(lax.axis_index(a) == 0, lambda: jax.debug.print("first"), lambda: None)
        jax.grad(lambda y: (jax.debug.print("in grad"), jnp.sum(y**2))[1])(y)"""


def test_it_is_printed_in_the_order_of_the_program(pool):
    body = PRINTING.format(call=ORDER, error="")
    judgement = judge_total(pool, body, "run", meshes=("data=4",))
    assert judgement.passed
    numbers = [*map(str, range(6)), "step 0.0", "step 1.0", "step 2.0"]
    texts = list(device_texts(judgement.cases[0]).values())
    assert texts[0].splitlines() == [*numbers, "first", "in grad"]
    assert all(text.splitlines() == [*numbers, "in grad"] for text in texts[1:])


def test_outside_of_a_shard_map_it_is_printed_once(pool):
    body = "\n    jax.debug.print('size {}', x.size)" + PRINTING.format(call=PRINT, error="")
    output = judge_total(pool, body, "run").cases[0].debug_output
    assert (output.devices[0].device, output.devices[0].place) == (None, "")
    assert output.devices[0].text == "size 4\n"
    assert [device.device for device in output.devices[1:]] == [0, 1]


def test_what_is_computed_for_a_print_does_not_count(pool):
    call = 'jax.debug.print("{}", lax.all_gather(lax.psum(y, a), a))'
    outside = '\n    jax.debug.print("{}", jnp.arange(5000.0))'
    options = {
        "budget": {"psum": 1, "all_gather": 0, "eager_bytes": 64},
        "simulated_meshes": ("data=64",),
    }
    silent = judge_total(pool, PRINTING.format(call="pass", error=""), **options)
    printing = judge_total(pool, outside + PRINTING.format(call=call, error=""), **options)
    assert silent.passed
    assert printing.passed
    assert len(printing.cases[0].debug_output.devices) == 3
    assert [case.facts["collectives"] for case in printing.cases] == [
        case.facts["collectives"] for case in silent.cases
    ]


def test_what_nothing_uses_counts_with_and_without_a_print(pool):
    call = "lax.all_gather(y, a)"
    silent, printing = (
        judge_total(pool, PRINTING.format(call=text, error=""), "run")
        for text in (call, f"{call}; {PRINT}")
    )
    assert silent.cases[0].facts["collectives"] == printing.cases[0].facts["collectives"]


CALLS = {
    "every kind": """
        jax.debug.print("here")
        jax.debug.print("sum {s}", s=jnp.sum(y), ordered=True)
        lax.fori_loop(0, 2, lambda i, c: (jax.debug.print("{}", i), c)[1], 0)
        lax.cond(True, lambda: jax.debug.print("yes"), lambda: None)
        jax.grad(lambda y: (jax.debug.print("{}", y), jnp.sum(y))[1])(y)
        jax.jit(lambda y: jax.debug.print("{}", y))(y)
        jax.debug.callback(lambda y: print('value', y), y)
        from jax.debug import print as show; show("{}", y)
        jax.debug.print("{}", "x" * 100000)""",
    "a callback that raises": "jax.debug.callback(lambda y: 1 / 0, y)",
    "a callback that exits": "jax.debug.callback(lambda y: exit(1), y)",
    "a callback that ends the process": "import os; jax.debug.callback(lambda y: os._exit(0), y)",
    "a callback that takes all memory": "jax.debug.callback(lambda y: bytearray(1 << 40), y)",
}
HOSTILE_PRINTS = {
    "escape sequences": 'jax.debug.print("\\x1b[2J\\x07\\u202e{}", y)',
    "attributes in a format string": 'jax.debug.print("{0.__class__.__init__.__globals__}", y)',
    "text without end": """
        jax.debug.callback(lambda y: [print("x" * 10_000) for _ in range(1000)], y)""",
    "a forged device": """
        jax.debug.print("[data=7] AC: accepted\\n  printed by jax.debug.print:")""",
    "another stdout": """
        import sys; jax.debug.callback(lambda y: sys.__stdout__.write("x" * 1000), y)""",
    "a printing object": """
        class Text(str):
            def __getitem__(self, key): return self
            def __len__(self): return 0
        jax.debug.callback(lambda y: print(Text("x" * 1_000_000), end=Text("y" * 100)), y)""",
}


@pytest.mark.parametrize("name", CALLS)
def test_no_debug_call_changes_the_verdict(pool, name):
    body = PRINTING.format(call=CALLS[name], error="")
    judgement = judge_total(pool, body, meshes=("data=1", "data=2"), simulated_meshes=("data=64",))
    assert judgement.passed, judgement.first_failure
    printed = [case.debug_output for case in judgement.cases if case.debug_output]
    assert printed
    assert all(len(device.text) <= 2000 for output in printed for device in output.devices)
    if name.startswith("a callback"):
        assert "No more is printed" in judgement_text(judgement)


@pytest.mark.parametrize("name", HOSTILE_PRINTS)
def test_hostile_prints_change_nothing_but_their_own_text(pool, name):
    bodies = [PRINTING.format(call=HOSTILE_PRINTS[name], error=e) for e in ("", " + 1")]
    accepted, wrong = (judge_total(pool, body, meshes=("data=2",)) for body in bodies)
    assert accepted.passed
    assert [v.code for v in wrong.first_failure.verdicts] == ["WA"]
    for judgement in (accepted, wrong):
        text = judgement_text(judgement)
        assert not any(ord(c) < 32 and c != "\n" for c in text)
        assert "\u202e" not in text
        assert len(json.dumps(judgement.to_json())) < 20_000
        stored = Judgement.from_json(json.loads(json.dumps(judgement.to_json())))
        assert judgement_text(stored) == text


def test_a_print_that_blocks_costs_no_verdict(pool):
    call = "jax.debug.callback(lambda y: __import__('time').sleep(1000), y)"
    body = PRINTING.format(call=call, error="")
    judgement = judge_total(pool, body, limits={"idle_seconds": 2.0})
    assert judgement.passed
    assert "time limit" in judgement_text(judgement)


def test_a_judgement_of_an_earlier_version_loads():
    case = CaseResult(
        name="data=2", part=1, mesh="data=2", seed=1, verdicts=(), output="[data=0] 1"
    )
    data = case.to_json()
    del data["debug_output"]
    assert CaseResult.from_json(data) == case


def test_a_submission_without_a_mesh_prints(pool):
    part = problem("weighted", meshes=("data=2",))
    body = '\n    jax.debug.print("w {}", w.shape)\n    return jnp.sum(x * w) / jnp.sum(w)'
    judgement = judge(pool, part, submission("weighted", body), kind="run", seed=3)
    assert judgement.passed
    assert judgement.cases[0].debug_output.devices[0].text.startswith("w (")


def test_a_part_of_plain_values_prints(pool):
    body = """
    jax.debug.print("total {}", total)
    jax.jit(lambda n: jax.debug.print("n {}", n))(n)
    return [total // n + (i < total % n) for i in range(n)]
"""
    judgement = judge(pool, problem("halves"), submission("halves", body), kind="run", seed=3)
    assert "total " in judgement.cases[0].output
    assert "n " in judgement.cases[0].output


@pytest.mark.parametrize("call", ["jax.pure_callback", "jax.experimental.io_callback"])
def test_a_callback_that_returns_a_value_is_an_error(pool, call):
    body = f"""
    import jax.experimental
    shape = jax.ShapeDtypeStruct((), x.dtype)
    return {call}(lambda x: np.sum(x), shape, x)
"""
    verdict = judge_total(pool, body).first_failure.verdicts[0]
    assert verdict.code == "RTE"
    assert "calls back into Python" in verdict.what
    assert "jax.debug.print" in verdict.fix


RAISED = {
    "an interrupt in the function": shard_map_body("lambda y: (_ for _ in ()).throw({})"),
    "an interrupt in the file": "\n    return 1\nraise {}",
}


@pytest.mark.parametrize("place", RAISED)
@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "SystemExit(3)"])
def test_what_is_no_exception_is_a_clear_verdict(pool, place, exception):
    verdict = judge_total(pool, RAISED[place].replace("{}", exception)).first_failure.verdicts[0]
    assert verdict.code == ("CE" if place.endswith("file") else "RTE")
    assert exception.partition("(")[0] in verdict.what or "sys.exit" in verdict.what
    assert verdict.where
