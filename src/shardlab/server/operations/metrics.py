"""What a server counts about itself.

Every web process counts its own requests, and is scraped by itself. What all processes share (the
queue, finished jobs, workers) is read from the database when somebody scrapes, so each process
reports the same values: aggregate those with `max`, and the counts of requests with `sum`.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any, get_args

from sqlalchemy import Engine, event

from shardlab.server.jobs.queue import JobKind
from shardlab.server.operations.instruments import Counter, Histogram

_REQUEST_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_DATABASE_BOUNDS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_JUDGE_BOUNDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_WAIT_BOUNDS = (0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0)
OUTCOMES = ("done", "cancelled", "program_error", "shardlab_error", "sandbox_error")
_STATEMENTS = ("select", "insert", "update", "delete")
_START = "shardlab_statement_start"


class ServerMetrics:
    """The counters and histograms of one web process."""

    def __init__(self) -> None:
        self.requests = Counter()  # method, route, status
        self.request_seconds = Histogram(_REQUEST_BOUNDS)  # route
        # From zero: a rate cannot see the first event of a series that begins with it.
        self.sign_in_failures = Counter([("password",), ("passkey",)])  # method
        self.database_seconds = Histogram(_DATABASE_BOUNDS)  # statement
        self.jobs_finished = Counter(product(get_args(JobKind), OUTCOMES))  # kind, outcome
        self.judge_seconds = Histogram(_JUDGE_BOUNDS)  # problem
        self.job_wait_seconds = Histogram(_WAIT_BOUNDS)  # kind

    def time_statements(self, engine: Engine) -> None:
        """Measure every statement that this process sends to the database."""

        @event.listens_for(engine, "before_cursor_execute")
        def remember_start(connection: Any, *_: Any) -> None:
            connection.info[_START] = time.perf_counter()

        @event.listens_for(engine, "after_cursor_execute")
        def observe(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            start = connection.info.pop(_START, None)
            if start is not None:
                verb = statement.lstrip()[:6].lower()
                label = verb if verb in _STATEMENTS else "other"
                self.database_seconds.observe(time.perf_counter() - start, label)
