"""Everything that is kept about a person, as plain data, and as a zip with the answers in it."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path
from typing import Any

from shardlab.course.store import Record

FORMAT_VERSION = 1


def export_data(record: Record) -> dict[str, Any]:
    """Return progress and every submission with its answer and its judgement."""
    return {
        "format_version": FORMAT_VERSION,
        "catalogue": record.catalogue,
        "progress": [each.to_json() for each in record.progress().values()],
        "submissions": [
            {**each.to_json(), **_source(record.source(each.number)), "judgement": told}
            for each in record.submissions()
            for told in [_judgement(record, each.number)]
        ],
    }


def write_zip(record: Record, path: Path) -> None:
    """Write `practice.json`, and each answer as a file of its own, byte for byte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("practice.json", json.dumps(export_data(record), indent=2))
        for each in record.submissions():
            name = f"{each.problem}/{each.number:05}-{each.kind}-{each.code or 'not-judged'}.py"
            archive.writestr(name, record.source(each.number))


def _source(source: bytes) -> dict[str, str]:
    """Return an answer as text; one that is no UTF-8 as base64, so that nothing is lost."""
    try:
        return {"source": source.decode("utf-8")}
    except UnicodeDecodeError:
        return {"source_base64": base64.b64encode(source).decode()}


def _judgement(record: Record, number: int) -> dict[str, Any] | None:
    judgement = record.judgement(number)
    return None if judgement is None else judgement.to_json()
