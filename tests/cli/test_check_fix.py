"""`shardlab check --fix`, `--diff` and `--write`: what is printed, and what happens to the file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.errors import FixFileChanged, FixUnwritable
from shardlab.findings.fix_search import Fix, FixSearch, RejectedEdit
from shardlab.findings.fix_text import fix_lines
from shardlab.findings.report import Report
from shardlab.fixes.write_fix import write_fix
from shardlab.render.terminal import lines_text

PROGRAM = """import jax
from jax.sharding import PartitionSpec as P

@jax.shard_map(in_specs=P("data"), out_specs=P())
def step(x):
    return jax.lax.psum((x**2).mean(), "data")  # the loss

step_args = ("f32[24]",)
"""
FIXED = PROGRAM.replace("psum", "pmean")


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def check(*args):
    # The search ends at three quarters of the limit, so a busy machine needs a long one.
    args = (*args, "--time-limit", "3600")
    return CliRunner().invoke(main, ["check", *args], prog_name="shardlab")


def test_a_fix_is_shown_and_not_written_then_written(file):
    shown = check("train.py:step", "--mesh", "data=4", "--fix", "--json", "report.json")
    assert shown.exit_code == 1, shown.output
    assert "fix: pmean instead of psum in line 6" in shown.stdout
    assert "are right on data=2, data=3, data=4, data=8, with 3 inputs on each." in shown.stdout
    assert '+    return jax.lax.pmean((x**2).mean(), "data")  # the loss' in shown.stdout
    assert file.read_text() == PROGRAM
    report = Report.from_json(json.loads((file.parent / "report.json").read_text()))
    assert report.fix_search.fixes[0].meshes[-1] == "data=8"

    written = check("train.py:step", "--mesh", "data=4", "--write")
    assert written.exit_code == 0, written.output
    assert "wrote train.py: pmean instead of psum in line 6" in written.stderr
    assert file.read_text() == FIXED


def test_the_diff_alone_is_what_git_applies(file):
    done = check("train.py:step", "--mesh", "data=4", "--diff")
    assert done.exit_code == 1
    assert done.stdout.startswith("--- a/train.py\n+++ b/train.py\n")
    subprocess.run(["git", "apply", "-"], input=done.stdout.encode(), check=True)
    assert file.read_text() == FIXED


def test_a_right_program_has_nothing_to_fix(file):
    file.write_text(FIXED)
    done = check("train.py:step", "--mesh", "data=4", "--write")
    assert done.exit_code == 0
    assert "There is nothing to fix." in done.stdout
    assert file.read_text() == FIXED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train.py", "--fix"), "--fix needs a function"),
        (("train.py:step", "--fix", "--no-run"), "--no-run cannot be used"),
    ],
)
def test_what_cannot_be_proven_is_rejected_at_once(arguments, words):
    done = check(*arguments)
    assert done.exit_code == 2
    text = str(done.exception) if words not in done.output else done.output
    assert words in text


def test_a_file_that_python_cannot_parse_is_reported_and_stays(file):
    file.write_text("def step(:\n")
    done = check("train.py:step", "--mesh", "data=4", "--write")
    assert done.exit_code == 2
    assert file.read_text() == "def step(:\n"


# ----------------------------------------------------------------------------- writing, without JAX


def fix_of(file):
    data, new = PROGRAM.encode(), FIXED.encode()
    start = data.index(b"psum")
    return Fix(
        what="pmean instead of psum in line 6",
        family="pmean for psum",
        file=str(file),
        line=6,
        diff="",
        start=start,
        end=start + 4,
        text="pmean",
        digest=hashlib.sha256(data).hexdigest(),
        new_digest=hashlib.sha256(new).hexdigest(),
        meshes=("data=4",),
        n_inputs=3,
        has_gradients=True,
    )


def test_a_file_that_changed_meanwhile_is_not_written(file):
    changed = PROGRAM + "# one more line\n"
    file.write_text(changed)
    with pytest.raises(FixFileChanged):
        write_fix(fix_of(file))
    assert file.read_text() == changed


def test_a_file_that_is_gone_or_a_damaged_edit_is_not_written(file):
    fix = fix_of(file)
    damaged = Fix.from_json({**fix.to_json(), "text": "pmax"})
    with pytest.raises(FixFileChanged):
        write_fix(damaged)
    file.unlink()
    with pytest.raises(FixUnwritable):
        write_fix(fix)
    assert list(file.parent.iterdir()) == []


def test_a_read_only_file_is_not_replaced(file):
    # As an ordinary user in a process of its own: these tests may run as root, who writes anything.
    code = (
        "import fcntl, json, os, sys\n"
        "from shardlab.findings.fix_search import Fix\n"
        "from shardlab.fixes.write_fix import write_fix\n"
        # Last: another user may not be able to read the interpreter's own files.
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "write_fix(Fix.from_json(json.loads(sys.argv[1])))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        read_only = Path(folder) / "train.py"
        read_only.write_text(PROGRAM)
        read_only.chmod(0o444)
        data = json.dumps(fix_of(read_only).to_json())
        done = subprocess.run([sys.executable, "-c", code, data], capture_output=True, text=True)
        assert "[fix.unwritable]" in done.stderr, done.stderr
        assert read_only.read_text() == PROGRAM


def test_two_writers_at_once_write_one_fix_and_the_other_is_refused(file):
    fix, results = fix_of(file), []
    barrier = threading.Barrier(2)

    def write():
        barrier.wait()
        try:
            write_fix(fix)
            results.append("written")
        except FixFileChanged:
            results.append("refused")

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["refused", "written"]
    assert file.read_text() == FIXED
    assert [path.name for path in file.parent.iterdir()] == ["train.py"]


def test_the_text_says_what_was_tried_and_verbose_lists_all():
    rejected = tuple(
        RejectedEdit(what=f"edit {n}", family=f"family {n % 6}", line=n, reason="no")
        for n in range(12)
    )
    search = FixSearch(rejected=rejected, note="late")
    short = lines_text(fix_lines(search, 80))
    assert "none could be proven" in short
    assert "family 0 ×2: no" in short
    assert "and 4 more; --verbose lists all" in short
    full = lines_text(fix_lines(search, 80, verbose=True))
    assert all(f"edit {n}: no" in full for n in range(12))
    assert FixSearch.from_json(json.loads(json.dumps(search.to_json()))) == search
