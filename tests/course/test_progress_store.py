"""The practice stores: submissions and progress, by problem and by catalogue.

What the protocol `PracticeStore` says is tested with the file of one user and with one person's
part of a server's database.
"""

from __future__ import annotations

import sqlite3
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from shardlab.course import store as store_module
from shardlab.course.database import MIGRATIONS, data_folder, migrate_database
from shardlab.course.store import Progress, ProgressStore, open_store
from shardlab.errors import StoreUnwritable, UnknownSubmission
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.server import person_practice_store
from shardlab.server.database.engine import open_database
from shardlab.server.database.people_tables import JudgementRow, PersonRow
from shardlab.server.jobs.queue import LeaseLost
from shardlab.server.jobs.sql_queue import SqlJobQueue
from shardlab.server.person_practice_store import PersonPracticeStore


@pytest.fixture
def file_store(tmp_path):
    return open_store(tmp_path / "data")


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def store(request, tmp_path):
    if request.param == "file":
        yield request.getfixturevalue("file_store")
        return
    is_sqlite = request.param == "sqlite"
    url = "" if is_sqlite else request.getfixturevalue("postgresql_url")
    database = open_database(tmp_path, url)
    with database.write() as session:
        session.add_all(
            PersonRow(
                id=n, name=f"p{n}", name_key=f"p{n}", role="learner", password_hash="", created=0.0
            )
            for n in (1, 2)
        )
    other_person = PersonPracticeStore(database, tmp_path, 2)
    other_person.save_judgement(submit(other_person), judgement("AC"))  # must never show
    other_person.record_start("moe")
    other_person.save_draft("ring", "theirs")
    yield PersonPracticeStore(database, tmp_path, 1)
    database.close()


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


def submit(store, code="", *, problem="ring", kind="submit", source=b"x = 1\n", version=1):
    number = store.add_submission(problem, version, source, kind=kind, seed=5)
    if code:
        store.save_judgement(number, judgement(code, kind=kind, version=version))
    return number


def test_a_source_comes_back_byte_for_byte(store):
    source = b"# \xff\x00 not text\r\n"
    number = submit(store, "WA", source=source)
    assert store.load_source(number) == source
    assert store.load_judgement(number) == judgement("WA")
    submission = store.get_submission(number)
    assert (submission.problem, submission.content_version, submission.kind, submission.seed) == (
        "ring",
        1,
        "submit",
        5,
    )
    assert (submission.code, submission.passed, submission.counts, submission.is_finished) == (
        "WA",
        False,
        True,
        True,
    )


def test_a_submission_that_is_not_judged_is_unfinished_and_can_be_judged_later(store):
    number = submit(store)
    assert not store.get_submission(number).is_finished
    assert store.load_judgement(number) is None
    assert not store.progress_of("ring").n_submits
    store.save_judgement(number, judgement())
    assert store.get_submission(number).passed
    assert store.progress_of("ring").is_solved


def test_only_a_failure_of_the_judge_is_judged_again(store):
    number = submit(store, "IE")
    assert (store.progress_of("ring").n_submits, store.progress_of("ring").is_solved) == (0, False)
    store.save_judgement(number, judgement("AC"))
    store.save_judgement(number, judgement("WA"))
    assert store.get_submission(number).code == "AC"


def test_a_problem_is_solved_by_a_submit_that_passed_and_by_nothing_else(store):
    submit(store, "AC", kind="run")
    submit(store, "WA")
    assert store.progress_of("ring") == Progress("ring", n_runs=1, n_submits=1)
    submit(store, "AC", version=3)
    submit(store, "WA", version=4)
    progress = store.progress_of("ring")
    assert (progress.is_solved, progress.solved_version, progress.n_submits) == (True, 3, 3)


def test_hints_solutions_and_files_are_remembered_by_problem(store, tmp_path):
    store.record_start("ring", tmp_path / "ring.py")
    store.record_start("moe", tmp_path / "moe.py")
    store.record_start("ring", tmp_path / "b.py")
    store.record_hint("ring", 2)
    store.record_hint("ring", 1)
    assert [store.record_solution_request("ring"), store.record_solution_request("ring")] == [1, 2]
    progress = store.load_progress()
    assert (progress["ring"].hints, progress["ring"].path) == (2, str(tmp_path / "b.py"))
    assert (progress["moe"].hints, progress["moe"].solution_requests) == (0, 0)
    assert store.latest_problem() == "ring"


def test_another_catalogue_has_submissions_of_its_own(store):
    other_store = replace(store, catalogue="/theirs")
    number = submit(other_store, "AC")
    assert store.list_submissions() == ()
    assert store.load_progress() == {}
    assert store.latest_problem() is None
    with pytest.raises(UnknownSubmission, match=f"Unknown submission {number}"):
        store.get_submission(number)
    assert [submission.number for submission in other_store.list_submissions("ring")] == [number]
    assert other_store.list_submissions("moe") == ()


def test_equal_sources_are_stored_once(file_store):
    for _ in range(3):
        submit(file_store, source=b"y = 2\n" * 1000)
    with sqlite3.connect(file_store.path) as connection:
        assert connection.execute("SELECT count(*) FROM source").fetchone() == (1,)
    connection.close()
    assert len(file_store.list_submissions()) == 3


def test_a_judgement_that_cannot_be_decoded_counts_as_missing(file_store):
    number = submit(file_store, "AC")
    with sqlite3.connect(file_store.path) as connection:
        connection.execute("UPDATE judgement SET body = x'00'")
    connection.close()
    assert file_store.load_judgement(number) is None
    assert file_store.load_source(number) == b"x = 1\n"


def test_the_data_folder_follows_each_system(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder({}, "linux") == tmp_path / ".local/share/shardlab"
    assert data_folder({"XDG_DATA_HOME": "not/absolute"}, "linux") == data_folder({}, "linux")
    assert data_folder({}, "darwin") == tmp_path / "Library/Application Support/shardlab"
    assert data_folder({"LOCALAPPDATA": "/local"}, "win32").as_posix() == "/local/shardlab"
    assert data_folder({"SHARDLAB_DATA": "~/mine", "XDG_DATA_HOME": "/x"}) == tmp_path / "mine"


def test_the_problem_that_was_started_last_is_the_latest_also_if_the_clock_is_set_back(
    store, monkeypatch
):
    times = iter(
        ["2030-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"]
    )
    monkeypatch.setattr(store_module, "utc_now", lambda: next(times))
    for slug in ("one", "two", "one"):
        store.record_start(slug, Path("x.py"))
        assert store.latest_problem() == slug


def test_without_a_home_the_message_says_what_to_set(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StoreUnwritable, match="There is no home folder") as caught:
        data_folder({}, "linux")
    assert "SHARDLAB_DATA" in caught.value.fix
    assert data_folder({"SHARDLAB_DATA": "/data"}, "linux") == Path("/data")


def test_a_draft_is_replaced_and_removed_and_belongs_to_its_catalogue(store):
    assert store.load_draft("ring") is None
    store.save_draft("ring", "x = 1\n")
    draft = store.save_draft("ring", "x = 2\r\n")
    assert store.load_draft("ring") == draft
    assert draft.source == "x = 2\r\n"
    assert replace(store, catalogue="/other").load_draft("ring") is None
    store.delete_draft("ring")
    assert store.load_draft("ring") is None


def test_a_start_in_the_browser_leaves_the_path_of_the_solution_file(store, tmp_path):
    store.record_start("ring", tmp_path / "ring.py")
    store.record_start("sum")
    store.record_start("ring")
    assert store.latest_problem() == "ring"
    assert store.progress_of("ring").path == str(tmp_path / "ring.py")
    assert store.progress_of("sum").path == ""


def test_a_store_of_the_first_schema_gets_drafts(tmp_path):
    path = tmp_path / "practice.db"
    with sqlite3.connect(path, isolation_level=None) as connection:
        migrate_database(connection, MIGRATIONS[:1])
    store = ProgressStore(path)
    assert store.save_draft("ring", "x = 1\n").source == "x = 1\n"


def test_an_export_has_every_submission_with_source_and_judgement(store, tmp_path):
    submit(store, "WA", source=b"x = 1\n")
    submit(store, source=b"\xff")
    data = store.export_data()
    assert [item["code"] for item in data["submissions"]] == ["WA", ""]
    assert data["submissions"][0]["source"] == "x = 1\n"
    assert data["submissions"][0]["judgement"] == judgement("WA").to_json()
    assert data["submissions"][1]["source_base64"] == "/w=="
    store.write_zip(tmp_path / "export.zip")
    with zipfile.ZipFile(tmp_path / "export.zip") as archive:
        assert len(archive.namelist()) == 3


def test_a_draft_with_any_character_can_be_stored(store):
    store.save_draft("moe", "x = '\0 \ufffd \U0001f600'\n")
    assert store.load_draft("moe").source.endswith("\ufffd \U0001f600'\n")


def test_each_version_of_the_judge_has_one_verdict_and_people_see_the_newest(
    tmp_path, database_url, monkeypatch
):
    database = open_database(tmp_path, database_url)
    with database.write() as session:
        session.add(
            PersonRow(id=1, name="p", name_key="p", role="learner", password_hash="", created=0.0)
        )
    store = PersonPracticeStore(database, tmp_path, 1)
    number = submit(store)
    store.save_judgement(number, judgement("WA"))
    store.save_judgement(number, judgement("AC"))  # the same version: dropped
    assert store.get_submission(number).code == "WA"
    monkeypatch.setattr(person_practice_store, "judge_version", lambda: "2+jax9")
    store.save_judgement(number, judgement("IE"))  # a failure of the newer judge is no verdict
    assert store.get_submission(number).code == "WA"
    store.save_judgement(number, judgement("AC"))
    assert store.get_submission(number).code == "AC"
    assert store.progress_of("ring").n_submits == 1
    with database.read() as session:
        rows = session.scalars(select(JudgementRow).order_by(JudgementRow.judge_version)).all()
        assert [(row.code, row.is_current) for row in rows] == [("WA", False), ("AC", True)]
    database.close()


def test_a_worker_that_lost_its_job_cannot_store_a_verdict(tmp_path, database_url):
    database = open_database(tmp_path, database_url)
    with database.write() as session:
        session.add(
            PersonRow(id=1, name="p", name_key="p", role="learner", password_hash="", created=0.0)
        )
    number = submit(PersonPracticeStore(database, tmp_path, 1))
    queue = SqlJobQueue(database)
    queue.enqueue(1, "judge", {"submission": number})
    late = queue.claim("stopped")
    queue.release("stopped", has_crashed=True)
    current = queue.claim("other")
    with pytest.raises(LeaseLost):
        PersonPracticeStore(database, tmp_path, 1, claim=late).save_judgement(
            number, judgement("WA")
        )
    store = PersonPracticeStore(database, tmp_path, 1, claim=current)
    store.save_judgement(number, judgement("AC"))
    assert store.get_submission(number).code == "AC"
    database.close()


def test_a_judgement_of_another_persons_submission_is_refused(tmp_path):
    database = open_database(tmp_path)
    with database.write() as session:
        session.add_all(
            PersonRow(
                id=n, name=f"p{n}", name_key=f"p{n}", role="learner", password_hash="", created=0.0
            )
            for n in (1, 2)
        )
    number = submit(PersonPracticeStore(database, tmp_path, 1))
    stranger = PersonPracticeStore(database, tmp_path, 2)
    with pytest.raises(UnknownSubmission):
        stranger.save_judgement(number, judgement("AC"))
    for load in (stranger.get_submission, stranger.load_source, stranger.load_judgement):
        with pytest.raises(UnknownSubmission):
            load(number)
    database.close()
