"""Workers of several machines: how they register, what they must share, and judging once more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from shardlab.cli import main
from shardlab.errors import WorkerMismatch
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.server import person_practice_store
from shardlab.server.database.engine import open_database
from shardlab.server.database.people_tables import PersonRow
from shardlab.server.database.tables import WorkerRow
from shardlab.server.jobs.rejudging import NOBODY, RejudgeRequest, queue_rejudgements
from shardlab.server.jobs.sql_queue import SqlJobQueue
from shardlab.server.jobs.worker_registry import (
    WORKER_DEAD_SECONDS,
    WorkerRegistry,
    new_worker_name,
)
from shardlab.server.person_practice_store import PersonPracticeStore
from shardlab.server.release import catalogue_digest, this_release


@pytest.fixture
def database(tmp_path, database_url):
    database = open_database(tmp_path, database_url)
    yield database
    database.close()


def test_a_worker_is_alive_while_its_heartbeat_is_young(database):
    registry = WorkerRegistry(database)
    release = this_release()
    names = [new_worker_name() for _ in range(3)]
    for name in names:
        registry.register(name, release, n_slots=2)
        registry.beat(name, state="ready", level="A", can_judge=True)
    registry.beat(names[1], state="ended", level="A", can_judge=True)
    old = database.now() - WORKER_DEAD_SECONDS - 1
    with database.write() as session:
        row = update(WorkerRow).where(WorkerRow.name == names[2])
        session.execute(row.values(heartbeat=old))
    workers = {worker.name: worker for worker in registry.list_workers()}
    assert [workers[name].is_ready for name in names] == [True, False, False]
    assert workers[names[0]].release == release
    assert workers[names[0]].sandbox_level == "A"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jax_version": "0.1.0"}, "JAX .* here, 0.1.0 on the server"),
        ({"judge_version": "0"}, "the judge .* here, 0 on the server"),
        ({"catalogue_digest": "0" * 64}, "the catalogue .* here, 000000000000 on the server"),
    ],
)
def test_a_worker_of_another_release_is_refused_with_what_differs(
    tmp_path, change, message, postgresql_url
):
    from shardlab.server.jobs.standalone_worker import check_release

    database = open_database(tmp_path, postgresql_url)
    registry = WorkerRegistry(database)
    with pytest.raises(WorkerMismatch, match="No server has used this database"):
        check_release(registry, this_release())
    registry.expect(this_release())
    check_release(registry, this_release())
    registry.expect(replace(this_release(), **change))
    with pytest.raises(WorkerMismatch, match=message) as caught:
        check_release(registry, this_release())
    assert "pip install" in caught.value.fix
    database.close()


def test_the_digest_of_a_catalogue_depends_on_names_and_contents_alone(tmp_path):
    def digest_of(name, files):
        folder = tmp_path / name
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(content)
        return catalogue_digest(folder)

    files = {"tracks.toml": "a", "one/problem.toml": "bc"}
    first = digest_of("first", files)
    assert digest_of("same", {**files, "one/__pycache__/x.pyc": "compiled"}) == first
    assert digest_of("other", {"tracks.toml": "ab", "one/problem.toml": "c"}) != first
    assert digest_of("moved", {"tracks.toml": "a", "two/problem.toml": "bc"}) != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker"], "[server.invalid_option] The worker has no database."),
        (["worker", "--database", "lab.db"], "[sandbox.level_unavailable]|[server.database]"),
        (["serve", "--workers", "0"], "--workers 0 needs --accounts and --database"),
        (["serve", "--database", "postgresql://localhost/lab"], "--database needs --accounts"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.delenv("SHARDLAB_DATABASE", raising=False)
    monkeypatch.setenv("SHARDLAB_DATA", str(tmp_path))
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert any(part in result.output for part in message.split("|"))


def test_a_submission_is_judged_once_more_by_a_newer_judge_at_the_turn_of_nobody(
    database, tmp_path, monkeypatch
):
    with database.write() as session:
        session.add(
            PersonRow(id=1, name="p", name_key="p", role="learner", password_hash="", created=0.0)
        )
    store = PersonPracticeStore(database, tmp_path, 1)
    numbers = [store.add_submission("ring", 1, b"x", kind="submit", seed=5) for _ in range(3)]
    monkeypatch.setattr(person_practice_store, "judge_version", lambda: "0+jax0")
    for number in numbers[:2]:  # the third waits for its first verdict
        store.save_judgement(number, judgement())
    monkeypatch.undo()
    assert queue_rejudgements(database, RejudgeRequest(problem="moe")) == 0
    assert queue_rejudgements(database, RejudgeRequest(numbers=numbers[:1])) == 1
    assert queue_rejudgements(database, RejudgeRequest()) == 2
    queue = SqlJobQueue(database)
    claims = list(iter(lambda: queue.claim("w"), None))
    assert [claim.payload["submission"] for claim in claims] == numbers[:2]  # the first once
    assert {(claim.person, claim.payload["person"]) for claim in claims} == {(NOBODY, 1)}


def judgement():
    verdict = Verdict(code="WA", what="The values are off by 2.")
    case = CaseResult(name="data=2", part=1, mesh="data=2", seed=7, verdicts=(verdict,))
    return Judgement(
        problem="ring", content_version=1, level="A", seed=5, kind="submit", cases=(case,)
    )
