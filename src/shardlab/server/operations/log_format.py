"""Log lines: text for a terminal, or one JSON object per line for a log store.

A line never has a password, a token, a query string, or a program: requests are logged by their
route, and SQLAlchemy is told not to print the values of a statement.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

from shardlab.server.operations.request_id import current_job_id, current_request_id

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
# What a call may add to its line: logger.info("...", extra={"fields": {...}}).
_FIELDS = "fields"
_MAX_TEXT = 16_000  # of a traceback; a line must fit into a log store


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:_MAX_TEXT],
            "process": record.process,
        }
        for key, value in _context().items():
            line[key] = value
        line |= getattr(record, _FIELDS, {})
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = type(record.exc_info[1]).__name__
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))[-_MAX_TEXT:]
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record for a terminal, with the ids that find the same event elsewhere."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s%(context)s")

    def format(self, record: logging.LogRecord) -> str:
        context = "".join(f" {key}={value}" for key, value in _context().items())
        record.context = f" [{context.strip()}]" if context else ""
        return super().format(record)


def _context() -> dict[str, str]:
    ids = {"request_id": current_request_id.get(), "job_id": current_job_id.get()}
    return {key: value for key, value in ids.items() if value}


def configure_logging(log_format: LogFormat) -> None:
    """Send the log of this process to standard error.

    As JSON there is also a line for each request and each job; a terminal shows warnings only.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    level = logging.INFO if log_format == "json" else logging.WARNING
    logging.getLogger("shardlab").setLevel(level)
