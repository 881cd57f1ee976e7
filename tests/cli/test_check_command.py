"""`shardlab check`: findings, exit codes, SARIF, and every way a program can be unusable.

Each call starts a process that loads JAX, so few calls hold many facts.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time

import programs
import pytest
from click.testing import CliRunner

from shardlab.checks.check_codes import CODES
from shardlab.cli import main
from shardlab.cli.sarif import report_to_sarif
from shardlab.execution import worker_client
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, SuppressedFinding
from shardlab.findings.source import SourceLocation


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with the programs."""
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


def test_a_deadlock_is_reported_with_its_line_in_every_format(folder):
    done = check("deadlock.py:step", "--sarif", "a.sarif", "--json", "a.json", "--html", "a.html")
    assert done.exit_code == 1, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "error [hazard.deadlock] Some devices never reach the psum over 'data'"
    )
    assert "  deadlock.py:12 (<lambda>)" in lines
    assert '    12 | lambda x: lax.pcast(lax.psum(x, "data"), "data", to="varying"),' in lines
    report = Report.from_json(json.loads((folder / "a.json").read_text()))
    assert report.codes == ("hazard.deadlock",)
    assert report.findings[0].where == SourceLocation("deadlock.py", 12, "<lambda>")
    assert "hazard.deadlock" in (folder / "a.html").read_text()
    (run,) = json.loads((folder / "a.sarif").read_text())["runs"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("hazard.deadlock", "error")
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "deadlock.py", "uriBaseId": "%SRCROOT%"}
    assert location["region"] == {"startLine": 12}


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


def test_a_script_is_checked_by_what_it_runs_and_its_output_stays_separate():
    done = check("right.py", "--json", "-", "--", "--differ", "--meant")
    assert done.exit_code == 1, done.output
    assert done.stderr.startswith("hello ['--differ', '--meant']\n")
    data = json.loads(done.stdout)
    assert data["program"] == "right.py"
    assert data["meshes"] == ["data=4"]
    (finding,) = data["findings"]
    assert finding["code"] == "hazard.replicas_differ"
    assert finding["where"]["file"] == "right.py"
    assert finding["shows"][:2] == ["data=0: [0. 2. 4. 6.]", "data=1: [16. 18. 20. 22.]"]
    (suppressed,) = data["suppressed"]
    assert suppressed["reason"] == "the first row is what is wanted"


def test_a_script_that_would_hang_is_stopped_there():
    done = check("deadlock.py")
    assert done.exit_code == 1, done.output
    assert done.stdout.count("[hazard.deadlock]") == 1
    assert "deadlock.py:12" in done.stdout
    assert (
        "note: the script was stopped at a deadlock: real devices would block forever"
        in done.stdout
    )
    assert done.stderr == "before\n"


def test_a_script_that_ends_with_a_failure_fails_and_findings_so_far_are_shown(folder):
    with (folder / "right.py").open("a") as file:
        file.write("    sys.exit('no data found')\n")
    done = check("right.py", "--", "--differ")
    assert done.exit_code == 2, done.output
    assert "error [hazard.replicas_differ]" in done.stdout
    assert "[program.exited] The program exited with the message: no data found" in done.stderr
    assert "where: right.py:" in done.stderr
    assert "as in shardlab check right.py -- --steps 2." in done.stderr


def test_a_script_without_sharding_is_reported_as_not_compared():
    done = check("bad.py")
    assert done.exit_code == 4, done.output
    assert "values were not compared" in done.stdout
    assert "[program.no_communication] The script ran no shard_map and no jit" in done.stdout


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("args", "what", "fix"),
    [
        (["bed.py:f"], "[program.not_found] No such file: 'bed.py'.", "Did you mean 'bad.py'?"),
        (["bad"], "[program.not_found] No such file: 'bad'.", "Did you mean 'bad.py'?"),
        (
            ["bad.py:"],
            "[target.invalid_syntax] 'bad.py:' does not name a",
            "write file.py:function",
        ),
        (
            ["bad.py:step", "f32[4"],
            "[layout.invalid_syntax] ']' is missing at the end.",
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
        (["no.such:f"], "[program.not_found] No module named 'no'.", "check the name"),
        (
            ["bad.py:stepp"],
            "[target.unknown_function] Unknown function 'stepp'.",
            "Did you mean 'step'",
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
            "[target.invalid_arguments] The file has no value named 'need'",
            "Did",
        ),
        (
            ["bad.py:step", "--args", "needs"],
            "[target.invalid_arguments] needs() must return",
            "let",
        ),
        (["broken.py:f"], "[program.raised] The program raised SyntaxError", "fix that line"),
        (
            ["imports.py"],
            "[program.raised] The program raised ModuleNotFoundError",
            "install 'nosuch",
        ),
        (["parses.py"], "[program.exited] The program exited with code 2.", "see what"),
        (
            ["bad.py:raises", "f32[2]"],
            "[program.raised] The program raised ValueError: no s",
            "see",
        ),
        (["bad.py:asks", "f32[2]"], "[program.raised] The program raised EOFError", "pass what"),
        (
            ["bad.py:dies", "f32[2]"],
            "[program.crashed] The program's process ended with exit c",
            "look",
        ),
        (
            ["bad.py:allocates", "f32[2]", "--memory-limit", "1GiB"],
            "[program.memory_limit] The program needed more memory than its limit of 1.1 GB",
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
        (
            ["bad.py:f", "--json", "-", "--sarif", "-"],
            "--json and --sarif cannot both be",
        ),
        (
            ["bad.py:f", "--json", "no/such/a.json"],
            "a.json: the folder 'no/such' does not exist",
        ),
    ],
)
def test_outputs_that_cannot_be_written_are_rejected_at_once(args, message):
    done = check(*args)
    assert done.exit_code == 2
    assert message in done.stderr


# ------------------------------------------------------------------------------------------ limits


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # a zombie is not alive
        return file.read().rpartition(")")[2].split()[0] != "Z"


def pids_of(folder, seconds=600):
    """Return the processes of `hangs`, once it has written them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (folder / "pids").exists() and len(pids := (folder / "pids").read_text().split()) == 2:
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise AssertionError("the program did not start")


def all_ended(pids, seconds=600):
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class ProgramClock:
    """A clock that starts when the program has started, however long JAX takes to load."""

    def __init__(self, folder):
        self._pids = folder / "pids"
        self._start = None

    def monotonic(self):
        if self._start is None and self._pids.exists():
            self._start = time.monotonic()
        return 0.0 if self._start is None else time.monotonic() - self._start


@linux
def test_a_program_that_never_ends_is_stopped_with_its_children_and_its_output(folder, monkeypatch):
    monkeypatch.setattr(worker_client, "time", ProgramClock(folder))
    done = check("bad.py:hangs", "f32[2]", "--time-limit", "4")
    assert done.exit_code == 124
    assert done.stdout == ""
    assert len(done.stderr) < 300_000
    assert "... the program printed more; the rest is not shown" in done.stderr
    message = done.stderr[done.stderr.rindex("[program") :]
    assert message.startswith("[program.time_limit] The program was still running after 4 s")
    assert "\n  where: shardlab check bad.py:hangs, while " in message
    assert all_ended(pids_of(folder))


@linux
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_ctrl_c_and_a_kill_leave_no_process_behind(folder, sent, code):
    command = [sys.executable, "-m", "shardlab", "check", "bad.py:hangs", "f32[2]"]
    with open("output", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        pids = pids_of(folder)
        process.send_signal(sent)
        assert process.wait(timeout=600) == code
        assert all_ended(pids)
        text = (folder / "output").read_text()
        assert "Traceback" not in text
        if sent == signal.SIGINT:
            assert text.endswith("interrupted; the program was stopped\n")
    finally:
        process.kill()
        process.wait()


def test_a_deadlock_takes_a_few_imports_of_jax_to_find_and_no_jax_in_the_first_process():
    code = (
        "import sys; from shardlab.cli import main\n"
        "try: main(['check', 'deadlock.py:step'])\n"
        "except SystemExit as end: assert end.code == 1, end.code\n"
        "loaded = {'jax', 'jaxlib', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    check_seconds, jax_seconds = [], []
    for _ in range(3):  # the best of each: caches may be cold
        check_seconds.append(processor_seconds(code))
        jax_seconds.append(processor_seconds("import jax"))
    assert min(check_seconds) < max(3, 4 * min(jax_seconds))


def processor_seconds(code):
    """Return the processor time of a program and its children, whatever else is running."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# ------------------------------------------------------------------------------------------- SARIF


def test_sarif_has_a_rule_for_every_code_and_a_location_for_every_result(folder):
    finding = Finding(
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
    report = Report(
        findings=(finding, far, nowhere), suppressed=(SuppressedFinding(finding, "known"),)
    )
    data = report_to_sarif(report, program_file="a b.py")
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
    locations = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in results]
    assert locations[0] == {"uri": "a%20b.py", "uriBaseId": "%SRCROOT%"}
    assert locations[1] == {"uri": "file:///elsewhere/m.py"}
    assert locations[2] == locations[0]
    assert results[0]["message"]["text"] == "It hangs.\nTry: Do not."
    assert results[3]["suppressions"] == [{"kind": "inSource", "justification": "known"}]
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == folder.as_uri() + "/"


def test_a_script_whose_values_were_not_compared_has_an_exit_code_of_its_own():
    done = check("right.py")
    assert done.exit_code == 4, done.output
    assert done.stdout.rstrip().endswith("values were not compared")


def test_a_reference_is_a_function_of_a_file(folder):
    (folder / "stages.py").write_text(
        "import jax\n"
        "from jax import lax\n"
        "from jax.sharding import PartitionSpec as P\n"
        "@jax.shard_map(in_specs=(P('stage'), P()), out_specs=P())\n"
        "def step(w, x):\n"
        "    for _ in range(2):\n"
        "        x = lax.ppermute(x * w[0], 'stage', [(0, 1), (1, 0)])\n"
        "    return lax.psum(x * (lax.axis_index('stage') == 0), 'stage')\n"
        "def plain(w, x):\n"
        "    return x * w[0] * w[1]\n"
    )
    command = ("stages.py:step", "f32[2]", "f32[3]", "--mesh", "stage=2")
    done = check(*command, "--reference", "stages.py:plain")
    assert done.exit_code == 0, done.output
    assert check(*command).exit_code == 4
    done = check("right.py", "--reference", "stages.py:plain")
    assert done.exit_code == 2
    assert "both must be functions" in done.stderr


# ------------------------------------------------------------------------------------ large meshes


def test_a_mesh_that_is_not_proven_exits_with_4_and_names_the_line(folder):
    (folder / "pod.py").write_text(
        "import jax\n"
        "from jax import lax\n"
        "from jax.sharding import PartitionSpec as P\n"
        "@jax.shard_map(in_specs=P('data'), out_specs=P('data'))\n"
        "def step(x):\n"
        "    return jax.numpy.where(lax.axis_index('data') == 5, 2 * x, x)\n"
    )
    done = check("pod.py:step", "f32[65536]", "--mesh", "data=65536", "--scaled")
    assert done.exit_code == 4, done.output
    assert "For it stand data=2; data=3; data=4" in done.stdout
    assert "FAILS  device index" in done.stdout
    assert "pod.py:6 (step)" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "step on data=65536: nothing found; not proven on data=65536"
    )


def test_a_script_cannot_be_scaled_down():
    done = check("right.py", "--scaled")
    assert done.exit_code == 2
    assert "--scaled needs a function" in done.output
