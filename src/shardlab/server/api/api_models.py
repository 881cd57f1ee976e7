"""What the JSON API accepts and returns. Every text and list has a limit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_SOURCE_CHARACTERS = 256 * 1024
JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
SourceText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SOURCE_CHARACTERS)]
MeshText = Annotated[str, StringConstraints(max_length=200)]


class ApiModel(BaseModel):
    """The base of all bodies: a field that is not known is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorDetail(BaseModel):
    """What went wrong and what to do."""

    status: int
    message: str
    code: str | None = None
    where: str | None = None
    fix: str | None = None
    fields: list[dict[str, str]] | None = None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class RecordRequest(ApiModel):
    """A program to run and record on a virtual mesh."""

    source: SourceText
    mesh: MeshText = Field(default="", description="Such as data=4,model=2; empty: the program's.")
    target: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None, description="The function to record; by default the program's own choice."
    )
    hardware: Annotated[str, StringConstraints(max_length=60)] | None = None
    edit: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None, description="The id of a break-it edit that is applied first."
    )


class EditsRequest(ApiModel):
    """A program whose break-it edits are listed."""

    source: SourceText
    mesh: MeshText = ""


class JobErrorView(BaseModel):
    """Why a job failed."""

    kind: str
    message: str
    line: int | None = None
    fix: str = ""


class JobView(BaseModel):
    """A job: where it stands, and where its result is."""

    id: str
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    position: int | None = Field(default=None, description="In the queue; 1 is next.")
    is_starting: bool = Field(default=False, description="Whether the workers still start.")
    is_cancel_requested: bool = False
    progress: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    result_url: str | None = None
    error: JobErrorView | None = None
    events_url: str


class GalleryItem(BaseModel):
    """A program to begin with."""

    slug: str
    title: str
    summary: str
    kind: Literal["pattern", "hazard"]
    source: str
    mesh: str
    target: str | None


class RecordingView(BaseModel):
    """A stored recording, without its content."""

    id: str
    title: str
    created: float
    url: str


# What any route of the API can answer besides its result.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 401, 403, 404, 413, 421, 422, 429, 503, 507)
}
