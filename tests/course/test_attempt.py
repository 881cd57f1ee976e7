"""A submission is stored with the seed of its hidden cases."""

import contextlib
import sqlite3

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course import store as store_module
from shardlab.course.attempt import (
    _NoSandboxPool,
    explain_rejected_submission,
    judge_submission,
    record_submission,
)
from shardlab.course.store import open_store
from shardlab.errors import StoreBusy, StoreFull, StoreUnwritable


def test_a_seed_is_large_and_random_unless_given(tmp_path):
    store, problem = open_store(tmp_path), load_catalogue().load_problem("shard-map-psum")

    def submit(seed=None):
        return record_submission(store, problem, b"x = 1\n", kind="submit", seed=seed).seed

    seeds = {submit() for _ in range(4)}
    assert len(seeds) == 4
    assert max(seeds) >= 1 << 48  # four that are smaller come once in 2**60
    assert submit(2**63 - 1) == 2**63 - 1


WITHOUT_SANDBOX = b"x = (\xff"  # no process is started for what is no text


@pytest.mark.parametrize("fault", ["read-only", "full", "locked", "no tables at the end"])
def test_a_verdict_that_cannot_be_stored_is_returned_with_the_reason(tmp_path, monkeypatch, fault):
    store, problem = open_store(tmp_path), load_catalogue().load_problem("shard-map-psum")
    store.load_progress()  # creates it
    reasons = {
        "read-only": StoreUnwritable("It cannot be written.", where="here", fix="make it so."),
        "full": StoreFull("The disk is full.", where="here", fix="free some."),
        "locked": StoreBusy("It is locked.", where="here", fix="wait."),
    }
    if fault in reasons:

        @contextlib.contextmanager
        def fail(path):
            raise reasons[fault]
            yield

        monkeypatch.setattr(store_module, "connect", fail)
        expected = reasons[fault].what
    else:
        with sqlite3.connect(store.path) as connection:
            connection.execute("DROP TABLE judgement")
        expected = "no such table: judgement"
    judgement = explain_rejected_submission(store, problem, WITHOUT_SANDBOX, kind="submit")
    assert judgement.verdict.code == "CE"
    (note,) = judgement.notes
    assert note.startswith("This judgement is not stored.")
    assert expected in note


def test_a_submission_that_is_not_stored_is_judged_from_its_source(tmp_path):
    (tmp_path / "file").write_text("in the place of a folder")
    store = open_store(tmp_path / "file" / "data")
    problem = load_catalogue().load_problem("shard-map-psum")
    submission = record_submission(store, problem, WITHOUT_SANDBOX, kind="submit", seed=3)
    assert (submission.number, submission.seed) == (0, 3)
    assert "cannot be written" in submission.store_error
    pool = _NoSandboxPool()
    judgement = judge_submission(store, pool, problem, submission, source=WITHOUT_SANDBOX)
    assert judgement.verdict.code == "CE"
    assert "Not a directory" in judgement.notes[0]
