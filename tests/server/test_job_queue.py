"""The job queue: bounded, fair between people, cancellable, and no job is lost or done twice."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import event, select, text

from shardlab.server.database.engine import open_database
from shardlab.server.database.tables import RecordingRow
from shardlab.server.jobs import job_service, sql_queue
from shardlab.server.jobs.queue import (
    LAB_KINDS,
    JobError,
    JobOutcome,
    NewRecording,
    QueueFull,
    QueueLimits,
    slot_kinds,
)
from shardlab.server.jobs.sql_queue import MAX_LOST_ATTEMPTS, SqlJobQueue
from shardlab.server.settings import ServerSettings

DONE = JobOutcome(state="done", result={"ok": True})


class Clock:
    """A clock that tests move. PostgreSQL's own cannot be moved: there heartbeats get older."""

    def __init__(self, database):
        self._database = database
        self.now = 1000.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds
        if self._database.is_postgresql:
            older = text("UPDATE pgqueuer SET heartbeat = heartbeat - make_interval(secs => :n)")
            with self._database.write() as session:
                session.execute(older, {"n": seconds})


@pytest.fixture
def clock(database):
    return Clock(database)


@pytest.fixture
def database(tmp_path, database_url):
    database = open_database(tmp_path, database_url)
    yield database
    database.close()


@pytest.fixture
def queue(database, clock):
    limits = QueueLimits(per_person=6, total=10)
    return SqlJobQueue(database, limits, lease_seconds=15.0, clock=clock)


def claim_all(queue, worker="w"):
    return [claim for claim in iter(lambda: queue.claim(worker), None) if queue.finish(claim, DONE)]


# --------------------------------------------------------------------------------------- order


def test_people_take_turns_however_many_jobs_one_of_them_has(queue):
    for person in (1, 1, 1, 1, 2, 2, 3):
        queue.enqueue(person, "record", {})
    assert [claim.person for claim in claim_all(queue)] == [1, 2, 3, 1, 2, 1, 1]


def test_jobs_of_one_person_run_in_their_order(queue):
    ids = [queue.enqueue(1, "record", {"n": n}).id for n in range(5)]
    assert [claim.id for claim in claim_all(queue)] == ids


def test_a_newcomer_does_not_overtake_people_who_have_waited_longer(queue):
    for person in (1, 1, 1, 2, 2):
        queue.enqueue(person, "record", {})
    assert queue.claim("w").person == 1
    queue.enqueue(3, "record", {})  # 2 has waited since before 3 came
    assert [queue.claim("w").person for _ in range(3)] == [2, 3, 1]


def test_a_position_says_how_many_claims_it_takes(queue):
    jobs = [queue.enqueue(person, "record", {}) for person in (1, 1, 1, 2, 3, 2)]
    positions = {job.id: queue.find(job.id).position for job in jobs}
    served = [claim.id for claim in claim_all(queue)]
    assert {job_id: n for n, job_id in enumerate(served, 1)} == positions
    assert queue.find(served[0]).position is None


def test_audits_never_take_every_slot_of_a_worker(queue):
    for _ in range(4):
        queue.enqueue(1, "audit_catalogue", {})
    first, second = (slot_kinds(slot, can_judge=True) for slot in (0, 1))
    assert queue.claim("w", second).kind == "audit_catalogue"
    assert queue.claim("w", first) is None
    queue.enqueue(2, "judge", {})
    assert queue.claim("w", first).kind == "judge"
    assert slot_kinds(0, can_judge=False) == slot_kinds(1, can_judge=False) == LAB_KINDS


def test_a_worker_that_can_do_some_kinds_gets_the_next_of_these(queue):
    queue.enqueue(1, "judge", {})
    second = queue.enqueue(1, "record", {})
    claim = queue.claim("w", {"record"})
    assert claim.id == second.id
    assert queue.claim("w", {"record"}) is None
    assert queue.claim("w").kind == "judge"


# --------------------------------------------------------------------------------------- bound


def test_one_person_cannot_fill_the_queue(queue):
    for _ in range(6):
        queue.enqueue(1, "record", {})
    with pytest.raises(QueueFull, match="already have 6 jobs") as caught:
        queue.enqueue(1, "record", {})
    assert caught.value.is_of_person
    assert queue.enqueue(2, "record", {}).state == "queued"


def test_the_queue_is_bounded_for_all_people_together(queue):
    for person in range(10):
        queue.enqueue(person, "record", {})
    with pytest.raises(QueueFull, match="as many jobs as it can take") as caught:
        queue.enqueue(99, "record", {})
    assert not caught.value.is_of_person


def test_a_running_job_counts_until_it_ends(queue):
    for _ in range(6):
        queue.enqueue(1, "record", {})
    claim = queue.claim("w")
    with pytest.raises(QueueFull):
        queue.enqueue(1, "record", {})
    queue.finish(claim, DONE)
    queue.enqueue(1, "record", {})


def test_a_key_makes_a_second_request_the_same_job_until_it_fails(queue):
    first = queue.enqueue(1, "judge", {"submission": 7}, key="judge 7")
    assert queue.enqueue(1, "judge", {"submission": 7}, key="judge 7").id == first.id
    claim = queue.claim("w")
    assert queue.enqueue(1, "judge", {"submission": 7}, key="judge 7").id == first.id
    error = JobError(kind="internal", message="no")
    queue.finish(claim, JobOutcome(state="failed", error=error))
    assert queue.enqueue(1, "judge", {"submission": 7}, key="judge 7").id != first.id


# -------------------------------------------------------------------------------------- cancel


def test_a_queued_job_is_cancelled_at_once(queue):
    job = queue.enqueue(1, "record", {})
    assert queue.cancel(job.id).state == "cancelled"
    assert queue.claim("w") is None


def test_the_worker_of_a_cancelled_job_is_asked_to_end_it(queue):
    job = queue.enqueue(1, "record", {})
    claim = queue.claim("w")
    assert queue.renew([claim]) == []
    assert queue.cancel(job.id).is_cancel_requested
    assert queue.renew([claim]) == [claim]
    assert queue.finish(claim, JobOutcome(state="cancelled"))
    assert queue.find(job.id).state == "cancelled"


def test_a_job_that_has_ended_is_not_cancelled(queue):
    job = queue.enqueue(1, "record", {})
    claim_all(queue)
    assert queue.cancel(job.id).state == "done"


def test_a_cancelled_job_whose_worker_dies_is_not_run_again(queue, clock):
    job = queue.enqueue(1, "record", {})
    queue.claim("w")
    queue.cancel(job.id)
    clock.advance(16)
    assert queue.claim("other") is None
    assert queue.find(job.id).state == "cancelled"


def test_cancelling_an_unknown_job_returns_nothing(queue):
    assert queue.cancel("none") is None


# -------------------------------------------------------------------------------------- leases


def test_a_job_whose_lease_ended_is_claimed_again_and_the_old_attempt_cannot_write(
    queue, clock, database
):
    job = queue.enqueue(1, "record", {"source": "x"})
    stale = queue.claim("first")
    clock.advance(16)
    fresh = queue.claim("second")
    assert (fresh.id, fresh.attempt, fresh.payload) == (job.id, 2, {"source": "x"})

    recording = NewRecording(title="t", source="x", body=gzip.compress(b"{}"))
    late = JobOutcome(state="done", result={"from": "first"}, recording=recording)
    assert not queue.report_progress(stale, {"n": 1})
    assert queue.renew([stale]) == [stale]
    assert not queue.finish(stale, late)
    assert queue.finish(fresh, JobOutcome(state="done", result={"from": "second"}))
    assert not queue.finish(fresh, late)
    assert queue.find(job.id).result == {"from": "second"}
    with database.read() as session:
        assert session.scalars(select(RecordingRow)).all() == []


def test_a_renewed_lease_does_not_end(queue, clock):
    queue.enqueue(1, "record", {})
    claim = queue.claim("w")
    for _ in range(5):
        clock.advance(10)
        assert queue.renew([claim]) == []
        assert queue.claim("other") is None


def test_a_late_worker_goes_on_if_nobody_took_its_job(queue, clock):
    queue.enqueue(1, "record", {})
    claim = queue.claim("w")
    clock.advance(100)  # such as a laptop that slept
    assert queue.renew([claim]) == []
    assert queue.finish(claim, DONE)


def test_the_jobs_of_a_dead_worker_are_released_at_once_and_only_those(queue):
    queue.enqueue(1, "record", {})
    queue.enqueue(2, "record", {})
    first, second = queue.claim("dead"), queue.claim("alive")
    assert queue.release("dead", has_crashed=True) == 1
    assert queue.claim("new").id == first.id
    assert queue.finish(second, DONE)


def test_a_job_that_ends_every_worker_fails_with_a_sentence(queue):
    job = queue.enqueue(1, "record", {})
    for attempt in range(MAX_LOST_ATTEMPTS):
        assert queue.claim(f"w{attempt}").attempt == attempt + 1
        queue.release(f"w{attempt}", has_crashed=True)
    failed = queue.find(job.id)
    assert (failed.state, failed.error.kind) == ("failed", "internal")
    assert "worker process ended" in failed.error.message


def test_a_server_that_stops_often_does_not_use_up_the_attempts(queue):
    job = queue.enqueue(1, "record", {})
    for n in range(3 * MAX_LOST_ATTEMPTS):
        queue.claim(f"w{n}")
        queue.release(f"w{n}", has_crashed=False)
    assert queue.find(job.id).state == "queued"


# ------------------------------------------------------------------------------- what is stored


def test_a_recording_is_stored_with_the_outcome_under_the_id_of_the_job(queue, database):
    job = queue.enqueue(4, "record", {})
    recording = NewRecording(title="Title", source="x = 1", body=gzip.compress(b"{}"))
    queue.finish(queue.claim("w"), JobOutcome(state="done", result={}, recording=recording))
    with database.read() as session:
        row = session.get(RecordingRow, job.id)
        assert (row.person, row.title, row.source) == (4, "Title", "x = 1")
        assert gzip.decompress(row.body) == b"{}"


def test_every_change_increases_the_version(queue):
    job = queue.enqueue(1, "record", {})
    versions = [job.version]
    claim = queue.claim("w")
    versions.append(queue.find(job.id).version)
    queue.report_progress(claim, {"done": 1})
    assert queue.find(job.id).progress == {"done": 1}
    versions.append(queue.find(job.id).version)
    queue.finish(claim, DONE)
    versions.append(queue.find(job.id).version)
    assert all(earlier < later for earlier, later in itertools.pairwise(versions))


def test_jobs_that_ended_long_ago_are_deleted(queue, clock):
    job = queue.enqueue(1, "record", {})
    claim_all(queue)
    waiting = queue.enqueue(1, "record", {})
    clock.advance(15 * 86400)
    queue.delete_old_rows()
    assert queue.find(job.id) is None
    assert queue.find(waiting.id).state == "queued"


def stored_recordings(database, person):
    with database.read() as session:
        rows = select(RecordingRow.id).where(RecordingRow.person == person)
        return session.scalars(rows.order_by(RecordingRow.created)).all()


def store_recordings(database, person, sizes, limits):
    for number, size in enumerate(sizes):
        recording = NewRecording(title="Title", source="", body=bytes(size))
        with database.write() as session:
            name = f"{person}-{number}"
            sql_queue.add_recording(
                session, name, person, recording, created=float(number), limits=limits
            )


def test_the_oldest_recordings_of_a_person_make_room_by_bytes(database):
    limits = QueueLimits(recording_bytes=100)
    store_recordings(database, 2, [90], limits)
    store_recordings(database, 1, [30, 40, 50, 10], limits)
    assert stored_recordings(database, 1) == ["1-1", "1-2", "1-3"]  # 100 bytes
    assert stored_recordings(database, 2) == ["2-0"]  # another person's
    store_recordings(database, 3, [20, 500], limits)
    assert stored_recordings(database, 3) == ["3-1"]  # the newest stays, whatever its size


def test_the_oldest_recordings_of_a_person_make_room_by_number(database):
    store_recordings(database, 1, [5, 5, 5], QueueLimits(recordings=2))
    assert stored_recordings(database, 1) == ["1-1", "1-2"]


def test_jobs_survive_the_process_that_added_them(tmp_path):
    database = open_database(tmp_path)
    job = SqlJobQueue(database).enqueue(1, "record", {"source": "x"})
    database.close()
    reopened = open_database(tmp_path)
    claim = SqlJobQueue(reopened).claim("w")
    assert (claim.id, claim.payload) == (job.id, {"source": "x"})
    reopened.close()


# ------------------------------------------------------------------------ any order of events


class QueueMachine(RuleBasedStateMachine):
    """Any sequence of arrivals, claims, results, cancellations, crashes and late workers."""

    PEOPLE = st.integers(1, 4)

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = self.open_database()
        self.clock = Clock(self.database)
        self.queue = SqlJobQueue(self.database, lease_seconds=15.0, clock=self.clock)
        self.claims = []  # also those whose lease has ended: late workers
        self.accepted = Counter()  # outcomes per job
        self.jobs = {}  # id -> person
        self.claimed_since_waiting = {}  # people who wait -> {other: claims since}

    def open_database(self):
        database = open_database(Path(self.folder.name))

        @event.listens_for(database.engine, "connect")
        def disable_sync(connection, _):
            connection.execute("PRAGMA synchronous = OFF")  # no power failure in this test

        database.engine.dispose()
        return database

    def teardown(self):
        # Whatever happened, every job reaches an end, with exactly one accepted outcome or none if
        # it was cancelled in the queue or ended its workers.
        self.clock.advance(100)
        while (claim := self.queue.claim("last")) is not None:
            self.accepted[claim.id] += self.queue.finish(claim, DONE)
        for job_id in self.jobs:
            job = self.queue.find(job_id)
            assert job.has_ended
            assert self.accepted[job_id] == (1 if job.state == "done" else 0)
        self.database.close()
        self.folder.cleanup()

    def waiting_people(self):
        jobs = [self.queue.find(job_id) for job_id in self.jobs]
        return {job.person for job in jobs if job.state == "queued"}

    @rule(person=PEOPLE)
    @precondition(lambda self: len(self.jobs) < 12)
    def enqueue(self, person):
        job = self.queue.enqueue(person, "record", {})
        self.jobs[job.id] = person

    @rule()
    def claim(self):
        waiting = self.waiting_people()
        positions = {self.queue.find(job_id).position: job_id for job_id in self.jobs}
        claim = self.queue.claim("w")
        if claim is None:
            assert not waiting
            return
        self.claims.append(claim)
        if 1 in positions and len(self.claims) == 1:
            assert positions[1] == claim.id
        for person in waiting - {claim.person}:
            counts = self.claimed_since_waiting.setdefault(person, Counter())
            counts[claim.person] += 1
            # Nobody is served three times while someone else waits for the first time.
            assert counts[claim.person] <= 2
        self.claimed_since_waiting.pop(claim.person, None)

    @rule(data=st.data())
    @precondition(lambda self: self.claims)
    def finish(self, data):
        claim = data.draw(st.sampled_from(self.claims))
        self.accepted[claim.id] += self.queue.finish(claim, DONE)
        assert self.accepted[claim.id] <= 1

    @rule(data=st.data())
    @precondition(lambda self: self.claims)
    def renew(self, data):
        self.queue.renew([data.draw(st.sampled_from(self.claims))])

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def cancel(self, data):
        self.queue.cancel(data.draw(st.sampled_from(list(self.jobs))))
        for person in set(self.claimed_since_waiting) - self.waiting_people():
            del self.claimed_since_waiting[person]

    @rule(has_crashed=st.booleans())
    def end_worker(self, has_crashed):
        self.queue.release("w", has_crashed=has_crashed)

    @rule(seconds=st.sampled_from([1.0, 16.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def positions_count_from_one_without_gaps(self):
        positions = [self.queue.find(job_id).position for job_id in self.jobs]
        queued = sorted(position for position in positions if position is not None)
        assert queued == list(range(1, len(queued) + 1))


_SETTINGS = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAnyOrderOfEvents = QueueMachine.TestCase
TestAnyOrderOfEvents.settings = _SETTINGS


@pytest.mark.long
def test_any_order_of_events_on_postgresql(postgresql_cluster, postgresql_template):
    urls = []

    class PostgresqlQueueMachine(QueueMachine):
        def open_database(self):
            urls.append(postgresql_cluster.new_database(postgresql_template))
            return open_database(Path(self.folder.name), urls[-1])

    run_state_machine_as_test(PostgresqlQueueMachine, settings=_SETTINGS)
    for url in urls:
        postgresql_cluster.drop_database(url)


# ------------------------------------------------------------------------------- PostgreSQL alone


def test_the_record_of_a_job_and_its_dispatch_are_committed_together(tmp_path, postgresql_url):
    database = open_database(tmp_path, postgresql_url)
    queue = SqlJobQueue(database)

    def enqueue_and_fail():
        with database.transaction():
            queue.enqueue(1, "record", {})
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        enqueue_and_fail()
    assert queue.claim("w") is None
    with database.read() as session:
        for table in ("job", "pgqueuer", "pgqueuer_log"):
            assert session.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 0
    database.close()


def test_a_job_that_was_deleted_is_not_handed_out(tmp_path, postgresql_url):
    database = open_database(tmp_path, postgresql_url)
    queue = SqlJobQueue(database)
    queue.enqueue(1, "record", {})
    with database.write() as session:
        session.execute(text("DELETE FROM job"))  # with the account of its person
    second = queue.enqueue(2, "record", {})
    assert queue.claim("w").id == second.id
    database.close()


def test_concurrent_workers_share_all_jobs_without_handing_one_out_twice(tmp_path, postgresql_url):
    database = open_database(tmp_path, postgresql_url)
    queue = SqlJobQueue(database)
    ids = {queue.enqueue(n % 4, "record", {}).id for n in range(40)}
    claimed = []

    def work(name):
        while (claim := queue.claim(name)) is not None:
            claimed.append(claim.id)
            queue.finish(claim, DONE)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(claimed) == Counter(ids)
    database.close()


def test_news_of_a_job_reach_those_who_watch_it_in_another_process(
    tmp_path, postgresql_url, monkeypatch
):
    # Without news nobody would look at the database again within the time of this test.
    monkeypatch.setattr(job_service, "_QUEUED_POLL_SECONDS", 3600.0)
    monkeypatch.setattr(job_service, "_RUNNING_POLL_SECONDS", 3600.0)
    database, others = (open_database(tmp_path, postgresql_url) for _ in range(2))
    settings = ServerSettings(data_folder=tmp_path, n_workers=0, database_url=postgresql_url)
    jobs = job_service.JobService(database, settings)
    worker = SqlJobQueue(others)

    async def watch():
        jobs.start(asyncio.get_running_loop())
        await asyncio.to_thread(jobs._listener.wait_until_listening, 60.0)
        job = jobs.submit(1, "record", {})
        states = []
        async for change in jobs.watch(job.id):
            states.append(change.state)
            if change.state == "queued":
                claim = await asyncio.to_thread(worker.claim, "w")
            elif change.state == "running":
                await asyncio.to_thread(worker.finish, claim, DONE)
        return states

    # In a thread: Playwright's event loop runs in the main thread once a browser test had it.
    with ThreadPoolExecutor(1) as threads:
        states = threads.submit(lambda: asyncio.run(asyncio.wait_for(watch(), 120.0))).result()
    assert list(dict.fromkeys(states)) == ["queued", "running", "done"]
    jobs.stop()
    for opened in (database, others):
        opened.close()
