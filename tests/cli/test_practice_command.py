"""`shardlab practice`: each command on a small catalogue; a few real judgements, in one pool."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from tiny_catalogue import solution, starter, write_catalogue, wrong

from shardlab.cli import main
from shardlab.course.workbook import Workbook, open_workbook
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import VERDICTS, Verdict
from shardlab.judge.worker_pool import open_worker_pool


@pytest.fixture(autouse=True)
def catalogue(tmp_path, monkeypatch):
    """The current folder, with data of its own and a catalogue beside it."""
    monkeypatch.setenv("SHARDLAB_DATA", str(tmp_path / "data"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return write_catalogue(tmp_path / "problems")


@pytest.fixture(scope="module")
def shared_pool():
    with open_worker_pool("C") as pool:
        yield pool


@pytest.fixture
def one_pool(shared_pool, monkeypatch):
    """One pool for all tests, because opening one loads JAX; commands would open their own."""

    class OpenPool:
        level = shared_pool.level
        confinement = shared_pool.confinement
        start_process = shared_pool.start_process

        def close(self):
            pass

    monkeypatch.setattr(Workbook, "open_sandboxes", lambda self, level=None: OpenPool())


def practice(*args, **options):
    arguments = ["practice", *args, "--catalogue", "../problems"]
    return CliRunner().invoke(main, arguments, prog_name="shardlab", **options)


def add_judged(slug, code, *, kind="submit"):
    """Put a judged submission into the store, without judging."""
    store = open_workbook("../problems").store
    number = store.add_submission(slug, 1, b"x = 1\n", kind=kind, seed=7)
    case = CaseResult(
        name="case 1", part=1, mesh="", seed=7, verdicts=(Verdict(code=code, what="Said."),)
    )
    store.save_judgement(
        number,
        Judgement(problem=slug, content_version=1, level="C", seed=7, kind=kind, cases=(case,)),
    )


# ------------------------------------------------------------------------------- without judging


def test_the_list_has_marks_and_says_what_comes_next():
    add_judged("plus-one", "AC")
    add_judged("twice", "WA")
    assert practice("list").output.splitlines() == [
        "Sums",
        "   1 [x] plus-one  easy    One more",
        "",
        "Products",
        ">  2 [~] twice     easy    Two times",
        "   3 [-] thrice    easy    Three times  (after twice)",
        "",
        "1 of 3 solved.",
        "[x] solved  [~] tried  [-] builds on problems not solved yet; open anyway",
        "Next: twice",
    ]
    rows = json.loads(practice("list", "--json", "-").output)
    assert [(row["slug"], row["mark"]) for row in rows] == [
        ("plus-one", "solved"),
        ("twice", "tried"),
        ("thrice", "locked"),
    ]


def test_a_problem_that_was_changed_since_it_was_solved_says_so(catalogue):
    add_judged("plus-one", "AC")
    file = catalogue / "a-sums" / "plus-one" / "problem.toml"
    file.write_text(file.read_text().replace("content_version = 1", "content_version = 2"))
    assert "[x] plus-one  easy    One more (changed since)" in practice("list").output


def test_show_draws_layouts_and_omits_the_link_of_a_pitfall():
    page = practice("show", "plus-one").output
    assert "    │ device 0 │ device 1 │" in page
    assert "- It is not n.\n" in page
    assert "wrong/" not in page


@pytest.mark.parametrize("name", ["twice", "2", "some/where/twice.py"])
def test_a_problem_is_named_by_slug_number_or_file(name):
    assert practice("show", name).output.startswith("Two times\n")


def test_the_nearest_name_is_suggested_for_an_unknown_problem():
    done = practice("show", "trice")
    assert done.exit_code == 2
    assert "[catalogue.unknown_problem] Unknown problem 'trice'." in done.output
    assert "try:   Did you mean 'thrice'?" in done.output


def test_start_writes_the_starter_once_and_never_over_work(tmp_path):
    done = practice("start")
    assert done.stdout == "shardlab-practice/plus-one.py\n"
    mine = tmp_path / "here" / "shardlab-practice" / "plus-one.py"
    assert mine.read_text() == starter("plus-one")
    assert practice("start", "plus-one").exit_code == 0  # writing the starter again loses nothing
    mine.write_text("my work\n")
    done = practice("start", "plus-one")
    assert done.exit_code == 2
    assert "[practice.file_exists] The file exists already" in done.output
    assert mine.read_text() == "my work\n"
    done = practice("start", "plus-one", "--force")
    assert "Your file was saved as shardlab-practice/plus-one.py.1.bak" in done.output
    assert mine.read_text() == starter("plus-one")
    assert mine.with_name("plus-one.py.1.bak").read_text() == "my work\n"


def test_reset_asks_and_keeps_every_older_file(tmp_path):
    practice("start", "plus-one", "--folder", "mine")
    mine = tmp_path / "here" / "mine" / "plus-one.py"
    mine.write_text("first\n")
    done = practice("reset", "plus-one", input="n\n")
    assert (done.exit_code, mine.read_text()) == (1, "first\n")
    practice("reset", input="y\n")
    mine.write_text("second\n")
    practice("reset", "--yes")
    assert mine.read_text() == starter("plus-one")
    assert [mine.with_name(f"plus-one.py.{n}.bak").read_text() for n in (1, 2)] == [
        "first\n",
        "second\n",
    ]


def test_reset_starts_nothing(tmp_path):
    done = practice("reset", "twice", "--yes")
    assert done.exit_code == 2
    assert "[practice.no_file] There is no solution file for 'twice' yet." in done.output
    assert not (tmp_path / "here" / "shardlab-practice").exists()
    assert open_workbook("../problems").store.latest_problem() is None
    practice("start", "twice")
    mine = tmp_path / "here" / "shardlab-practice" / "twice.py"
    mine.unlink()
    assert practice("reset", "twice").exit_code == 0  # a file that was lost comes back
    assert mine.read_text() == starter("twice")


@pytest.mark.parametrize("command", ["show", "hint", "solution", "run", "submit"])
def test_the_problem_of_a_command_without_a_name_is_reported(command):
    note = practice(command).stderr
    assert note.startswith("plus-one, the first problem: none was started yet\n")
    assert "plus-one" not in practice("show", "twice").stderr
    practice("start", "twice")
    assert practice("hint").stderr == "twice, started last: shardlab-practice/twice.py\n"


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "here" / "taken").write_text("")
    done = practice("start", "plus-one", "--folder", "taken/below")
    assert done.exit_code == 2
    assert "[practice.folder_unwritable] The solution file cannot be written: " in done.output


def test_a_missing_solution_file_is_reported():
    done = practice("run", "plus-one")
    assert done.exit_code == 2
    assert "[practice.no_file] There is no solution file for 'plus-one' yet." in done.output
    assert "`shardlab practice start plus-one` writes the starter" in done.output
    done = practice("submit", "plus-one", ".")
    assert "[practice.no_file] The solution is not a regular file." in done.output


def test_hints_come_one_at_a_time_and_are_remembered():
    assert "This" not in practice("hint", "plus-one", "--all").output
    assert practice("hint", "plus-one").output.startswith("Hint 1 of 2\n\nIt is more than n.")
    assert practice("hint", "plus-one").output.startswith("Hint 2 of 2\n\nIt is n + 1.")
    assert practice("hint", "plus-one").output.startswith("Hint 2 of 2\n")
    assert practice("hint", "plus-one", "--all").output.count("Hint ") == 2
    assert practice("hint", "twice").output.startswith("Hint 1 of 2\n")


def test_the_solution_opens_after_a_pass_or_when_asked_twice():
    first = practice("solution", "plus-one")
    assert first.exit_code == 1
    assert "is not solved yet. You have not seen 2 hints. Run the command" in first.output
    assert practice("solution", "plus-one").output == solution("plus-one")
    assert practice("solution", "plus-one").output == solution("plus-one")
    assert practice("solution", "twice").exit_code == 1
    add_judged("thrice", "AC", kind="run")
    assert practice("solution", "thrice").exit_code == 1
    add_judged("twice", "AC")
    assert practice("solution", "twice").output == solution("twice")


def test_history_shows_attempts_and_what_was_not_judged():
    assert practice("history").stderr == "Nothing was run or submitted yet.\n"
    add_judged("plus-one", "WA")
    store = open_workbook("../problems").store
    store.add_submission("twice", 1, b"# \xff\n", kind="submit", seed=9)
    lines = practice("history").output.splitlines()
    assert [line.split()[3:] for line in lines[:2]] == [
        ["plus-one", "submit", "WA", "seed", "7", *VERDICTS["WA"].split()],
        ["twice", "submit", "not", "judged", "seed", "9"],
    ]
    assert "`shardlab practice submit --again 2` judges one" in " ".join(lines[3:])
    assert len(json.loads(practice("history", "twice", "--json", "-").output)) == 1
    assert practice("history", "--source", "2").stdout_bytes == b"# \xff\n"
    assert "[practice.unknown_submission] Unknown submission 3." in (
        practice("history", "--source", "3").output
    )


def test_everything_can_be_exported(tmp_path):
    add_judged("plus-one", "WA")
    open_workbook("../problems").store.add_submission(
        "twice", 1, b"# \xff\n", kind="submit", seed=9
    )
    practice("hint", "twice")
    data = json.loads(practice("export").output)
    assert [entry["problem"] for entry in data["submissions"]] == ["plus-one", "twice"]
    assert data["submissions"][0]["source"] == "x = 1\n"
    assert data["submissions"][0]["judgement"]["cases"][0]["verdicts"][0]["code"] == "WA"
    assert data["submissions"][1]["source_base64"] == "IyD/Cg=="
    assert {entry["problem"]: entry["hints"] for entry in data["progress"]} == {
        "plus-one": 0,
        "twice": 1,
    }
    assert practice("export", "all.json").stderr == "wrote all.json (JSON)\n"
    assert json.loads((tmp_path / "here" / "all.json").read_text()) == data
    assert practice("export", "all.zip").exit_code == 0
    with zipfile.ZipFile("all.zip") as archive:
        assert archive.read("twice/00002-submit-not-judged.py") == b"# \xff\n"
        assert json.loads(archive.read("practice.json")) == data
    done = practice("export", "no/such/folder.zip")
    assert done.exit_code == 2
    assert "[practice.folder_unwritable] The export cannot be written: No such file" in done.output


def test_a_corrupt_store_ends_a_command_with_an_error_in_three_parts(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "practice.db").write_bytes(b"no database" * 1000)
    done = practice("list")
    assert done.exit_code == 2
    assert "[store.corrupt] The progress store is corrupt: " in done.output
    assert practice("list").exit_code == 0


def test_the_commands_load_neither_jax_nor_numpy_nor_rich():
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom shardlab.cli import main\n"
        "for line in ('list', 'show 1', 'start', 'hint', 'history', 'run -h'):\n"
        "    done = CliRunner().invoke(main, ['practice', *line.split()])\n"
        "    assert done.exit_code == 0, done.output\n"
        "print([name for name in ('jax', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# ------------------------------------------------------------------------------------- judging


@pytest.mark.usefixtures("one_pool")
def test_run_and_submit_judge_store_and_write_every_report(tmp_path):
    practice("start", "plus-one")
    mine = tmp_path / "here" / "shardlab-practice" / "plus-one.py"
    mine.write_text(wrong("plus-one"))
    done = practice("run", "--json", "r.json", "--junit", "r.xml", "--exit-status")
    assert done.exit_code == 1
    assert done.stdout.startswith("WA")
    results = json.loads((tmp_path / "here" / "r.json").read_text())
    assert (results["version"], results["status"], len(results["tests"])) == (3, "fail", 2)
    assert ElementTree.parse("r.xml").getroot().find(".//testcase/failure") is not None
    assert practice("run").exit_code == 0  # judged; the verdict is in the output

    mine.write_text(solution("plus-one"))
    done = practice("submit", "--seed", "5", "--json", "-")
    assert json.loads(done.stdout)["status"] == "pass"
    assert done.stderr.endswith("practice start twice --catalogue ../problems`\n")
    store = open_workbook("../problems").store
    assert [(entry.kind, entry.code) for entry in store.list_submissions()] == [
        ("run", "WA"),
        ("run", "WA"),
        ("submit", "AC"),
    ]
    assert store.load_source(1) == wrong("plus-one").encode()
    assert store.load_judgement(3).seed == 5
    assert "[x] plus-one" in practice("list").output


@pytest.mark.usefixtures("one_pool")
def test_one_case_can_be_replayed_and_is_no_attempt(tmp_path):
    (tmp_path / "here" / "twice.py").write_text(wrong("twice"))
    done = practice("submit", "twice", "twice.py", "--seed", "5", "--case", "case 2")
    data = practice("submit", "twice.py", "--seed", "5", "--case", "1.1", "--json", "-")
    assert done.exit_code == 0
    assert [test["name"] for test in json.loads(data.stdout)["tests"]] == ["part 1, case 2"]
    assert open_workbook("../problems").store.list_submissions() == ()
    done = practice("submit", "twice.py", "--case", "case 7")
    assert "[practice.unknown_submission] 'twice' has no case 'case 7'." in done.output
    assert "Did you mean '" in done.output


@pytest.mark.usefixtures("one_pool")
def test_a_submission_that_was_interrupted_is_judged_again_as_it_was(monkeypatch, tmp_path):
    (tmp_path / "here" / "twice.py").write_text(solution("twice"))

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shardlab.judge.judge.judge", interrupt)
        done = practice("submit", "twice", "twice.py")
    assert done.exit_code == 130
    assert "interrupted; the submission is stored" in done.output
    assert "not judged" in practice("history").output
    (tmp_path / "here" / "twice.py").write_text("changed since\n")
    done = practice("submit", "--again", "1", "--exit-status")
    assert done.exit_code == 0, done.output
    assert open_workbook("../problems").store.get_submission(1).passed


@pytest.mark.parametrize(
    ("source", "message", "n_stored"),
    [
        (b"\n", "The file is empty.", 1),
        (b"x = 1 # \xff\n", "The file is not UTF-8", 1),
        (b"#" * (1 << 20), "The file has 1,048,576 bytes; the maximum is 262,144.", 0),
    ],
)
def test_a_file_that_is_not_python_is_judged_without_a_process(
    monkeypatch, tmp_path, source, message, n_stored
):
    monkeypatch.setattr(Workbook, "open_sandboxes", None)  # a call would raise
    (tmp_path / "here" / "twice.py").write_bytes(source)
    done = practice("submit", "twice.py")
    assert done.stdout.startswith("CE")
    assert message in done.stdout
    assert ("A file of this size is not stored." in done.stdout) == (n_stored == 0)
    assert "level" not in done.stdout
    submissions = open_workbook("../problems").store.list_submissions()
    assert [submission.code for submission in submissions] == ["CE"] * n_stored


def test_a_killed_submit_leaves_a_submission_that_can_be_judged_later(tmp_path):
    (tmp_path / "here" / "twice.py").write_text("def twice(n):\n    while True: pass\n")
    command = [sys.executable, "-m", "shardlab", "practice", "submit", "twice.py"]
    process = subprocess.Popen([*command, "--level", "C", "--catalogue", "../problems"])
    store = open_workbook("../problems").store
    deadline = time.monotonic() + 600  # normally a second
    while not store.list_submissions() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    (submission,) = store.list_submissions()
    assert (submission.is_finished, store.load_source(1)[:9]) == (False, b"def twice")
    assert store.load_judgement(1) is None
    assert not store.progress_of("twice").is_attempted
