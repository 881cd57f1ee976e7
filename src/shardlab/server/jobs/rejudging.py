"""Judges stored submissions once more, with another version of the judge, on request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select

from shardlab.judge.judge_version import judge_version
from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import JudgementRow, SubmissionRow
from shardlab.server.jobs.queue import QueueLimits
from shardlab.server.jobs.sql_queue import SqlJobQueue

# All of it together has the turns of one person, so it delays everybody else by one job at most.
NOBODY = 0
_UNLIMITED = QueueLimits(per_person=10**9, total=10**9)


@dataclass(frozen=True, kw_only=True)
class RejudgeRequest:
    """Which submissions to judge once more: an empty field selects all."""

    problem: str = ""  # slug
    numbers: Collection[int] = ()


def queue_rejudgements(database: Database, request: RejudgeRequest) -> int:
    """Queue the judged submissions that this version of the judge has not judged; return how many.

    The earlier verdict stays in the database; people see the one of the newer judge.
    """
    version = judge_version()
    queue = SqlJobQueue(database, _UNLIMITED)
    counted = select(JudgementRow.submission).where(JudgementRow.counts)
    query = (
        select(SubmissionRow.number, SubmissionRow.person)
        .where(
            SubmissionRow.number.in_(counted),
            SubmissionRow.number.not_in(counted.where(JudgementRow.judge_version == version)),
        )
        .order_by(SubmissionRow.number)
    )
    if request.problem:
        query = query.where(SubmissionRow.problem == request.problem)
    if request.numbers:
        query = query.where(SubmissionRow.number.in_(request.numbers))
    with database.read() as session:
        selected = session.execute(query).all()
    for number, person in selected:
        payload = {"submission": number, "person": person, "is_rejudged": True}
        queue.enqueue(NOBODY, "judge", payload, key=f"rejudge {number} {version}")
    return len(selected)
