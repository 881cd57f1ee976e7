"""What the application has for its operator, built once per web process."""

from __future__ import annotations

from fastapi import FastAPI

from shardlab.server.database.engine import Database
from shardlab.server.jobs.job_service import JobService
from shardlab.server.operations.job_ledger import JobLedger
from shardlab.server.operations.metrics import ServerMetrics
from shardlab.server.operations.queue_figures import list_workers
from shardlab.server.operations.readiness import Readiness
from shardlab.server.operations.storage import Storage
from shardlab.server.settings import ServerSettings


def add_operations(app: FastAPI) -> None:
    """Set `metrics`, `ledger`, `readiness` and `storage` of the application's state."""
    settings: ServerSettings = app.state.settings
    database: Database = app.state.database
    jobs: JobService = app.state.jobs
    metrics = app.state.metrics = ServerMetrics()
    metrics.time_statements(database.engine)
    app.state.ledger = JobLedger(database, metrics)
    app.state.storage = Storage(settings.data_folder, database, settings.limits.disk)
    app.state.readiness = Readiness(
        database, jobs, lambda: list_workers(jobs), settings.limits.jobs_in_queue
    )
