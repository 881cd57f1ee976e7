"""The audit: every problem of the catalogue passes, and every fault is found."""

from __future__ import annotations

import shutil
import threading

import pytest

from shardlab.catalogue.problem import load_problem
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE, load_catalogue
from shardlab.course.audit import (
    audit_folder,
    audit_problem,
    audit_problems,
    unlisted_folders,
    with_few_meshes,
)
from shardlab.course.new_problem import new_problem
from shardlab.course.problem_lint import lint_problem
from shardlab.errors import UnknownProblem
from shardlab.judge.worker_pool import open_worker_pool

FOLDERS = sorted(path.parent for path in BUILT_IN_CATALOGUE.glob("*/*/problem.toml"))
by_slug = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool(hidden_paths=[str(BUILT_IN_CATALOGUE)]) as sandboxes:
        yield sandboxes


def edit(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def fault_text(audit):
    return "\n".join(map(str, audit.faults))


# ------------------------------------------------------------------------------ shardlab's own


def test_the_list_of_tracks_has_every_folder():
    assert unlisted_folders(load_catalogue()) == {}


@by_slug
def test_a_problem_has_no_lint_faults(folder):
    assert [str(fault) for fault in lint_problem(load_problem(folder))] == []


@by_slug
def test_a_problem_passes_the_audit(pool, folder):
    done = audit_problem(pool, load_problem(folder), simulate_wrong=False, mutants="none")
    assert done.ok, fault_text(done)
    assert done.n_wrong >= 3


# ---------------------------------------------------------------------- a catalogue of one's own


@pytest.fixture
def folder(tmp_path):
    """A new problem with one small mesh, so that trying it is quick; too few cases for mutants."""
    return shortened(new_problem("take-the-largest", "basics", tmp_path))


def shortened(made):
    edit(made / "problem.toml", "axes", 'meshes = ["data=2"]\nsimulated_meshes = []\naxes')
    return made


def test_a_catalogue_outside_the_package_is_audited(tmp_path):
    for slug in ("take-the-largest", "take-it-again"):
        shortened(new_problem(slug, "basics", tmp_path))
    audits = sorted(
        audit_problems(load_catalogue(tmp_path), (), n_workers=2, mutants="none"),
        key=lambda audit: audit.slug,
    )
    assert [(audit.slug, fault_text(audit)) for audit in audits] == [
        ("take-it-again", ""),
        ("take-the-largest", ""),
    ]
    # starter, solution and three wrong submissions on one mesh
    assert [(audit.n_cases, audit.n_wrong) for audit in audits] == [(5, 3), (5, 3)]


def test_fast_reads_everything_and_tries_the_solution_on_few_meshes(pool, tmp_path):
    made = new_problem("take-the-largest", "basics", tmp_path)
    edit(
        made / "wrong" / "own_largest.py", "# WA", "# SHARD"
    )  # wrong, but only judged in a full audit
    done = audit_problem(pool, load_problem(made), fast=True)
    assert done.ok, fault_text(done)
    assert (
        done.n_cases
        == sum(len(part.meshes) for part in with_few_meshes(load_problem(made)).parts)
        == 3
    )
    edit(made / "solution.py", "y - jax.lax.pmax", "y + jax.lax.pmax")
    edit(made / "hints.md", "## Hint 2", "## Hint 5")
    faults = audit_folder(pool, made, fast=True).faults
    assert [fault.rule for fault in faults] == ["hints.headings", "solution.fails"]
    assert faults[1].details[0].startswith("part 1, data=1: WA")


def test_every_fault_of_a_page_and_its_programs_is_found(pool, folder):
    page, wrong = folder / "statement.md", folder / "wrong"
    edit(page, "```text\n1.0", "```text\n2.0")
    edit(page, "[-50.0, 0.0", "[-50.0, 1.0")
    drawn = "x.astype(np.float32)"
    edit(folder / "reference.py", drawn, "np.array([30.0, 80.0, 50.0, 10.0], np.float32)")
    (folder / "starter.py").write_text((folder / "solution.py").read_text())
    edit(wrong / "own_largest.py", "# WA:", "# SHARD:")
    edit(wrong / "called_replicated.py", "# VMA:", "# VMA missing_psum:")
    edit(wrong / "gathered_first.py", "jnp.max(jax.lax.all_gather(y, axis))", "OF_ALL")
    edit(wrong / "gathered_first.py", "OF_ALL", "jax.lax.pmax(jnp.max(y), axis)")
    faults = audit_folder(pool, folder, mutants="none").faults
    assert [(fault.rule, fault.file) for fault in faults] == [
        ("examples.worked", "statement.md"),
        ("examples.doctest", "statement.md"),
        ("examples.hidden", "statement.md"),
        ("starter.passes", "starter.py"),
        ("wrong.unproven", "wrong/called_replicated.py"),
        ("wrong.unproven", "wrong/gathered_first.py"),
        ("wrong.unproven", "wrong/own_largest.py"),
    ]
    assert faults[0].details == ("it prints", "  1.0")
    assert page.read_text("utf-8").splitlines()[faults[1].line - 1].startswith(">>> np.asarray")
    assert faults[2].message == "An example has the inputs of data=2 of part 1."
    assert [fault.message for fault in faults[4:]] == [
        "It expects the cause missing_psum; data=2 of part 1 gives none.",
        "It expects COMM and passes.",
        "It expects SHARD, and data=2 of part 1 gives WA.",
    ]
    assert faults[-1].details[0].startswith("part 1, data=2: WA")


@pytest.mark.parametrize(
    ("rule", "file", "old", "new", "words"),
    [
        ("problem", "reference.py", "import numpy", "import nmpy", "No module named 'nmpy'"),
        (
            "problem",
            "reference.py",
            "def expected",
            "def wanted",
            "no function expected for part 1",
        ),
        ("problem", "reference.py", "np.max(x)", "np.max(y)", "NameError: name 'y'"),
        ("problem", "problem.toml", 'difficulty = "easy"', "", "'difficulty' is missing"),
        (
            "reference.inputs",
            "reference.py",
            '{"x": ',
            '{"k": 3, "x": ',
            "are k, x, not a dict of x; it calls take_",
        ),
        ("reference.inputs", "reference.py", 'return {"x": ', 'return 5, {"x": ', "are (5, {'x'"),
        ("reference.draw", "reference.py", "draw.rng", "np.random.default_rng()", "same seed"),
        ("reference.draw", "reference.py", "x - np.max(x)", "x.sort()", "expected modifies"),
    ],
)
def test_a_reference_that_cannot_be_used_is_found(pool, folder, rule, file, old, new, words):
    edit(folder / file, old, new)
    faults = audit_folder(pool, folder, fast=True).faults
    # Not always the first: what is drawn without a seed may also lack equal elements.
    fault = next(fault for fault in faults if fault.rule == rule)
    assert words in fault.message
    # The solution is judged all the same, and fails against the wrong expected result.
    others = [f.rule for f in faults if f is not fault and not f.rule.startswith("inputs.")]
    assert others == (["solution.fails"] if "sort" in new else [])


def test_a_solution_that_is_not_text_is_found(pool, folder):
    (folder / "solution.py").write_bytes(b"\xff\xfe")
    (fault,) = audit_folder(pool, folder, fast=True).faults
    assert (fault.rule, fault.file) == ("text.encoding", "solution.py")


def test_an_audit_that_is_stopped_ends_soon(tmp_path):
    for number in range(12):
        new_problem(f"take-{number}", "basics", tmp_path)
    threads_before = set(threading.enumerate())
    running = audit_problems(load_catalogue(tmp_path), (), fast=True, n_workers=2)
    assert next(running).ok
    running.close()  # as Ctrl-C does; the threads of the pool are joined at the exit
    started = set(threading.enumerate()) - threads_before
    assert [thread for thread in started if "ThreadPool" in thread.name] == []


def test_a_folder_in_another_track_than_its_listed_name_is_found(tmp_path):
    made = new_problem("take-the-largest", "basics", tmp_path)
    shutil.copytree(made, tmp_path / "more" / "take-the-largest")
    shutil.copytree(made, tmp_path / "more" / "take-it-again")
    assert unlisted_folders(load_catalogue(tmp_path)) == {
        "more/take-the-largest": tmp_path / "more" / "take-the-largest",
        "take-it-again": tmp_path / "more" / "take-it-again",
    }


def test_a_folder_that_is_not_listed_is_audited_and_reported(pool, folder):
    (folder.parents[1] / "tracks.toml").write_text("tracks = []\n")
    catalogue = load_catalogue(folder.parents[1])
    (done,) = audit_problems(catalogue, ["take-the-largest"], fast=True, mutants="none")
    assert [fault.rule for fault in done.faults] == ["tracks.unlisted"]
    with pytest.raises(UnknownProblem, match="Unknown problem 'take-the-smallest'"):
        list(audit_problems(catalogue, ["take-the-smallest"]))
