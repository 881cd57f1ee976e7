"""A shown case of a submission opens in the debugger with the inputs that the verdict shows."""

import ast
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.debug_program import _array_source, _plain_source, debug_program
from shardlab.errors import CaseNotShown, UnknownSubmission
from shardlab.judge.counterexample import value_text
from shardlab.judge.judge import judge
from shardlab.judge.judgement import Judgement
from shardlab.judge.protocol.values import Key
from shardlab.judge.worker_pool import open_worker_pool
from shardlab.recording.program_recording import record_source
from shardlab.sharding.spec import Spec


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


def load_problem(slug) -> Problem:
    return load_catalogue().load_problem(slug)


def wrong_source(problem, name):
    return (problem.folder / "wrong" / f"{name}.py").read_text()


def judge_stored(pool, problem, source, kind="submit", seed=11) -> Judgement:
    """Return a judgement as it comes out of the store."""
    judgement = judge(pool, problem, source, kind=kind, seed=seed)
    return Judgement.from_json(json.loads(json.dumps(judgement.to_json())))


def load_program(program):
    """Execute a program, and return its names, the function to record, and its arguments."""
    names = {"__name__": "program"}
    exec(compile(program.source, "program.py", "exec", dont_inherit=True), names)
    return names, names[program.target], names[f"{program.target}_args"]


def passed_arguments(program, part):
    """Return what the submission is called with, without the mesh."""
    # Without the lines that shard the inputs: they change no value, and need a mesh of devices.
    lines = [
        line for line in program.source.splitlines() if "with_sharding_constraint(" not in line
    ]
    names, _, args = load_program(replace(program, source="\n".join(lines)))
    calls = []
    names[part.function] = lambda *values: calls.append(values)
    names[program.target](*args, *([None] if program.mesh else []))
    values = dict(zip(part.arguments, calls[0], strict=True))
    values.pop("mesh", None)
    return values


def wrong_submissions():
    """Yield a wrong submission to every fourth problem: each track, each kind of input."""
    catalogue = load_catalogue()
    for slug in sorted(catalogue.slugs)[::4]:
        problem = catalogue.load_problem(slug)
        if problem.parts[0].kind != "value":
            yield slug, min(path.stem for path in (problem.folder / "wrong").glob("*.py"))


@pytest.mark.parametrize(("slug", "name"), list(wrong_submissions()))
def test_the_minimal_failing_case_opens_and_records(pool, slug, name):
    problem = load_problem(slug)
    source = wrong_source(problem, name)
    judgement = judge_stored(pool, problem, source)
    program = debug_program(problem, source, judgement)
    minimal = judgement.counterexample
    assert program.source.startswith(source.rstrip("\n"))  # its lines keep their numbers
    assert program.mesh == minimal.mesh
    assert json.dumps(program.to_json())
    shown = {value["name"]: value["text"] for value in minimal.facts["inputs"]}
    for argument, value in passed_arguments(program, problem.parts[minimal.part - 1]).items():
        if not shown[argument].startswith("jax.random.key"):
            assert value_text(value) == shown[argument]
    recording = record_source(program.source, target=program.target, mesh=program.mesh or None)
    if judgement.verdict.code in ("VMA", "SPEC"):
        assert recording.failure.kind == "rejected"  # by JAX, in the debugger too
    else:
        assert recording.failure is None
        assert recording.outputs


MEAN = """import jax
def shard_map_psum(x, mesh=None):
    mesh = mesh or jax.sharding.Mesh(jax.devices()[:1], ("data",))
    a = mesh.axis_names[0]
    def body(x):
        return jax.lax.pmean(x.sum(), a)  # must be a psum
    return jax.shard_map(body, mesh=mesh, in_specs=jax.P(a), out_specs=jax.P())(x)
run_case = 1
"""


def test_the_recording_has_the_wrong_value_of_every_device(pool):
    problem = load_problem("shard-map-psum")
    judgement = judge_stored(pool, problem, MEAN)
    program = debug_program(problem, MEAN, judgement)
    assert program.target == "run_case_"  # the submission has a name of its own
    assert load_program(program)[0]["run_case"] == 1
    recording = record_source(program.source, target=program.target, mesh=program.mesh)
    (device, *_) = judgement.counterexample.facts["outputs"][0]["devices"]
    (output,) = recording.outputs
    assert f"{recording.values[output.value].groups[0].mean:g}" == device["holds"]
    line = MEAN.splitlines().index("        return jax.lax.pmean(x.sum(), a)  # must be a psum") + 1
    assert line in {step.line for step in recording.steps}


def test_examples_open_from_every_judgement(pool):
    problem = load_problem("shard-map-psum")
    run, submit = (judge_stored(pool, problem, MEAN, kind) for kind in ("run", "submit"))
    programs = [
        debug_program(problem, MEAN, run, "2, data=4"),
        debug_program(problem, MEAN, run, "example part 2, data=4"),
        debug_program(problem, MEAN, submit, "example 2, data=4"),
    ]
    assert programs[0] == programs[1] == programs[2]
    assert programs[0].mesh == "data=4"
    assert "example on data=4" in programs[0].title


def test_hidden_inputs_cannot_be_opened(pool):
    problem = load_problem("shard-map-psum")
    judgement = judge_stored(pool, problem, MEAN)
    for case in judgement.cases:
        with pytest.raises(CaseNotShown, match="are hidden"):
            debug_program(problem, MEAN, judgement, f"{case.part}, {case.name}")
    with pytest.raises(UnknownSubmission):
        debug_program(problem, MEAN, judgement, "data=5000")
    # A forged kind in a request is of no use: the seed decides, and examples have their own.
    forged = replace(judgement, kind="run")
    opened = debug_program(problem, MEAN, forged, "2, data=4")
    assert opened == debug_program(problem, MEAN, judgement, "example 2, data=4")


def test_what_cannot_be_stepped_through_is_refused(pool):
    problem = load_problem("shard-map-psum")
    solution = problem.read_text("solution.py")
    accepted = judge_stored(pool, problem, solution, "run")
    with pytest.raises(CaseNotShown, match="no minimal failing case"):
        debug_program(problem, solution, accepted)
    with pytest.raises(CaseNotShown, match="cannot be loaded"):
        debug_program(problem, "def f(:", accepted, "example data=2")
    failed = judge_stored(pool, problem, MEAN)
    facts = {key: value for key, value in failed.counterexample.facts.items() if key != "draw"}
    older = replace(failed, counterexample=replace(failed.counterexample, facts=facts))
    newer = replace(failed, content_version=failed.content_version + 1)
    for judgement in (older, newer):
        with pytest.raises(CaseNotShown, match="has changed"):
            debug_program(problem, MEAN, judgement)
    values = load_problem("will-it-fit")
    plain = judge_stored(pool, values, wrong_source(values, "average_of_all_devices"), "run")
    with pytest.raises(CaseNotShown, match="plain value"):
        debug_program(values, "x = 1", plain)


ARRAYS = [
    np.float32([[0.1, 2], [-3, 1e-20]]),
    np.float64(0.1),
    np.int32([1, -2]),
    np.zeros((0, 3), np.float32),
    np.array([True, False]),
    np.float32([np.nan, np.inf, -np.inf]),
    np.arange(1000, dtype=np.float32).reshape(10, 100) / 7,
    np.asarray(jnp.array([0.1, 3], jnp.bfloat16)),
    np.complex64([1 + 2j]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_is_written_bit_for_bit(array):
    names = {"_case_numpy": np, "_case_jax": jax}
    written = eval(_array_source(array), names)
    assert (written.dtype, written.shape) == (array.dtype, array.shape)
    assert written.tobytes() == array.tobytes()


def test_values_that_are_no_arrays_are_written_into_the_call():
    value = {"n": (3,), "spec": Spec("data", None, ("a", "b")), "s": [slice(0, 2), None, True, "a"]}
    text = _plain_source({**value, "nan": float("nan"), "key": Key(7)})
    assert ast.parse(text)
    written = eval(text, {"_case_jax": jax})
    assert written["spec"] == jax.P("data", None, ("a", "b"))
    assert (written["n"], written["s"]) == (value["n"], value["s"])
    assert np.isnan(written["nan"])
    assert jax.random.key_data(written["key"]).tolist() == [0, 7]
