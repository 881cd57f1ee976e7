"""What one person may use, and what the server keeps free: one value, from one TOML file.

    [person]
    submissions_per_day = 300
    recording_bytes = "100MB"

    [disk]
    min_free_bytes = "5GB"

A key that is left out has its default. `shardlab serve --limits FILE` reads the file once, at the
start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from shardlab._files.schema import Field, check_fields, is_count, is_table, read_toml_file
from shardlab._text.units import parse_bytes
from shardlab.errors import InvalidServerOption, LabError
from shardlab.server.jobs.queue import QueueLimits


@dataclass(frozen=True, kw_only=True)
class PersonQuotas:
    """What one person may use."""

    submissions_per_minute: int = 30
    submissions_per_hour: int = 600
    submissions_per_day: int = 2000
    jobs_in_queue: int = 16
    recordings: int = 500
    recording_bytes: int = 200_000_000  # compressed; one recording has about 0.1 MB
    catalogues: int = 20  # of one teacher
    catalogue_uploads_per_hour: int = 20


@dataclass(frozen=True, kw_only=True)
class DiskLimits:
    """When the server stores nothing large any more. Submissions go on."""

    min_free_bytes: int = 500_000_000
    max_stored_bytes: int = 0  # 0: no limit of its own


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Every limit that an operator can set."""

    person: PersonQuotas = field(default_factory=PersonQuotas)
    disk: DiskLimits = field(default_factory=DiskLimits)
    jobs_in_queue: int = 500  # of all people together

    @property
    def queue(self) -> QueueLimits:
        """Return those that the queue keeps."""
        return QueueLimits(
            per_person=self.person.jobs_in_queue,
            total=self.jobs_in_queue,
            recordings=self.person.recordings,
            recording_bytes=self.person.recording_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ServerLimits:
        return cls(
            person=PersonQuotas(**data["person"]),
            disk=DiskLimits(**data["disk"]),
            jobs_in_queue=data["jobs_in_queue"],
        )


def _is_amount(value: Any) -> bool:
    try:
        return is_count(parse_bytes(value))
    except LabError:
        return False


def _is_positive(value: Any) -> bool:
    return is_count(value, 1)


_AMOUNTS = {"recording_bytes", "min_free_bytes", "max_stored_bytes"}
_POSITIVE = {"jobs_in_queue", "recordings", "recording_bytes"}


def _schema(record: type) -> dict[str, Field]:
    schema = {}
    for entry in fields(record):
        is_amount = entry.name in _AMOUNTS
        expected = 'bytes, such as 500000000 or "500MB"' if is_amount else "a whole number"
        accepts = _is_positive if entry.name in _POSITIVE else is_count
        schema[entry.name] = Field(
            expected=expected,
            is_valid=_is_amount if is_amount else accepts,
            meaning="",
        )
    return schema


_TABLES = {
    "person": Field(expected="a table", is_valid=is_table, meaning=""),
    "disk": Field(expected="a table", is_valid=is_table, meaning=""),
    "queue": Field(expected="a table", is_valid=is_table, meaning=""),
}
_QUEUE = {"jobs": Field(expected="a whole number from 1", is_valid=_is_positive, meaning="")}


def read_limits(file: Path) -> ServerLimits:
    """Return the limits in a TOML file. Raises `InvalidServerOption`."""
    fix = "name a TOML file that this user can read: --limits FILE"
    data = read_toml_file(file, InvalidServerOption, fix=fix)
    return parse_limits(data, str(file))


def parse_limits(data: Mapping[str, Any], where: str) -> ServerLimits:
    """Return the limits in a table. Raises `InvalidServerOption`.

    >>> parse_limits({"person": {"recording_bytes": "1MB"}}, "limits.toml").person.recording_bytes
    1000000
    """
    check_fields(data, _TABLES, where, InvalidServerOption)
    person = _read_table(data, "person", _schema(PersonQuotas), where)
    disk = _read_table(data, "disk", _schema(DiskLimits), where)
    queue = _read_table(data, "queue", _QUEUE, where)
    return ServerLimits(
        person=PersonQuotas(**person),
        disk=DiskLimits(**disk),
        jobs_in_queue=queue.get("jobs", ServerLimits.jobs_in_queue),
    )


def _read_table(
    data: Mapping[str, Any], key: str, schema: Mapping[str, Field], where: str
) -> dict[str, Any]:
    table = check_fields(data.get(key, {}), schema, where, InvalidServerOption, key)
    return {
        name: parse_bytes(value) if name in _AMOUNTS else value for name, value in table.items()
    }
