"""References of uploaded catalogues: executed in the sandbox, and never trusted."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from judge.small_problems import CALLS, IMPORTS, problem
from shardlab.catalogue.reference import load_reference
from shardlab.errors import InvalidReference, ReferenceFailed
from shardlab.judge import confined_reference
from shardlab.judge.cases import make_cases
from shardlab.judge.confined_reference import open_references
from shardlab.judge.judge import judge
from shardlab.judge.protocol.values import array_bytes, pack_value
from shardlab.judge.worker_pool import open_reference_pool, open_worker_pool
from shardlab.sandbox.process import ProcessLimits
from shardlab.sharding.mesh import Mesh

TOTAL = f"""{IMPORTS}
def total(x, mesh):
    return jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(x)
"""
REFERENCE = """import numpy as np
def inputs(draw):
    return {"x": draw.numbers(draw.mesh.axis_sizes[0] * 2)}
def expected(mesh, x):
    return np.sum(x, dtype=np.float32)
"""


class Sandboxes:
    """The pools of the judge and of references, as the server's workers have them."""

    def __init__(self, data_folder):
        self.workers = open_worker_pool(hidden_paths=[data_folder])
        self.references = open_reference_pool([data_folder])
        self.level, self.confinement = self.workers.level, self.workers.confinement

    def start_process(self, role, limits):
        pool = self.references if role == "reference" else self.workers
        return pool.start_process(role, limits)

    def close(self):
        self.workers.close()
        self.references.close()


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "secret.txt").write_text("the seeds of hidden cases")
    return folder


@pytest.fixture(scope="module")
def pool(data_folder):
    sandboxes = Sandboxes(data_folder)
    yield sandboxes
    sandboxes.close()


@pytest.fixture
def upload(tmp_path):
    """Return an uploaded problem with a reference of one's own."""

    def create(reference, name="total"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "reference.py").write_text(reference)
        return replace(problem(name), folder=folder, is_trusted=False)

    return create


def fail_reference(pool, uploaded, seed=1):
    """Return the judgement of a right submission whose reference fails."""
    judgement = judge(pool, uploaded, TOTAL, kind="submit", seed=seed)
    assert judgement.verdict.code == "IE"
    assert not judgement.counts
    assert "reference.py failed" in judgement.verdict.what
    assert "teacher" in judgement.verdict.fix
    return judgement.verdict


@pytest.mark.parametrize("name", sorted(CALLS))
def test_inputs_and_results_are_those_of_the_reference_in_process(pool, name):
    trusted = problem(name)
    uploaded = replace(trusted, is_trusted=False)
    part = trusted.parts[0]
    local = load_reference(trusted, part)
    with open_references(pool, uploaded) as references:
        confined = references[1]
        for case in make_cases(part, 7, 2):
            inputs = local.inputs(case.draw)
            assert packed(confined.inputs(case.draw)) == packed(inputs)
            mesh = case.draw.mesh
            for function in ("expected", "input_specs", "output_specs", "budget"):
                value = call(getattr(local, function), mesh, inputs)
                assert call(getattr(confined, function), mesh, inputs) == value


def call(function, mesh, inputs):
    """Return what a function returns as plain data, or the error that a submission must raise."""
    try:
        return packed(function(mesh, **inputs))
    except ValueError as error:
        return type(error).__name__, str(error)


def packed(value):
    data, arrays = pack_value(value)
    return data, [array_bytes(array) for array in arrays]


def test_uploaded_problem_is_judged_end_to_end(pool, upload):
    uploaded = upload(REFERENCE)
    assert judge(pool, uploaded, TOTAL, kind="submit", seed=1).passed
    twice = TOTAL.replace("jnp.sum,", "lambda v: 2 * jnp.sum(v),")
    judgement = judge(pool, uploaded, twice, kind="submit", seed=1)
    assert judgement.verdict.code == "WA"
    assert judgement.counterexample is not None


def test_uploaded_reference_is_never_executed_in_process(upload, tmp_path):
    uploaded = upload(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n{REFERENCE}")
    with pytest.raises(InvalidReference, match="sandbox only"):
        load_reference(uploaded, uploaded.parts[0])
    # Bytes that are no Python source are judged in the web process, without any process.
    judgement = judge(NoPool(), uploaded, b"\x00\xff", kind="submit", seed=1)
    assert judgement.verdict.code == "CE"
    assert not (tmp_path / "executed").exists()


class NoPool:
    level, confinement = "C", ""

    def start_process(self, role, limits):
        raise AssertionError("a process was started")


def test_reference_raises_the_error_that_submissions_must_raise(pool, upload):
    uploaded = upload(
        REFERENCE.replace("    return np.sum", "    raise ValueError('no sum')\n    return np.sum")
    )
    judgement = judge(pool, uploaded, TOTAL, kind="submit", seed=1)
    assert judgement.verdict.code == "WA"
    assert "expected ValueError (no sum)" in judgement.verdict.what


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("open({secret!r}).read()", "FileNotFoundError|PermissionError"),
        ("import os; os.listdir({folder!r})", "FileNotFoundError|PermissionError"),
        ("import socket; socket.socket()", "PermissionError|OSError"),
        ("import os; os.fork()", "PermissionError|OSError|BlockingIOError"),
        ("import subprocess; subprocess.run(['/bin/true'])", "Error"),
        ("open('/tmp/x', 'w')", "Error"),
        ("open('x', 'w')", "Error"),
        ("import os; os.kill(os.getppid(), 9)", "Error|ended"),
        ("import os; os._exit(0)", "ended by itself"),
        ("import ctypes; ctypes.string_at(0)", "ended by itself"),
        ("raise SystemExit", "SystemExit"),
        ("print('x' * 50_000_000, flush=True)", "more than is allowed"),
        ("import os; os.write(4, b'garbage' * 100)", "Error|else than a result|cannot be used"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("place", ["import", "inputs", "expected"])
def test_attack_of_a_reference_is_a_failure_of_the_problem(
    pool, upload, data_folder, attack, reason, place
):
    secret = data_folder / "secret.txt"
    line = attack.format(secret=str(secret), folder=str(data_folder))
    source = {
        "import": f"{line}\n{REFERENCE}",
        "inputs": REFERENCE.replace("    return {", f"    {line}\n    return {{", 1),
        "expected": REFERENCE.replace("    return np.sum", f"    {line}\n    return np.sum", 1),
    }[place]
    verdict = fail_reference(pool, upload(source))
    assert "seeds of hidden" not in str(verdict)
    assert re.search(reason, verdict.what), verdict.what
    # The pool works on.
    assert judge(
        pool, replace(problem("total"), is_trusted=False), TOTAL, kind="run", seed=0
    ).passed


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("while True: pass", ProcessLimits(cpu_seconds=1.0), "time limit"),
        ("import time; time.sleep(600)", ProcessLimits(idle_seconds=1.0), "time limit"),
        ("keep = bytearray(3 << 30); keep[::4096] = keep[::4096]", None, "memory|MemoryError"),
        ("return {'x': np.zeros(1 << 22)}", None, "else than a result"),
    ],
)
def test_limits_of_a_reference(pool, upload, monkeypatch, code, limits, reason):
    if limits is not None:
        monkeypatch.setattr(confined_reference, "LIMITS", limits)
    uploaded = upload(REFERENCE.replace("    return {", f"    {code}\n    return {{", 1))
    verdict = fail_reference(pool, uploaded)
    assert re.search(reason, verdict.what), verdict.what


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return {", "return object() or {"),
        ("return {", "return 3 or {"),
        ("return {", "return {1: 2} or {"),
        ("return {", "return {'x': [object()]} or {"),
        ("return {", "return {'x': np.array([None, 1], dtype=object)} or {"),
        ("return np.sum", "return lambda: np.sum"),
        ("return np.sum", "return 10 ** 400 or np.sum"),
        ("return np.sum", "return 'x' * 100_000 or np.sum"),
        ("", "def budget(mesh, x): return {'psum': -1}\n"),
        ("", "def budget(mesh, x): return {'psum': 'many'}\n"),
        ("", "def budget(mesh, x): return {'unknown': 1}\n"),
        ("", "def output_specs(mesh): return 'data'\n"),
        ("", "def input_specs(mesh): return {'x': 3}\n"),
        ("", "def input_specs(mesh): return [1]\n"),
        ("", "def properties(mesh, inputs, result): return ['x' * 5000]\n"),
        ("", "def properties(mesh, inputs, result): return [('no_such_cause', 'x')]\n"),
        ("", "def properties(mesh, inputs, result): return [3]\n"),
    ],
)
def test_garbage_of_a_reference_is_a_failure_of_the_problem(pool, upload, old, new):
    source = REFERENCE.replace(old, new, 1) if old else REFERENCE + new
    fail_reference(pool, upload(source))


def test_nan_and_wrong_shapes_of_a_reference_end_in_a_verdict(pool, upload):
    nan = upload(REFERENCE.replace("np.sum(x, dtype=np.float32)", "np.float32('nan')"))
    assert judge(pool, nan, TOTAL, kind="submit", seed=1).verdict.code == "WA"
    shape = replace(nan, folder=nan.folder.parent / "other")
    shape.folder.mkdir()
    (shape.folder / "reference.py").write_text(REFERENCE.replace("np.sum(x, ", "np.zeros((3, 2), "))
    assert judge(pool, shape, TOTAL, kind="submit", seed=1).verdict.code == "SHAPE"


def test_reference_learns_nothing_of_a_submission_but_its_result(pool, upload):
    """Every name that the reference can reach is searched for the submission's source."""
    spy = REFERENCE + (
        "def properties(mesh, inputs, result):\n"
        "    import gc, os, sys\n"
        "    marker = 'a_name_of_the_' + 'submission'\n"
        "    texts = [o for o in gc.get_objects() if isinstance(o, (str, bytes))]\n"
        "    texts += [repr(sys.modules), repr(os.environ), open('/proc/self/maps').read()\n"
        "              if os.path.exists('/proc/self/maps') else '']\n"
        "    seen = any(marker in str(text) for text in texts)\n"
        "    return ['It was seen.'] if seen else []\n"
    )
    submission = TOTAL + "\na_name_of_the_submission = 'a_name_of_the_submission'\n"
    assert judge(pool, upload(spy), submission, kind="submit", seed=1).passed


def test_submission_reads_neither_the_reference_nor_its_memory(pool, upload):
    """The expected values are in another process, which the submission cannot see or touch."""
    marker = "marker_of_the_reference"
    uploaded = upload(f"{REFERENCE}\n{marker} = '{marker}'\n")
    submission = f"""{IMPORTS}
import gc, os
def total(x, mesh):
    name = 'marker_of_' + 'the_reference'
    assert not any(name in o for o in gc.get_objects() if isinstance(o, str))
    for pid in range(1, 40):
        try:
            open(f'/proc/{{pid}}/mem', 'rb')
        except OSError:
            continue
        if pid != os.getpid():
            raise RuntimeError('another process is readable')
    return jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(x)
"""
    assert judge(pool, uploaded, submission, kind="submit", seed=1).passed


def test_second_failure_needs_no_second_process(pool, upload):
    uploaded = upload(
        REFERENCE.replace("    return {", "    import os; os._exit(1)\n    return {", 1)
    )
    with open_references(pool, uploaded) as references:
        reference = references[1]
        draw = make_cases(uploaded.parts[0], 1, 2)[0].draw
        with pytest.raises(ReferenceFailed, match="ended by itself"):
            reference.inputs(draw)
        n_forks = pool.references.statistics().n_forks
        with pytest.raises(ReferenceFailed, match="ended by itself"):
            reference.expected(Mesh(data=1), x=1)
        assert pool.references.statistics().n_forks == n_forks


def test_missing_function_is_named(pool, upload):
    verdict = fail_reference(pool, upload("def inputs(draw):\n    return {}\n"))
    assert "There is no function expected for part 1" in verdict.what


def test_syntax_error_has_its_line(pool, upload):
    verdict = fail_reference(pool, upload(f"{REFERENCE}\nx = (\n"))
    assert "SyntaxError" in verdict.what
    assert "line" in verdict.where
