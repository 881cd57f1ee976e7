"""jax.debug.print in a submission: printed per device beside the verdict, and never an error."""

import pytest

from judge.small_problems import problem, shard_map_body, submission
from shardlab.judge.judge import judge
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


@pytest.mark.parametrize("kind", ["run", "submit"])
def test_each_device_prints_in_mesh_order(pool, kind):
    judgement = judge_total(pool, PRINTING.format(call=PRINT, error=""), kind)
    assert judgement.passed
    # Hidden cases draw another name for the mesh axis, and print what the example prints.
    renamed = judgement.cases[1]
    assert (renamed.name == "rows=3, axes renamed") == (kind == "run")
    lines = renamed.output.splitlines()
    note = lines.pop(0) if kind == "submit" else ""
    assert ("inputs of the example" in note) == (kind == "submit")
    assert [line.partition(" sum ")[0] for line in lines] == ["[rows=0]", "[rows=1]", "[rows=2]"]
    assert len({line.partition(" sum ")[2] for line in lines}) == 3
    text = judgement_text(judgement)
    assert "printed (data=2):" in text
    assert "[data=0] sum" in text
    assert "[data=1] sum" in text


def test_a_hidden_case_prints_the_values_of_the_example(pool):
    body = PRINTING.format(call=PRINT, error="")
    hidden, example = (judge_total(pool, body, kind) for kind in ("submit", "run"))
    for left, right in zip(hidden.cases, example.cases, strict=True):
        assert left.output.splitlines()[1:] == right.output.splitlines()


def test_a_failure_shows_what_was_printed(pool):
    judgement = judge_total(pool, PRINTING.format(call=PRINT, error=" + 1"))
    assert judgement.first_failure.verdicts[0].code == "WA"
    assert "[data=0] sum" in judgement.first_failure.output + judgement.counterexample.output


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
}


@pytest.mark.parametrize("name", CALLS)
def test_no_debug_call_changes_the_verdict(pool, name):
    body = PRINTING.format(call=CALLS[name], error="")
    judgement = judge_total(pool, body, meshes=("data=1", "data=2"), simulated_meshes=("data=64",))
    assert judgement.passed, judgement.first_failure
    assert all(len(case.output) < 5000 for case in judgement.cases)


def test_a_submission_without_a_mesh_prints(pool):
    part = problem("weighted", meshes=("data=2",))
    body = '\n    jax.debug.print("w {}", w.shape)\n    return jnp.sum(x * w) / jnp.sum(w)'
    judgement = judge(pool, part, submission("weighted", body), kind="run", seed=3)
    assert judgement.passed
    assert judgement.cases[0].output.startswith("w (")


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
