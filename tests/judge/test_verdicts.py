"""Each verdict and each named cause from a submission that gets it, with real processes."""

import json

import pytest

from judge.small_problems import problem, shard_map_body, submission
from shardlab.judge.judge import judge, replay_case
from shardlab.judge.judgement import Judgement
from shardlab.judge.verdict import CAUSES, VERDICTS
from shardlab.judge.worker_pool import open_worker_pool

UNCHECKED = ", check_vma=False"
TOTAL = shard_map_body("lambda y: lax.psum(jnp.sum(y), a)")
TWICE = shard_map_body("lambda y: 2 * y", out_specs="P(a)")
LINEAR_IN = "(P(None, a), P(a), P())"
SLOPE = """
    a = mesh.axis_names[0]
    def local(w, x):
        loss = lambda w: lax.{outer}(jnp.mean((w * x) ** 2), a)
        value, grad = jax.value_and_grad(loss)(w)
        return value, {grad}
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P(a)), out_specs=(P(), P())){call}
"""
DROPPED = """
    a = mesh.axis_names[0]
    def local(key, x):
        key = {key}
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P(a)), out_specs=P(a))(key, x)
"""
SUMMARY = """
    a = mesh.axis_names[0]
    def local(x):
        return {{"high": {high}, "low": {low}, "mean": {mean}}}
    return jax.shard_map(
        local, mesh=mesh, in_specs=P(a), out_specs=P(), check_vma=False
    )(x)
"""
HIGH, LOW, MEAN = "lax.pmax(jnp.max(x), a)", "lax.pmin(jnp.min(x), a)", "lax.pmean(jnp.mean(x), a)"


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


def judge_body(pool, name, body, **options):
    kind = options.pop("kind", "submit")
    return judge(pool, problem(name, **options), submission(name, body), kind=kind, seed=3)


def first_failure(judgement):
    first = judgement.first_failure.verdicts[0]
    return first.code, first.cause, first.what


RIGHT = {
    "total": TOTAL,
    "summary": SUMMARY.format(high=HIGH, low=LOW, mean=MEAN),
    "doubled": TWICE,
    "numbered": "\n    return jnp.arange(n, dtype=jnp.int32)",
    "linear": shard_map_body(
        "lambda x, w, b: lax.psum(x @ w, a) + b", LINEAR_IN, arguments="x, w, b"
    ),
    "slope": SLOPE.format(outer="pmean", grad="grad", call="(w, x)"),
    "weighted": "\n    return jnp.sum(x * w) / jnp.sum(w)",
    "dropped": DROPPED.format(key="jax.random.fold_in(key, lax.axis_index(a))"),
    "halves": """
    if total % n:
        raise ValueError("no")
    return {part: total // n for part in range(n)}
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_submission_is_accepted(pool, name):
    judgement = judge_body(pool, name, RIGHT[name])
    assert judgement.passed, [str(v) for case in judgement.cases for v in case.verdicts]
    assert judgement.counterexample is None
    assert judgement.verdict.code == "AC"


def test_an_accepted_submission_is_reported_with_its_figures(pool):
    judgement = judge_body(pool, "total", TOTAL, budget={"psum": 1, "payload_bytes": 4})
    assert judgement.verdict.what == "Same result on 3 meshes; 1 psum of 4 B."
    assert judgement.cases[1].verdicts[0].what == "Right on 2 devices; 1 psum of 4 B."


WRONG = [
    # code and cause, problem, body, options, a part of the sentence
    (
        "WA factor_of_n",
        "total",
        shard_map_body("lambda y: lax.psum(lax.pcast(jnp.sum(y), a, to='varying'), a)", "P()"),
        {},
        "off by exactly 2x, the size of 'data': reduced twice?",
    ),
    (
        "WA divided_by_n",
        "total",
        shard_map_body("lambda y: lax.pmean(jnp.sum(y), a)"),
        {},
        "exactly 1/2 of it; 2 is the size of 'data'",
    ),
    (
        "WA shards_permuted",
        "doubled",
        shard_map_body(
            "lambda y: 2 * lax.ppermute(y, a, [(i, (i + 1) % mesh.shape[a]) for i in "
            "range(mesh.shape[a])])",
            out_specs="P(a)",
        ),
        {},
        "shard 1 is at position 0; shard 0 is at position 1",
    ),
    (
        "WA only_shard_0",
        "numbered",
        shard_map_body(
            "lambda: jnp.arange(n // mesh.shape[a], dtype=jnp.int32)", "()", "P(a)", arguments=""
        ),
        {},
        "correct in the first of 2 shards over 'data' and incorrect in the other:",
    ),
    (
        "WA bias_n_times",
        "linear",
        shard_map_body("lambda x, w, b: lax.psum(x @ w + b, a)", LINEAR_IN, arguments="x, w, b"),
        {},
        "argument b is added 2 times, the size of 'data'",
    ),
    (
        "WA gradient_scaled_by_n",
        "slope",
        SLOPE.format(
            outer="pmean", grad="lax.psum(lax.pcast(grad, a, to='varying'), a)", call="(w, x)"
        ),
        {"tags": ("gradient",)},
        "the gradient is 2x what it should be",
    ),
    (
        "WA mean_of_means",
        "weighted",
        shard_map_body(
            "lambda x, w: lax.pmean(jnp.sum(x * w) / jnp.sum(w), a)",
            "(P(a), P(a))",
            arguments="x, w",
        ),
        {},
        "it is the mean of 2 means, one for each shard over 'data'",
    ),
    (
        "WA same_random_numbers",
        "dropped",
        DROPPED.format(key="key"),
        {},
        "All 2 shards drop the same elements.",
    ),
    (
        "REPLICAS missing_psum",
        "total",
        shard_map_body("jnp.sum", options=UNCHECKED),
        {"simulated_meshes": ("data=16",)},
        "a psum is missing",
    ),
    (
        "REPLICAS missing_pmean",
        "summary",
        SUMMARY.format(high=HIGH, low=LOW, mean="jnp.mean(x)"),
        {},
        "result['mean'], which average to the expected 3.5: a pmean is missing",
    ),
    (
        "REPLICAS missing_pmax",
        "summary",
        SUMMARY.format(high="jnp.max(x)", low=LOW, mean=MEAN),
        {},
        "whose maximum is the expected 6: a pmax is missing",
    ),
    (
        "REPLICAS missing_pmin",
        "summary",
        SUMMARY.format(high=HIGH, low="jnp.min(x)", mean=MEAN),
        {},
        "whose minimum is the expected 1: a pmin is missing",
    ),
    (
        "SHAPE",
        "doubled",
        shard_map_body("lambda y: 2 * y", out_specs="P()", options=UNCHECKED),
        {},
        "result has shape (3, 3), expected (6, 3): out_specs may return only one of the 2 shards.",
    ),
    ("SHAPE", "total", "\n    jnp.sum(x)", {}, "returned None"),
    ("DTYPE", "total", "\n    return jnp.sum(x).astype(jnp.int32)", {}, "int32, expected float32"),
    (
        "SHARD",
        "doubled",
        "\n    return 2 * x",
        {},
        "result is replicated on every device; expected P('data')",
    ),
    (
        "SHARD",
        "doubled",
        "\n    return lax.with_sharding_constraint(2 * x, NamedSharding(mesh, P(None, 'model')))",
        {"meshes": ("data=2,model=3",)},
        "result is sharded as P(None, 'model'); expected P('data').",
    ),
    (
        "VMA",
        "total",
        shard_map_body("jnp.sum"),
        {},
        "JAX cannot prove that an output is replicated",
    ),
    (
        "SPEC",
        "total",
        shard_map_body("lambda y: lax.psum(jnp.sum(y), 'dta')"),
        {"meshes": ("data=2",)},
        "mesh axis 'dta', which does not exist on this mesh",
    ),
    (
        "SPEC",
        "total",
        shard_map_body("lambda y: lax.psum(jnp.sum(y), a)", arguments="x[1:]"),
        {"meshes": ("data=2",)},
        "JAX: shard_map applied to the function '<lambda>'",
    ),
    (
        "API",
        "total",
        "\n    return jnp.sum(x)",
        {"requires": ("shard_map", "psum")},
        "There is no shard_map in the program.",
    ),
    (
        "API",
        "total",
        shard_map_body("lambda y: lax.psum(jnp.sum(y), a)", options=UNCHECKED),
        {"requires": ("shard_map", "check_vma")},
        "The shard_map has check_vma=False",
    ),
    (
        "COMM",
        "total",
        shard_map_body("lambda y: lax.psum(jnp.sum(lax.all_gather(y, a)), a) / mesh.shape[a]"),
        {"budget": {"psum": 1}},
        "1 all_gather of 12 B; budget 0.",
    ),
    (
        "COMM",
        "total",
        shard_map_body("lambda y: jnp.sum(lax.psum(y, a))"),
        {"budget": {"psum": 1, "payload_bytes": 4}},
        "12 B passed to collectives by each device; budget 4: 1 psum of 12 B.",
    ),
    ("COMM", "total", TOTAL, {"budget": {"calls": 0}}, "1 psum of 4 B; budget 0."),
    ("MEM", "total", TOTAL, {"budget": {"peak_bytes": 8}}, "B at its peak; budget 8 B."),
    (
        "HANG",
        "total",
        shard_map_body(
            "lambda y: lax.cond(lax.axis_index(a) == 0, lambda v: lax.psum(v, a), lambda v: v, "
            "jnp.sum(y))",
            options=UNCHECKED,
        ),
        {},
        "Some devices never reach the psum over 'data'",
    ),
    (
        "RTE",
        "total",
        "\n    return x.sum() + [0][int(mesh.size > 1)]",
        {},
        "IndexError: list index",
    ),
    (
        "WA",
        "halves",
        "\n    return {part: total // n for part in range(n)}",
        {},
        "expected ValueError",
    ),
    (
        "WA",
        "halves",
        "\n    return {part: total for part in range(n)}",
        {},
        "result[0] is 12, expected 6",
    ),
]


@pytest.mark.parametrize(
    ("label", "name", "body", "options", "sentence"), WRONG, ids=[entry[0] for entry in WRONG]
)
def test_a_wrong_submission_gets_its_verdict_with_its_own_numbers(
    pool, label, name, body, options, sentence
):
    judgement = judge_body(pool, name, body, **options)
    code, cause, what = first_failure(judgement)
    assert f"{code} {cause}".strip() == label, what
    assert sentence in what
    # No other verdict on any mesh.
    codes = {v.code for case in judgement.cases for v in case.verdicts}
    assert codes <= {"AC", code}
    # A mistake that values show has a minimal failing case, on the smallest mesh that shows it.
    small = judgement.counterexample
    if code != "HANG":
        assert small.verdicts[0].code == code
        assert small.facts["inputs"]
        assert small.seed not in {case.seed for case in judgement.cases}
        assert small.mesh == judgement.first_failure.mesh


def test_every_cause_and_every_verdict_has_a_submission_that_gets_it():
    labels = {entry[0] for entry in WRONG}
    assert set(CAUSES) == {label.split()[1] for label in labels if " " in label}
    # Those without a result have tests of their own below, and in test_process_ends.py.
    elsewhere = {"AC", "IE", "CE", "TLE", "MLE", "OLE"}
    assert set(VERDICTS) - elsewhere == {label.split()[0] for label in labels}


def test_several_verdicts_on_a_case_come_most_severe_first(pool):
    body = shard_map_body("lambda y: lax.pmax(lax.psum(jnp.sum(y), a), a)", options=UNCHECKED)
    options = {"budget": {"psum": 1, "peak_bytes": 8}, "requires": ("check_vma", "all_gather")}
    first = judge_body(pool, "total", body, meshes=("data=2",), **options).first_failure
    assert [verdict.code for verdict in first.verdicts] == ["API", "COMM", "MEM"]


def test_a_collective_that_the_compiler_inserts_is_not_the_submissions_own(pool):
    options = {"requires": ("all_gather",), "meshes": ("data=2",)}
    split = "lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P(a)))"
    body = shard_map_body("lambda y: jnp.sum(y)", in_specs="P()", arguments=split)
    code, _, what = first_failure(judge_body(pool, "total", body, **options))
    assert code == "API"
    assert what == ("There is no all_gather in the program itself; the compiler has inserted one.")


def test_the_same_submission_and_seed_give_the_same_judgement(pool):
    body = shard_map_body("lambda y: (print('in'), lax.pmean(jnp.sum(y), a))[1]")
    first, second = (judge_body(pool, "total", body).to_json() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert Judgement.from_json(json.loads(json.dumps(first))).to_json() == first
    assert [case["output"] for case in first["cases"]] == ["in\n"] * 3


def test_a_case_can_be_replayed_by_its_number(pool):
    judgement = judge_body(pool, "total", shard_map_body("lambda y: lax.pmean(jnp.sum(y), a)"))
    replayed = replay_case(
        pool,
        problem("total"),
        submission("total", shard_map_body("lambda y: lax.pmean(jnp.sum(y), a)")),
        kind="submit",
        seed=3,
        part=1,
        number=2,
    )
    assert [case.number for case in replayed.cases] == [2]
    assert replayed.cases[0].to_json() == judgement.cases[2].to_json()


def test_a_run_has_the_same_small_cases_whatever_the_seed(pool):
    source = submission("total", TOTAL)
    runs = [
        judge(pool, problem("total", simulated_meshes=("data=16",)), source, kind="run", seed=seed)
        for seed in (1, 2)
    ]
    assert runs[0].to_json() == runs[1].to_json()
    assert [case.name for case in runs[0].cases] == ["data=1", "data=2", "rows=3, axes renamed"]
    assert all(case.is_example for case in runs[0].cases)


def test_progress_is_reported_case_by_case_in_order(pool):
    reported = []
    judge(
        pool,
        problem("total"),
        submission("total", TOTAL),
        kind="submit",
        seed=3,
        on_case=reported.append,
    )
    assert [case.number for case in reported] == [0, 1, 2]


def test_sums_over_devices_are_the_same_to_the_last_bit(pool):
    """Replicas are compared bit for bit; a sum whose order matters must not fail for that."""
    body = shard_map_body(
        "lambda x, w: lax.psum(jnp.sum(x * w), a) / lax.psum(jnp.sum(w), a)",
        "(P(a), P(a))",
        arguments="x, w",
    )
    assert judge_body(pool, "weighted", body, meshes=("data=8", "data=2,model=4", "data=3")).passed
