"""The record: what is kept is what was handed in, by problem and by catalogue."""

from __future__ import annotations

import sqlite3

import pytest

from shardlab.course.database import data_folder
from shardlab.course.store import Record, open_record
from shardlab.course.submission import Progress
from shardlab.errors import UnknownSubmission
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict


@pytest.fixture
def record(tmp_path):
    return open_record(tmp_path / "data")


def judgement(code="AC", *, kind="submit", version=1):
    case = CaseResult(
        name="data=2",
        part=1,
        mesh="data=2",
        seed=7,
        verdicts=(Verdict(code=code, what="Said."),),
        facts={"values": [1, 2]},
    )
    return Judgement(
        problem="ring", content_version=version, level="C", seed=5, kind=kind, cases=(case,)
    )


def hand_in(record, code="", *, problem="ring", kind="submit", source=b"x = 1\n", version=1):
    number = record.hand_in(problem, version, source, kind=kind, seed=5)
    if code:
        record.judged(number, judgement(code, kind=kind, version=version))
    return number


def test_an_answer_comes_back_byte_for_byte(record):
    source = b"# \xff\x00 not text\r\n"
    number = hand_in(record, "WA", source=source)
    assert record.source(number) == source
    assert record.judgement(number) == judgement("WA")
    kept = record.submission(number)
    assert (kept.problem, kept.content_version, kept.kind, kept.seed) == ("ring", 1, "submit", 5)
    assert (kept.code, kept.passed, kept.counts, kept.is_finished) == ("WA", False, True, True)


def test_an_answer_that_is_not_judged_is_unfinished_and_can_be_judged_later(record):
    number = hand_in(record)
    assert not record.submission(number).is_finished
    assert record.judgement(number) is None
    assert not record.of("ring").n_submits
    record.judged(number, judgement())
    assert record.submission(number).passed
    assert record.of("ring").is_solved


def test_only_a_fault_of_the_judge_is_judged_again(record):
    number = hand_in(record, "IE")
    assert (record.of("ring").n_submits, record.of("ring").is_solved) == (0, False)
    record.judged(number, judgement("AC"))
    record.judged(number, judgement("WA"))
    assert record.submission(number).code == "AC"


def test_a_problem_is_solved_by_a_submit_that_passed_and_by_nothing_else(record):
    hand_in(record, "AC", kind="run")
    hand_in(record, "WA")
    assert record.of("ring") == Progress("ring", n_runs=1, n_submits=1)
    hand_in(record, "AC", version=3)
    hand_in(record, "WA", version=4)
    now = record.of("ring")
    assert (now.is_solved, now.solved_version, now.n_submits) == (True, 3, 3)


def test_hints_solutions_and_files_are_remembered_by_problem(record, tmp_path):
    record.started("ring", tmp_path / "ring.py")
    record.started("moe", tmp_path / "moe.py")
    record.started("ring", tmp_path / "b.py")
    record.hint_taken("ring", 2)
    record.hint_taken("ring", 1)
    assert [record.solution_asked("ring"), record.solution_asked("ring")] == [1, 2]
    now = record.progress()
    assert (now["ring"].hints, now["ring"].path) == (2, str(tmp_path / "b.py"))
    assert (now["moe"].hints, now["moe"].solution_asked) == (0, 0)
    assert record.latest() == "ring"


def test_another_catalogue_has_submissions_of_its_own(record):
    other = Record(record.path, "/theirs")
    number = hand_in(other, "AC")
    assert record.submissions() == ()
    assert record.progress() == {}
    assert record.latest() is None
    with pytest.raises(UnknownSubmission, match=f"There is no submission {number}"):
        record.submission(number)
    assert [each.number for each in other.submissions("ring")] == [number]
    assert other.submissions("moe") == ()


def test_equal_answers_are_kept_once(record):
    for _ in range(3):
        hand_in(record, source=b"y = 2\n" * 1000)
    with sqlite3.connect(record.path) as connection:
        assert connection.execute("SELECT count(*) FROM source").fetchone() == (1,)
    connection.close()
    assert len(record.submissions()) == 3


def test_a_judgement_that_cannot_be_read_is_as_good_as_none(record):
    number = hand_in(record, "AC")
    with sqlite3.connect(record.path) as connection:
        connection.execute("UPDATE judgement SET body = x'00'")
    connection.close()
    assert record.judgement(number) is None
    assert record.source(number) == b"x = 1\n"


def test_data_lies_where_each_system_puts_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder({}, "linux") == tmp_path / ".local/share/shardlab"
    assert data_folder({"XDG_DATA_HOME": "not/absolute"}, "linux") == data_folder({}, "linux")
    assert data_folder({}, "darwin") == tmp_path / "Library/Application Support/shardlab"
    assert data_folder({"LOCALAPPDATA": "/local"}, "win32").as_posix() == "/local/shardlab"
    assert data_folder({"SHARDLAB_DATA": "~/mine", "XDG_DATA_HOME": "/x"}) == tmp_path / "mine"
