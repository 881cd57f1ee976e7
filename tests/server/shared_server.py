"""Web processes and workers on one PostgreSQL database: real processes that can be killed.

The same code runs the small test of `test_shared_server.py` and `tools/shared_server_soak.py`,
which puts each process in a network namespace of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text

from shardlab.server.database.engine import open_database
from shardlab.server.people.passwords import PasswordHashing
from shardlab.server.people.services import open_people
from shardlab.server.settings import ServerSettings

PATIENCE_SECONDS = 600
SLUG = "gather-stack-or-tile"
PROBLEMS = Path(__file__).parents[2] / "src" / "shardlab" / "catalogue" / "problems"
SOLUTION = next(PROBLEMS.glob(f"*/{SLUG}/solution.py")).read_text()
WRONG = "import jax\nraise ValueError('not written yet')\n"  # a verdict after the first trace
# Whatever is written to verdicts: a second one, or a change of the first, leaves a row.
_AUDIT = """
CREATE TABLE verdict_audit (submission integer, operation text, judge_version text, counts boolean);
CREATE FUNCTION audit_verdict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO verdict_audit VALUES
    (coalesce(NEW.submission, OLD.submission), TG_OP,
     coalesce(NEW.judge_version, OLD.judge_version),
     coalesce(NEW.counts, OLD.counts));
  RETURN NULL;
END $$;
CREATE TRIGGER audit_verdict AFTER INSERT OR UPDATE OR DELETE ON judgement
  FOR EACH ROW EXECUTE FUNCTION audit_verdict();
"""


@dataclass
class Host:
    """Where a process runs: a command in front of it, and the addresses that it uses."""

    name: str
    prefix: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    database_url: str = ""


@dataclass
class Outcome:
    """What came of a run."""

    n_accepted: int = 0
    n_stored: int = 0
    n_lost: int = 0  # accepted, but without a verdict or not there
    n_without_verdict: int = 0
    n_twice: int = 0  # submissions whose verdict was written more than once
    n_failed_jobs: int = 0
    n_attempts: int = 0
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)  # from the submission to its verdict
    overtaken: int = 0  # most jobs of one person that began while another's first one waited
    events: Counter = field(default_factory=Counter)


class SharedServer:
    """Several web processes and workers."""

    def __init__(self, folder, url, n_people, *, hosts=None):
        self.folder, self.url = Path(folder), url
        self.folder.mkdir(parents=True, exist_ok=True)
        self.secret = self.folder / "secret"
        self.secret.write_text(secrets.token_urlsafe(48))
        self.database = open_database(self.folder, url)
        with self.database.write() as session:
            session.connection().exec_driver_sql(_AUDIT)
        settings = ServerSettings(
            data_folder=self.folder, mode="accounts", secret=self.secret.read_text()
        )
        people = open_people(settings, self.database, PasswordHashing(time_cost=1, memory_kib=64))
        self.tokens = []
        for n in range(n_people):
            person = people.accounts.create(
                f"person {n}", secrets.token_urlsafe(16), role="learner"
            )
            self.tokens.append(people.api_tokens.create(person, "test", can_submit=True))
        self._hosts = hosts or (lambda name: Host(name=name, database_url=url))
        self.webs, self.workers = {}, {}
        self._ports = itertools.count()
        self.log = (self.folder / "log").open("ab")

    # --------------------------------------------------------------------------- processes

    def start_web(self, name):
        host = self._hosts(name)
        port = self.webs[name][1] if name in self.webs else 20000 + secrets.randbelow(10000)
        arguments = ["serve", "--accounts", "--workers", "0", "--port", str(port)]
        arguments += ["--secret-file", str(self.secret), "--data", str(self.folder / name)]
        if host.address != "127.0.0.1":
            arguments += ["--host", host.address, "--public-host", f"{host.address}:{port}"]
        self.webs[name] = (self._start(host, arguments), port, host)

    def start_worker(self, name, *options):
        host = self._hosts(name)
        arguments = ["worker", "--data", str(self.folder / name), *options]
        self.workers[name] = self._start(host, arguments)

    def _start(self, host, arguments):
        return subprocess.Popen(
            [*host.prefix, sys.executable, "-m", "shardlab", *arguments],
            stdout=self.log, stderr=self.log, start_new_session=True,
            env={**os.environ, "SHARDLAB_DATABASE": host.database_url},
        )  # fmt: skip

    def kill_web(self, name):
        self._kill(self.webs[name][0])

    def kill_worker(self, name):
        self._kill(self.workers[name])

    def _kill(self, process):
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    def wait_until_ready(self):
        for name in self.webs:
            wait_for(lambda name=name: self._is_serving(name))

    def _is_serving(self, name):
        process, port, host = self.webs[name]
        assert process.poll() is None, (self.folder / "log").read_text()[-3000:]
        try:
            url = f"http://{host.address}:{port}/health"
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)["status"] in ("ready", "starting")
        except OSError:
            return False

    def wait_for_workers(self, n):
        query = "SELECT count(*) FROM worker WHERE state = 'ready' AND can_judge"
        wait_for(lambda: self.scalar(query) >= n)

    def stop(self):
        for process in [*self.workers.values(), *(web[0] for web in self.webs.values())]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in [*self.workers.values(), *(web[0] for web in self.webs.values())]:
            process.wait()
        self.database.close()
        self.log.close()

    # -------------------------------------------------------------------------- submissions

    def submit(self, person, source, web=None, kind="run"):
        """Send a submission to one of the web processes; return the response."""
        _, port, host = self.webs[web or random.choice(list(self.webs))]
        request = urllib.request.Request(
            f"http://{host.address}:{port}/api/v1/practice/problems/{SLUG}/submissions",
            data=json.dumps({"source": source, "kind": kind}).encode(),
            headers={
                "Authorization": f"Bearer {self.tokens[person]}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def submit_until_accepted(self, person, source):
        """Return the number of a submission, sent again whenever its response did not arrive."""
        deadline = time.monotonic() + 4 * PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                return self.submit(person, source)["number"]
            except (OSError, ValueError):  # a killed process, a database that restarts, a limit
                time.sleep(1.0)
        raise AssertionError("no web process took the submission")

    def scalar(self, query, **values):
        with self.database.read() as session:
            return session.execute(text(query), values).scalar()

    def rows(self, query, **values):
        with self.database.read() as session:
            return session.execute(text(query), values).all()

    def n_unfinished(self):
        return self.scalar("SELECT count(*) FROM job WHERE state IN ('queued', 'running')")


def wait_for(condition, seconds=PATIENCE_SECONDS):
    """Wait until a condition holds; a database that restarts is no error."""
    from sqlalchemy.exc import DBAPIError

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(DBAPIError):
            if condition():
                return
        time.sleep(0.2)
    raise AssertionError("waited too long")


def submit_all(server, sources):
    """Submit the sources of each person, one person in a thread; return number -> person."""
    numbers, lock = {}, threading.Lock()

    def submit_of(person):
        for source in sources[person]:
            number = server.submit_until_accepted(person, source)
            with lock:
                numbers[number] = person

    threads = [threading.Thread(target=submit_of, args=(person,)) for person in sources]
    for thread in threads:
        thread.start()
    return numbers, threads


def check_outcome(server, numbers, started, events):
    """Return what the database says about a run that has ended."""
    outcome = Outcome(n_accepted=len(numbers), seconds=time.time() - started, events=events)
    verdicts = dict(
        server.rows("SELECT submission, count(*) FROM judgement WHERE counts GROUP BY submission")
    )
    stored = [row[0] for row in server.rows("SELECT number FROM submission")]
    outcome.n_stored = len(stored)
    outcome.n_lost = sum(verdicts.get(number, 0) != 1 for number in numbers)
    outcome.n_without_verdict = sum(verdicts.get(number, 0) == 0 for number in stored)
    writes = Counter(row[0] for row in server.rows("SELECT submission FROM verdict_audit"))
    outcome.n_twice = sum(n > 1 for n in writes.values())
    outcome.n_failed_jobs = server.scalar("SELECT count(*) FROM job WHERE state <> 'done'")
    jobs = server.rows(
        "SELECT person, created, started, finished, attempt FROM job ORDER BY number"
    )
    outcome.n_attempts = sum(job.attempt for job in jobs)
    outcome.waits = sorted(job.finished - job.created for job in jobs if job.finished)
    outcome.overtaken = _most_overtaken(jobs)
    return outcome


def _most_overtaken(jobs):
    """Return the most jobs of one person that began while the first job of another waited.

    Only jobs that ran once: `started` is the time of the last attempt.
    """
    first, most = {}, 0
    for job in jobs:
        first.setdefault(job.person, job)
    for job in first.values():
        if job.attempt != 1:
            continue
        began = Counter(
            other.person
            for other in jobs
            if other.person != job.person and job.created < other.started < job.started
        )
        most = max([most, *began.values()])
    return most
