"""The export of a practice store: one JSON document, or a zip file with every submission."""

from __future__ import annotations

import base64
import json
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardlab.course.store import PracticeStore

EXPORT_VERSION = 1


def export_practice(store: PracticeStore, catalogue: str) -> dict[str, Any]:
    """Return progress and every submission of a store with its source and its judgement."""
    submissions = []
    for submission in store.list_submissions():
        judgement = store.load_judgement(submission.number)
        submissions.append(
            {
                **submission.to_json(),
                **_source_json(store.load_source(submission.number)),
                "judgement": None if judgement is None else judgement.to_json(),
            }
        )
    return {
        "format_version": EXPORT_VERSION,
        "catalogue": catalogue,
        "progress": [progress.to_json() for progress in store.load_progress().values()],
        "submissions": submissions,
    }


def write_practice_zip(store: PracticeStore, file: Path | IO[bytes]) -> None:
    """Write `practice.json`, and each submission as a file of its own, byte for byte."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("practice.json", json.dumps(store.export_data(), indent=2))
        for submission in store.list_submissions():
            label = f"{submission.kind}-{submission.code or 'not-judged'}"
            name = f"{submission.problem}/{submission.number:05}-{label}.py"
            archive.writestr(name, store.load_source(submission.number))


def _source_json(source: bytes) -> dict[str, str]:
    """Return a source as text, or as base64 if it is not UTF-8, so that no byte is lost."""
    try:
        return {"source": source.decode("utf-8")}
    except UnicodeDecodeError:
        return {"source_base64": base64.b64encode(source).decode()}
