"""`shardlab check`: findings, exit codes, SARIF, and every way a program can be unusable.

Each call starts a process that loads JAX, so few calls hold many facts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import programs
import pytest
from click.testing import CliRunner

from shardlab.checks.check_codes import CODES
from shardlab.cli import main
from shardlab.cli.sarif import sarif
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, SuppressedFinding
from shardlab.findings.source import SourceLocation


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the programs, in which we stand."""
    for name in ("deadlock", "right", "bad"):
        text = getattr(programs, name.upper())
        (tmp_path / f"{name}.py").write_text(text.lstrip("\n"), "utf-8")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "imports.py").write_text("import nosuchthing\n")
    (tmp_path / "parses.py").write_text(
        "import argparse\nargparse.ArgumentParser(usage='none').error('no')\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*args):
    return CliRunner().invoke(main, ["check", *args], prog_name="shardlab")


# ---------------------------------------------------------------------------------------- findings


def test_a_deadlock_is_told_with_its_line_in_every_form(folder):
    done = check("deadlock.py:step", "--sarif", "a.sarif", "--json", "a.json", "--html", "a.html")
    assert done.exit_code == 1, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("error [hazard.deadlock] Not all devices reach the psum over 'data'")
    assert "  deadlock.py:12 (<lambda>)" in lines
    assert '    12 | lambda x: lax.pcast(lax.psum(x, "data"), "data", to="varying"),' in lines
    report = Report.from_json(json.loads((folder / "a.json").read_text()))
    assert report.codes == ("hazard.deadlock",)
    assert report.findings[0].where == SourceLocation("deadlock.py", 12, "<lambda>")
    assert "hazard.deadlock" in (folder / "a.html").read_text()
    (run,) = json.loads((folder / "a.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("hazard.deadlock", "error")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "deadlock.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 12}


def test_a_right_program_passes_on_the_meshes_given_with_arguments_named():
    # From the folder's module, with a tree of arguments that a function makes.
    done = check(
        "right:loss",
        "--args",
        "shape_of_batch",
        "--mesh",
        "data=2",
        "--mesh",
        "data=3",
        "--json",
        "-",
    )
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)  # what the program prints is not in it
    assert (data["ok"], data["findings"], data["meshes"]) == (True, [], ["data=2", "data=3"])


def test_a_script_is_checked_by_what_it_runs_and_its_output_stays_apart():
    done = check("right.py", "--json", "-", "--", "--differ", "--meant")
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("hello ['--differ', '--meant']\n")
    data = json.loads(done.stdout)
    assert data["program"] == "right.py"
    assert data["meshes"] == ["data=4"]
    (found,) = data["findings"]
    assert found["code"] == "hazard.replicas_differ"
    assert found["where"]["file"] == "right.py"
    assert found["shows"][:2] == ["data=0: [0. 2. 4. 6.]", "data=1: [16. 18. 20. 22.]"]
    (silenced,) = data["silenced"]
    assert silenced["reason"] == "the first row is what is wanted"


def test_a_script_that_would_hang_is_stopped_there():
    done = check("deadlock.py")
    assert done.exit_code == 1, done.output
    assert done.stdout.count("[hazard.deadlock]") == 1
    assert "deadlock.py:12" in done.stdout
    assert "note: the script was stopped where real devices would have hung" in done.stdout
    assert done.stderr == "before\n"


def test_a_script_that_ends_with_a_failure_fails_and_what_was_found_before_stays(folder):
    with (folder / "right.py").open("a") as file:
        file.write("    sys.exit('no data found')\n")
    done = check("right.py", "--", "--differ")
    assert done.exit_code == 2, done.output
    assert "error [hazard.replicas_differ]" in done.stdout
    assert "[program.exited] The program ended itself with the words: no data found" in done.stderr
    assert "where: right.py:" in done.stderr
    assert "as in shardlab check right.py -- --steps 2." in done.stderr


def test_a_script_without_sharding_says_so():
    done = check("bad.py")
    assert done.exit_code == 0, done.output
    assert "[program.no_communication] The script ran no shard_map and no jit" in done.stdout


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("args", "what", "fix"),
    [
        (["bed.py:f"], "[program.not_found] There is no file 'bed.py'.", "did you mean 'bad.py'?"),
        (["bad"], "[program.not_found] There is no file 'bad'.", "did you mean 'bad.py'?"),
        (
            ["bad.py:"],
            "[target.invalid_syntax] 'bad.py:' does not say which",
            "write file.py:function",
        ),
        (
            ["bad.py:step", "f32[4"],
            "[layout.invalid_syntax] A size was expected here.",
            "write sizes",
        ),
        (
            ["bad.py", "--args", "f"],
            "[target.invalid_syntax] --args gives the arguments of a",
            "name the",
        ),
        (
            ["bad.py:step", "--mesh", "data=0"],
            "[layout.invalid_size] The size of mesh axis",
            "a size",
        ),
        (
            ["bad.py:f", "--memory-limit", "x"],
            "[layout.invalid_syntax] An amount of bytes",
            "write a",
        ),
        # From here on a process is needed to know.
        (["no.such:f"], "[program.not_found] There is no module named 'no'.", "check the name"),
        (
            ["bad.py:stepp"],
            "[target.unknown_function] There is no function 'stepp'.",
            "did you mean 'step'",
        ),
        (
            ["bad.py:number"],
            "[target.unknown_function] 'number' is an int, not a",
            "name a function",
        ),
        (
            ["bad.py:step"],
            "[target.missing_arguments] 'step' needs 2 arguments (x, w)",
            "give shapes",
        ),
        (
            ["bad.py:step", "f32[4]"],
            "[target.invalid_arguments] 1 argument for step(x, w)",
            "give one",
        ),
        (
            ["bad.py:step", "--args", "need"],
            "[target.invalid_arguments] There is nothing called",
            "did",
        ),
        (
            ["bad.py:step", "--args", "needs"],
            "[target.invalid_arguments] needs() is to return",
            "let",
        ),
        (["broken.py:f"], "[program.raised] The program raised SyntaxError", "mend that line"),
        (
            ["imports.py"],
            "[program.raised] The program raised ModuleNotFoundError",
            "install 'nosuch",
        ),
        (["parses.py"], "[program.exited] The program ended itself with exit code 2.", "see what"),
        (
            ["bad.py:raises", "f32[2]"],
            "[program.raised] The program raised ValueError: no s",
            "see",
        ),
        (["bad.py:asks", "f32[2]"], "[program.raised] The program raised EOFError", "give the"),
        (
            ["bad.py:dies", "f32[2]"],
            "[program.crashed] The program's process ended with exit c",
            "look",
        ),
        (
            ["bad.py:allocates", "f32[2]", "--memory-limit", "1GiB"],
            "[program.memory_limit] The program wanted more memory than the 1 GiB",
            "try smaller",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_checked_has_a_message_in_three_parts_and_exit_code_two(args, what, fix):
    done = check(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    message = done.stderr[done.stderr.index("[") :]
    assert message.startswith(what)
    assert "\n  where: " in message
    assert f"\n  try:   {fix}" in message
    assert "src/shardlab" not in done.stderr
    if args[0] == "bad.py:raises":
        assert done.stderr.startswith(
            'Traceback (most recent call last):\n  File "bad.py", line 16'
        )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bad.py:f", "--json", "-", "--sarif", "-"], "--json and --sarif cannot both go to the"),
        (["bad.py:f", "--json", "no/such/a.json"], "--json no/such/a.json: there is no folder"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_at_once(args, message):
    done = check(*args)
    assert done.exit_code == 2
    assert message in done.stderr


# ------------------------------------------------------------------------------------------ limits


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # waiting to be buried is not alive
        return file.read().rpartition(")")[2].split()[0] != "Z"


def pids_of(folder, seconds=30):
    """The processes of `hangs`, once it has told them."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (folder / "pids").exists() and len(pids := (folder / "pids").read_text().split()) == 2:
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise AssertionError("the program did not start")


def all_gone(pids, seconds=5):
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux
def test_a_program_that_never_ends_is_stopped_with_its_children_and_its_flood(folder):
    done = check("bad.py:hangs", "f32[2]", "--time-limit", "4")
    assert done.exit_code == 124
    assert done.stdout == ""
    assert len(done.stderr) < 300_000
    assert "... the program printed more; the rest is not shown" in done.stderr
    message = done.stderr[done.stderr.rindex("[program") :]
    assert message.startswith("[program.time_limit] The program was still running after 4 s")
    assert "\n  where: shardlab check bad.py:hangs, while " in message
    assert all_gone(pids_of(folder))


@linux
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_ctrl_c_and_worse_leave_no_process_behind(folder, sent, code):
    command = [sys.executable, "-m", "shardlab", "check", "bad.py:hangs", "f32[2]"]
    with open("said", "wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        pids = pids_of(folder)
        process.send_signal(sent)
        assert process.wait(timeout=10) == code
        assert all_gone(pids)
        said = (folder / "said").read_text()
        assert "Traceback" not in said
        if sent == signal.SIGINT:
            assert said.endswith("interrupted; the program was stopped\n")
    finally:
        process.kill()
        process.wait()


def test_the_deadlock_is_told_in_under_three_seconds_without_jax_in_the_first_process():
    code = (
        "import sys; from shardlab.cli import main\n"
        "try: main(['check', 'deadlock.py:step'])\n"
        "except SystemExit as end: assert end.code == 1, end.code\n"
        "loaded = {'jax', 'jaxlib', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    ours, jax = [], []
    # Four times the import of JAX stands for three seconds while other work keeps the machine busy.
    while not ours or (min(ours) >= max(3, 4 * min(jax)) and len(ours) < 4):
        ours.append(seconds(code))
        jax.append(seconds("import jax"))
    assert min(ours) < max(3, 4 * min(jax))


def seconds(code):
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------- SARIF


def test_sarif_has_a_rule_for_every_code_and_a_place_for_every_result(folder):
    found = Finding(
        code="hazard.deadlock",
        severity="error",
        what="It hangs.",
        where=SourceLocation("a b.py", 3, "f"),
        fix="Do not.",
    )
    nowhere = Finding(code="program.no_communication", severity="info", what="Nothing.")
    far = Finding(
        code="waste.replicated",
        severity="warning",
        what="Large.",
        where=SourceLocation("/elsewhere/m.py", 7),
    )
    report = Report(findings=(found, far, nowhere), silenced=(SuppressedFinding(found, "known"),))
    data = sarif(report, program="a b.py")
    assert data["version"] == "2.1.0"
    assert data["$schema"].endswith("sarif-2.1.0.json")
    (run,) = data["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(CODES)
    for rule in rules:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["id"] in rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    results = run["results"]
    assert [result["level"] for result in results] == ["error", "warning", "note", "error"]
    for result in results:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] >= 1
    places = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in results]
    assert places[0] == {"uri": "a%20b.py", "uriBaseId": "%SRCROOT%"}
    assert places[1] == {"uri": "file:///elsewhere/m.py"}
    assert places[2] == places[0]
    assert results[0]["message"]["text"] == "It hangs.\nTry: Do not."
    assert results[3]["suppressions"] == [{"kind": "inSource", "justification": "known"}]
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == folder.as_uri() + "/"
