"""Recordings: make one from a program, open a saved one, read and export them."""

from __future__ import annotations

import gzip
import io
import json
import re
import secrets
import time
import zlib
from typing import Annotated, Any

from fastapi import APIRouter, Header
from sqlalchemy import select
from sqlalchemy.orm import defer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shardlab.errors import InvalidRecording
from shardlab.hardware.chips import hardware_names, parse_hardware
from shardlab.recording.recording import Recording
from shardlab.server.api.api_models import (
    ERROR_RESPONSES,
    JobId,
    JobView,
    RecordingView,
    RecordRequest,
)
from shardlab.server.api.job_routes import submit_job
from shardlab.server.current_person import CurrentPerson
from shardlab.server.database.engine import Database
from shardlab.server.database.tables import RecordingRow
from shardlab.server.jobs.queue import NewRecording
from shardlab.server.jobs.sql_queue import add_recording
from shardlab.server.person import Person
from shardlab.sharding.mesh import parse_mesh

router = APIRouter(prefix="/api/v1/recordings", tags=["recordings"], responses=ERROR_RESPONSES)

_MAX_EXPANDED_BYTES = 64 * 2**20  # of an uploaded file; a small one can expand to any size
_MAX_LISTED = 100


def check_program_options(mesh: str, hardware: str | None) -> None:
    """Raise the error of a mesh or a chip that is not known, before anything is queued."""
    if mesh.strip():
        parse_mesh(mesh)
    # A name only: a path would make the server read a file.
    if hardware is not None and hardware not in hardware_names():
        parse_hardware(hardware.replace(".", "_"))


@router.post("", status_code=202)
def create_recording(request: Request, person: CurrentPerson, body: RecordRequest) -> JobView:
    """Run a program on a virtual mesh, confined, and record every step of it."""
    check_program_options(body.mesh, body.hardware)
    payload = {**body.model_dump(), "mesh": body.mesh.strip() or None}
    return submit_job(request, person, "record", payload)


@router.post(
    "/files",
    status_code=201,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        }
    },
)
async def open_recording_file(request: Request, person: CurrentPerson) -> RecordingView:
    """Store a recording that was saved to a file (JSON, or compressed with gzip)."""
    data = await request.body()
    return await run_in_threadpool(_store_file, request, person, data)


def _store_file(request: Request, person: Person, data: bytes) -> RecordingView:
    recording = read_recording_file(data)
    body = gzip.compress(recording.to_json_text().encode(), 6)
    source = recording.sources[0].text if recording.sources else ""
    new = NewRecording(title=recording.title, source=source, body=body)
    recording_id, created = secrets.token_urlsafe(16), time.time()
    with _database(request).write() as session:
        limits = request.app.state.settings.limits.queue
        add_recording(session, recording_id, person.id, new, created=created, limits=limits)
    url = f"/api/v1/recordings/{recording_id}"
    return RecordingView(id=recording_id, title=recording.title[:200], created=created, url=url)


def read_recording_file(data: bytes) -> Recording:
    """Return the recording in a file. Raises `InvalidRecording`."""
    try:
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(_MAX_EXPANDED_BYTES + 1)
        if len(data) > _MAX_EXPANDED_BYTES:
            raise InvalidRecording(
                f"The recording has more than {_MAX_EXPANDED_BYTES >> 20} MB.",
                fix="record fewer steps, or a smaller mesh.",
            )
        content = json.loads(data)
    except (ValueError, OSError, EOFError, zlib.error, RecursionError):
        raise InvalidRecording(
            "The file is not a recording.",
            fix="choose a file that shardlab run --record or Recording.save wrote.",
        ) from None
    return Recording.from_json(content)


@router.get("")
def list_recordings(request: Request, person: CurrentPerson) -> list[RecordingView]:
    """Return your newest recordings."""
    statement = (
        select(RecordingRow)
        .where(RecordingRow.person == person.id)
        .order_by(RecordingRow.created.desc())
        .limit(_MAX_LISTED)
        .options(defer(RecordingRow.body), defer(RecordingRow.source))
    )
    with _database(request).read() as session:
        return [
            RecordingView(
                id=row.id, title=row.title, created=row.created, url=f"/api/v1/recordings/{row.id}"
            )
            for row in session.scalars(statement)
        ]


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


def _own_recording(request: Request, person: Person, recording_id: str) -> RecordingRow:
    with _database(request).read() as session:
        row = session.get(RecordingRow, recording_id)
    if row is None or row.person != person.id:
        raise HTTPException(404, "There is no such recording.")
    return row


# The two exports before the recording itself: its path would match them too.
@router.get(
    "/{recording_id}.html",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}}},
)
def export_page(request: Request, person: CurrentPerson, recording_id: JobId) -> Response:
    """Return one HTML file that shows the recording without a server."""
    recording = _load(request, person, recording_id)
    # A download: on this origin its inline script would not be allowed to run.
    return _download(recording.to_html(), "text/html; charset=utf-8", recording.title, ".html")


@router.get("/{recording_id}/perfetto.json", response_class=JSONResponse)
def export_perfetto(request: Request, person: CurrentPerson, recording_id: JobId) -> Response:
    """Return the timeline as Chrome trace events, for ui.perfetto.dev."""
    recording = _load(request, person, recording_id)
    text = json.dumps(recording.to_perfetto(), separators=(",", ":"))
    return _download(text, "application/json", recording.title, ".perfetto.json")


@router.get("/{recording_id}/source")
def show_source(request: Request, person: CurrentPerson, recording_id: JobId) -> dict[str, Any]:
    """Return the text of the program."""
    row = _own_recording(request, person, recording_id)
    return {"title": row.title, "source": row.source}


@router.get("/{recording_id}", response_class=JSONResponse)
def show_recording(
    request: Request,
    person: CurrentPerson,
    recording_id: JobId,
    accept_encoding: Annotated[str, Header(max_length=200)] = "",
    if_none_match: Annotated[str, Header(max_length=200)] = "",
) -> Response:
    """Return a recording (format shardlab-recording)."""
    row = _own_recording(request, person, recording_id)
    # A recording never changes, and only its person may have it.
    headers = {
        "etag": f'"{row.id}"',
        "cache-control": "private, no-cache",
        "vary": "accept-encoding",
    }
    if if_none_match == headers["etag"]:
        return Response(status_code=304, headers=headers)
    if "gzip" in accept_encoding:  # stored as it is sent
        headers["content-encoding"] = "gzip"
        return Response(row.body, media_type="application/json", headers=headers)
    return Response(gzip.decompress(row.body), media_type="application/json", headers=headers)


def _load(request: Request, person: Person, recording_id: str) -> Recording:
    row = _own_recording(request, person, recording_id)
    return Recording.from_json(json.loads(gzip.decompress(row.body)))


def _download(text: str, media_type: str, title: str, suffix: str) -> Response:
    # Letters, digits and dashes: nothing of a title may end the header's quotes.
    name = re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")[:60] or "recording"
    disposition = f'attachment; filename="{name}{suffix}"'
    return Response(text, media_type=media_type, headers={"content-disposition": disposition})
