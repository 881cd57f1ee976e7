"""The mutation audit: a hole in the inputs of a problem is a mutant that survives."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from shardlab.catalogue.problem import load_problem
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.course.audit import check_mutants
from shardlab.course.audit_exceptions import AuditExceptions, load_exceptions
from shardlab.course.float32_numpy import Float32Numpy
from shardlab.course.input_variety import check_inputs
from shardlab.course.mutable_source import Execution, MutableSource, TooManyIterations
from shardlab.course.mutation_audit import score_reference
from shardlab.course.mutation_operators import expression_replacements, parse
from shardlab.course.new_problem import new_problem
from shardlab.course.solution_mutants import score_solution
from shardlab.errors import InvalidProblem
from shardlab.judge.worker_pool import open_worker_pool

# A dimension that differs from draw to draw, and numbers without a property that all of them have.
GOOD = """
    n = draw.mesh.axis_sizes[0] * int(draw.rng.integers(1, 4))
    x = (draw.rng.integers(-30, 31, n) / 2).astype(np.float32)
"""


def write_problem(tmp_path, *, call, inputs, expected, accepts=""):
    """Create a problem with this reference; its other files are those of the template."""
    folder = new_problem("take-the-largest", "basics", tmp_path)
    toml = folder / "problem.toml"
    text = toml.read_text("utf-8").replace("take_the_largest(x, mesh)", call)
    toml.write_text(text.replace("axes", 'simulated_meshes = ["data=16"]\naxes'), "utf-8")
    reference = f"import numpy as np\n\n\ndef inputs(draw):{inputs}\n\n{expected}\n\n{accepts}\n"
    (folder / "reference.py").write_text(reference, "utf-8")
    return load_problem(folder)


def survivors(problem, **options):
    exceptions = load_exceptions(problem)
    score = score_reference(problem, seed=1, exceptions=exceptions, n_seeds=2, **options)
    return [survivor.name for survivor in score.survivors]


# ------------------------------------------------------------------------------------ known holes

HOLES = {
    "a learning rate that is always 0.5": (
        "step(x, lr, mesh)",
        f'{GOOD}    return {{"x": x, "lr": 0.5}}',
        "def expected(mesh, x, lr):\n    return x - lr * 2 * x",
        ["argument lr -> 0.5", "argument lr -> of another draw", "expected: lr -> 0.5"],
    ),
    "a maximum that is always x.size": (
        "scale(x, mesh)",
        """
    n = draw.mesh.axis_sizes[0] * int(draw.rng.integers(1, 4))
    return {"x": draw.rng.permutation(np.arange(1, n + 1)).astype(np.float32)}""",
        "def expected(mesh, x):\n    return np.max(x)",
        ["result -> of another draw with these shapes", "argument x -> rounded"],
    ),
    "a sum that follows from the shape": (
        "total(x, mesh)",
        """
    n = draw.mesh.axis_sizes[0] * 3
    return {"x": draw.rng.permutation(np.arange(4, n + 4)).astype(np.float32)}""",
        "def expected(mesh, x):\n    return np.sum(x)",
        ["result -> of another draw of this case", "result -> of another draw with these shapes"],
    ),
    "a head size that is always 4": (
        "score(x, mesh)",
        """
    n = draw.mesh.axis_sizes[0] * int(draw.rng.integers(1, 4))
    return {"x": (draw.rng.integers(-30, 31, (n, 4)) / 2).astype(np.float32)}""",
        "def expected(mesh, x):\n    return x.sum(1) / np.sqrt(x.shape[1])",
        ["expected: np.sqrt(x.shape[1]) -> 2.0"],
    ),
    "gradients that are never zero": (
        "normalize(x, mesh)",
        f'{GOOD}    return {{"x": np.where(x == 0, 1, x).astype(np.float32)}}',
        "def expected(mesh, x):\n    return x / (np.abs(x) + 1e-8)",
        ["expected: np.abs(x) + 1e-08 -> np.abs(x)", "argument x -> zeros set to 1"],
    ),
    "later stages that are never negative": (
        "pipeline(x, b, mesh)",
        f'{GOOD}    return {{"x": x, "b": draw.rng.integers(1, 4, 3).astype(np.float32)}}',
        """def expected(mesh, x, b):
    for bias in b:
        x = np.maximum(x + bias, 0)
    return x""",
        ["expected: np.maximum(x + bias, 0) -> x + bias, after the first time"],
    ),
    "a spread that is too small for overflow": (
        "softmax(x, mesh)",
        f'{GOOD}    return {{"x": x}}',
        """def expected(mesh, x):
    exps = np.exp(x.astype(np.float64) - np.max(x))
    return (exps / exps.sum()).astype(np.float32)""",
        ["expected: x.astype(np.float64) - np.max(x) -> x.astype(np.float64)"],
    ),
    "the squared norm compared": (
        "clip(x, limit, mesh)",
        f'{GOOD}    return {{"x": x, "limit": 1e6 if draw.number % 2 else 1e-6}}',
        """def expected(mesh, x, limit):
    norm = np.sqrt(np.sum(x**2))
    return x if norm < limit else np.zeros_like(x)""",
        ["expected: np.sqrt(np.sum(x ** 2)) -> np.sum(x ** 2)"],
    ),
    "an answer that is a function of the call number": (
        "fits(x, limit, mesh)",
        f'{GOOD}    return {{"x": x, "limit": float(np.sum(x)) - draw.number % 2}}',
        "def expected(mesh, x, limit):\n    return np.sum(x) <= limit",
        ["result -> of another draw of this case"],
    ),
    "a result on many devices that does not depend on x": (
        "decay(x, mesh)",
        f'{GOOD}    return {{"x": x}}',
        """def expected(mesh, x):
    return 1 + x * 0.25 ** mesh.n_devices""",
        ["argument x -> zeros, on simulated meshes only"],
    ),
    "an integer division that is always exact": (
        "half(x, k, mesh)",
        f'{GOOD}    return {{"x": x, "k": int(draw.rng.integers(1, 50)) * 4}}',
        "def expected(mesh, x, k):\n    return x * (k // 2)",
        ["expected: k // 2 -> -(-k // 2)"],
    ),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_is_found(tmp_path, hole):
    call, inputs, expected, names = HOLES[hole]
    problem = write_problem(tmp_path, call=call, inputs=inputs, expected=expected)
    assert set(names) <= set(survivors(problem))


def test_inputs_that_decide_kill_every_mutant(tmp_path):
    problem = load_problem(new_problem("take-the-largest", "basics", tmp_path))
    faults, score = check_mutants(problem, seed=1)
    assert [str(fault) for fault in faults] == []
    assert (score.percent, score.n_killed > 60, score.n_equivalent > 0) == (100.0, True, True)


# ------------------------------------------------------------------------- equivalent mutants


def test_a_mutant_that_no_input_can_show_is_equivalent_and_not_killed(tmp_path):
    problem = write_problem(
        tmp_path,
        call="largest(x, mesh)",
        inputs=f'{GOOD}    return {{"x": x}}',
        expected="def expected(mesh, x):\n    return np.max(np.flip(x))",
    )
    score = score_reference(problem, seed=1, exceptions=AuditExceptions(), n_seeds=1)
    # Flipping, rolling and sorting do not change a maximum.
    names = [survivor.name for survivor in score.survivors]
    assert not any("flip" in name or "sorted" in name for name in names)
    assert score.n_equivalent >= 5


def test_a_difference_by_rounding_alone_makes_no_survivor(tmp_path):
    problem = write_problem(
        tmp_path,
        call="cancel(x, mesh)",
        inputs=f'{GOOD}    return {{"x": np.round(x)}}',
        # 0 for every x: sums of integers are exact, those of other float32 numbers are not.
        expected="""def expected(mesh, x):
    return np.float32(1e5) * (np.sum(x) - np.sum(np.flip(x)))""",
    )
    assert "expected: np.flip(x) -> x" not in survivors(problem)


def test_accepts_excludes_inputs_that_the_statement_rules_out(tmp_path):
    parts = {
        "call": "root(x, mesh)",
        "inputs": f'{GOOD}    return {{"x": np.abs(x)}}',
        "expected": "def expected(mesh, x):\n    return x / 2",
    }
    name = "argument x -> absolute values"
    assert name in survivors(write_problem(tmp_path / "any", **parts))
    accepts = "def accepts(mesh, x):\n    return x.min() >= 0"
    assert name not in survivors(write_problem(tmp_path / "some", **parts, accepts=accepts))


def test_a_listed_mutant_does_not_count_and_one_that_does_not_survive_is_a_fault(tmp_path):
    call, inputs, expected, _ = HOLES["a learning rate that is always 0.5"]
    problem = write_problem(tmp_path, call=call, inputs=inputs, expected=expected)
    audit = problem.folder / "audit.toml"
    entries = ["*lr*", "expected: x -> x[:]"]
    audit.write_text(
        "".join(f'[[equivalent]]\nmutant = "{name}"\nreason = "a test"\n' for name in entries)
    )
    assert not any("lr" in name for name in survivors(problem))
    score = score_reference(problem, seed=1, exceptions=load_exceptions(problem), n_seeds=1)
    assert score.unused_exceptions == ("expected: x -> x[:]",)
    assert [fault.rule for fault in score.faults if fault.file == "audit.toml"] == ["audit.unused"]
    audit.write_text('[[equivalent]]\nmutant = "x"\n')
    with pytest.raises(InvalidProblem, match="'reason' is missing"):
        load_exceptions(problem)


def test_a_survivor_is_reported_with_its_line(tmp_path):
    call, inputs, expected, _ = HOLES["a head size that is always 4"]
    problem = write_problem(tmp_path, call=call, inputs=inputs, expected=expected)
    score = score_reference(problem, seed=1, exceptions=AuditExceptions(), n_seeds=1)
    fault = next(fault for fault in score.faults if "-> 2.0" in fault.message)
    lines = (problem.folder / "reference.py").read_text("utf-8").splitlines()
    assert fault.details == ("return x.sum(1) / np.sqrt(x.shape[1])",)
    assert lines[fault.line - 1].strip() == fault.details[0]
    assert score.to_json()["survivors"][0]["file"] == "reference.py"


# ---------------------------------------------------------------------------- variety of inputs


def input_faults(problem):
    return {
        (fault.rule, fault.message.split(": ", 1)[1])
        for fault in check_inputs(problem, load_exceptions(problem), seed=1)
    }


def test_arguments_that_do_not_vary_are_found_even_if_the_reference_ignores_them(tmp_path):
    problem = write_problem(
        tmp_path,
        call="same(x, k, flag, mesh)",
        inputs="""
    x = np.arange(3.0 * draw.mesh.axis_sizes[0], dtype=np.float32) + draw.rng.integers(9)
    return {"x": x, "k": (1, 2)[draw.number % 2], "flag": bool(draw.rng.integers(2))}""",
        expected="def expected(mesh, x, k, flag):\n    return x",
    )
    faults = input_faults(problem)
    assert {rule for rule, _ in faults} == {
        *("inputs.fixed", "inputs.few", "inputs.shape", "inputs.size_one", "inputs.ties")
    }
    assert ("inputs.few", "k has few values in the cases of a seed: 1, 2.") in faults
    assert not any("flag" in message for _, message in faults)
    entry = '[[inputs]]\nargument = "{}"\nrule = "{}"\nreason = "a test"\n'
    (problem.folder / "audit.toml").write_text(
        entry.format("k", "inputs.few") + entry.format("flag", "inputs.fixed")
    )
    rules = [fault.rule for fault in check_inputs(problem, load_exceptions(problem), seed=1)]
    assert "inputs.few" not in rules
    assert rules[-1] == "audit.unused"


# ------------------------------------------------------------------------------------- operators


@pytest.mark.parametrize(
    ("expression", "mutant"),
    [
        ("a + b", "a"),
        ("a @ b", "b @ a"),
        ("a < b", "a <= b"),
        ("0.5", "1.0"),
        ("np.sum(x)", "np.mean(x)"),
        ("np.sum(x)", "x.ravel()[0]"),
        ("x.max(axis=1, keepdims=True)", "x[:, :1]"),
        ("x.sum(axis=1)", "x.sum(axis=0)"),
        ("np.where(c, a, b)", "a"),
        ("np.sqrt(x)", "x"),
        ("a if c else b", "b"),
        ("x[1:n]", "x[1:]"),
        ("x.T", "x"),
        ("a // b", "-(-a // b)"),
        ("jax.lax.psum(x, axis)", "jax.lax.pmean(x, axis)"),
        ("jax.lax.psum(x, axis)", "x"),
        ("mesh.axis_sizes[0]", "mesh.n_devices"),
        ("scores.argmax()", "scores.argmin()"),
        ("scores.argmax()", "len(scores) - 1 - scores[::-1].argmax()"),
        ("P(None, axis)", "P(axis, None)"),
        ("P(axis)", "P()"),
    ],
)
def test_operators(expression, mutant):
    mutants = [ast.unparse(other) for other in expression_replacements(parse(expression), ())]
    assert mutant in mutants
    assert expression not in mutants


SOURCE = """
LIMIT = 3

def f(n):
    total = 0
    while n > 0:
        total, n = total + n, n - 1
    return helper(total)

def helper(total):
    return total - LIMIT

def unused(n):
    return n + 1
"""


def run_edit(source, edit, *arguments):
    execution = Execution(when=edit.when)
    namespace = dict(execution.names)
    exec(source.compile_edit(edit), namespace)
    return namespace["f"](*arguments)


def test_functions_that_the_root_calls_are_mutated_and_endless_loops_end():
    source = MutableSource(SOURCE, "f.py", ["f"])
    edits = list(source.iterate_edits())
    assert {edit.function for edit in edits} == {"f", "helper", "module"}
    endless = next(edit for edit in edits if edit.name == "f: n - 1 -> n")
    with pytest.raises(TooManyIterations):
        run_edit(source, endless, 3)
    dropped = next(edit for edit in edits if edit.name == "helper: total - LIMIT -> total")
    assert run_edit(source, dropped, 3) == 6
    assert source.line_text(dropped.line) == "return total - LIMIT"
    # An edit leaves no trace in the tree.
    assert all(edit.before == ast.unparse(parse(edit.before)) for edit in edits[-3:])
    assert "__tick__" not in source.unparse_edit(dropped)


def test_float32_overflows_where_a_submission_would():
    narrow = Float32Numpy()
    x = np.float32([100.0]).astype(narrow.float64) / narrow.sqrt(4)
    assert x.dtype == np.float32
    with np.errstate(over="ignore"):
        assert narrow.exp(2 * x)[0] == np.inf


# ---------------------------------------------------------------------- mutants of the solution


def test_the_judge_rejects_the_mutants_of_a_solution_or_they_survive(tmp_path):
    folder = new_problem("take-the-largest", "basics", tmp_path)
    toml = folder / "problem.toml"
    text = toml.read_text("utf-8")
    meshes = 'meshes = ["data=2"]\nsimulated_meshes = []\naxes'
    toml.write_text(text.replace("axes", meshes), "utf-8")
    solution = folder / "solution.py"
    # A bound that no input reaches: mutants of it are right too.
    text = solution.read_text("utf-8").replace("y - jax.lax", "jnp.minimum(y, 1e9) - jax.lax")
    solution.write_text(text, "utf-8")
    with open_worker_pool(hidden_paths=[str(tmp_path)]) as pool:
        score = score_solution(pool, load_problem(folder), seed=1, exceptions=AuditExceptions())
    assert score.n_killed >= 10
    assert score.n_equivalent >= 1  # 2e9 in place of 1e9
    names = [survivor.name for survivor in score.survivors]
    assert not any("psum" in name or "pmax" in name for name in names)


# --------------------------------------------------------------------------- shardlab's catalogue

FOLDERS = sorted(path.parent for path in BUILT_IN_CATALOGUE.glob("*/*/problem.toml"))


@pytest.mark.long
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_hidden_cases_kill_every_mutant_of_the_reference(folder: Path):
    faults, score = check_mutants(load_problem(folder), seed=1)
    assert [str(fault) for fault in faults] == []
    assert score.percent == 100.0
