"""Section `web-submitting`: 50 submissions at once to a server with accounts.

One person submits five times first, then 45 people once each. None may be lost or judged twice, and
the five must not delay the others: the first ones begin at once, because nobody else waits yet, but
the last one waits until everybody had a turn. In the order of arrival it would be the fifth.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.options import Options
from benchmarks.report import Goal, Section
from benchmarks.web_server import memory_mb, running_server
from shardlab.catalogue.tracks import load_catalogue
from shardlab.server.database.engine import open_database
from shardlab.server.people.services import open_people
from shardlab.server.settings import ServerSettings

N_PEOPLE = 45
N_OF_ONE = 5
_SLUG = "shard-map-psum"
_LIMIT_S = 900.0


def measure_submitting(options: Options) -> Section:
    """Submit, wait until everything is judged, and count."""
    section = Section("50 submissions at once", ["what", "measured"])
    source = (load_catalogue().load_problem(_SLUG).folder / "solution.py").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        secret_file = Path(folder, "secret")
        secret_file.write_text(secrets.token_urlsafe(48))
        data = Path(folder, "data")
        data.mkdir()
        tokens = _create_people(data, secret_file.read_text())
        arguments = ("--accounts", "--secret-file", str(secret_file), "--data", str(data))
        with running_server("/health", *arguments) as server:
            _judge_one(server.url, tokens[1], source)  # the sandbox starts with the first one
            before_mb = memory_mb(server.pid)
            start = time.perf_counter()
            # The same text while the first one waits would be the same submission, not another.
            sources = [f"{source}\n# Attempt {n}\n" for n in range(N_OF_ONE)]
            numbers = [_submit(server.url, tokens[0], text) for text in sources]
            with ThreadPoolExecutor(16) as pool:
                others = pool.map(lambda token: _submit(server.url, token, source), tokens[1:])
                numbers += list(others)
            accepted_s = time.perf_counter() - start
            assert len(set(numbers)) == len(numbers), "two submissions have one number"
            order = _wait_until_judged(data, len(numbers) + 1)
            seconds = time.perf_counter() - start
            growth_mb = memory_mb(server.pid) - before_mb
        judgements = _count_judgements(data)
    turns = sorted(order.index(number) + 1 for number in numbers[:N_OF_ONE])
    lost = sum(judgements.get(number, 0) == 0 for number in numbers)
    twice = sum(judgements.get(number, 0) > 1 for number in numbers)
    section.rows = [
        ["accepted", f"{len(numbers)} in {accepted_s:.1f} s"],
        ["judged", f"{len(numbers) - lost} in {seconds:.0f} s"],
        ["lost, judged twice", f"{lost}, {twice}"],
        [f"turns of the person with {N_OF_ONE}", ", ".join(map(str, turns))],
        ["memory of the web process", f"{growth_mb:+.0f} MB"],
    ]
    section.data = [{"seconds": seconds, "order": order, "growth_mb": growth_mb}]
    section.goals = [
        Goal("submissions lost or judged twice", 0.0, float(lost + twice), unit=""),
        Goal(
            "turn of one person's fifth submission", 40.0, float(turns[-1]), at_most=False, unit=""
        ),
        Goal("growth of the web process", 20.0, growth_mb, unit=" MB"),
    ]
    return section


def _create_people(data: Path, secret: str) -> list[str]:
    """Create the accounts in the database; return an API token of each."""
    settings = ServerSettings(data_folder=data, mode="accounts", secret=secret)
    database = open_database(data)
    people = open_people(settings, database)
    tokens = []
    for n in range(N_PEOPLE + 1):
        person = people.accounts.create(f"person {n}", secrets.token_urlsafe(16), role="learner")
        tokens.append(people.api_tokens.create(person, "benchmark", can_submit=True))
    database.close()
    return tokens


def _submit(url: str, token: str, source: str) -> int:
    request = urllib.request.Request(
        f"{url}/api/v1/practice/problems/{_SLUG}/submissions",
        data=json.dumps({"source": source, "kind": "submit"}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_LIMIT_S) as response:
        return int(json.load(response)["number"])


def _judge_one(url: str, token: str, source: str) -> None:
    number = _submit(url, token, source)
    address = f"{url}/api/v1/practice/submissions/{number}"
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    while True:
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as response:
            if json.load(response)["code"]:
                return
        time.sleep(0.2)


def _wait_until_judged(data: Path, n_submissions: int) -> list[int]:
    """Return the numbers of the submissions in the order in which they were judged."""
    end = time.perf_counter() + _LIMIT_S
    while True:
        rows = _query(data, "SELECT submission FROM judgement ORDER BY judged, submission")
        if len(rows) >= n_submissions or time.perf_counter() > end:
            return [row[0] for row in rows[1:]]
        time.sleep(0.5)


def _count_judgements(data: Path) -> dict[int, int]:
    """Return how many finished jobs judged each submission."""
    rows = _query(data, "SELECT payload FROM job WHERE kind = 'judge' AND state = 'done'")
    counts: dict[int, int] = {}
    for (payload,) in rows:
        number = json.loads(payload)["submission"]
        counts[number] = counts.get(number, 0) + 1
    return counts


def _query(data: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{data / 'server.db'}?mode=ro", uri=True)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()
