"""An upload from end to end: read, stored with its version, and its audit queued."""

from __future__ import annotations

from itertools import count

from shardlab.server.catalogue_archive import read_archive
from shardlab.server.jobs.job_service import JobService
from shardlab.server.jobs.queue import Job, QueueFull
from shardlab.server.people.catalogues import CatalogueVersion
from shardlab.server.people.services import People
from shardlab.server.person import Person


def upload_catalogue(
    people: People, jobs: JobService, teacher: Person, title: str, data: bytes
) -> CatalogueVersion:
    """Store a new catalogue and queue its audit. Raises `Refusal`."""
    version = people.catalogues.create(teacher, title, read_archive(data))
    queue_audit(people, jobs, version)
    return version


def upload_version(
    people: People, jobs: JobService, catalogue_id: int, data: bytes
) -> CatalogueVersion:
    """Store a new version of a catalogue and queue its audit. Raises `NotThere` or `Refusal`."""
    version = people.catalogues.add_version(catalogue_id, read_archive(data))
    queue_audit(people, jobs, version)
    return version


def repeat_audit(
    people: People, jobs: JobService, catalogue_id: int, version_id: int
) -> CatalogueVersion:
    """Audit a version again that failed, or whose audit was interrupted. Raises `NotThere`."""
    version = people.catalogues.reset_audit(catalogue_id, version_id)
    queue_audit(people, jobs, version)
    return version


def queue_audit(people: People, jobs: JobService, version: CatalogueVersion) -> None:
    """Queue the audit of a version that waits for one; a full queue leaves it waiting."""
    owner = people.catalogues.owner_of(version.catalogue)
    if version.state != "waiting" or owner is None:
        return
    job, number = _find_jobs(jobs, version)
    if job is not None and not job.has_ended:
        return
    try:
        payload = {"version": version.id}
        # The teacher's job, also if an admin repeats it: it counts as work of the teacher.
        jobs.submit(owner, "audit_catalogue", payload, key=_key(version, number))
    except QueueFull:
        return  # the page shows that it waits, with a button


def find_audit(jobs: JobService, version: CatalogueVersion) -> Job | None:
    """Return the newest audit of a version."""
    return _find_jobs(jobs, version)[0]


def _key(version: CatalogueVersion, number: int) -> str:
    # A job that is done blocks its key; to audit again has another.
    return f"audit {version.id} {number}"


def _find_jobs(jobs: JobService, version: CatalogueVersion) -> tuple[Job | None, int]:
    """Return the newest audit, and how many are done."""
    latest: Job | None = None
    for number in count():
        job = jobs.queue.find_by_key(_key(version, number))
        if job is None or job.state != "done":
            return job or latest, number
        latest = job
    raise AssertionError("unreachable")
