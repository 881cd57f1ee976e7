"""A report as SARIF 2.1.0, the form in which code hosts show findings beside the lines."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shardlab import __version__
from shardlab.checks.check_codes import CODES
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# SARIF's words for how grave a result is.
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_ROOT = "%SRCROOT%"


def sarif(report: Report, *, program: str = "") -> dict[str, Any]:
    """Return the report as one run; a finding without a line is shown at the `program`'s file."""
    results = [_result(found, program) for found in report.findings]
    for each in report.silenced:
        suppression = {"kind": "inSource", "justification": each.reason}
        results.append({**_result(each.finding, program), "suppressions": [suppression]})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "shardlab",
                        "semanticVersion": __version__,
                        "rules": [_rule(code) for code in CODES],
                    }
                },
                "invocations": [{"executionSuccessful": True}],
                "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri() + "/"}},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    kind = CODES[code]
    title = kind.title[0].upper() + kind.title[1:] + "."
    return {
        "id": code,
        "name": "".join(word.title() for word in code.replace("_", ".").split(".")),
        "shortDescription": {"text": title},
        "help": {
            "text": f"{title} To silence it, write on its line: "
            f"# shardlab: ignore[{code}] and the reason.",
        },
        "defaultConfiguration": {"level": _LEVELS[kind.severity]},
    }


def _result(found: Finding, program: str) -> dict[str, Any]:
    where = found.where
    file = where.file if where and where.line else program
    line = where.line if where and where.line else 1
    result: dict[str, Any] = {
        "ruleId": found.code,
        "ruleIndex": list(CODES).index(found.code),
        "level": _LEVELS[found.severity],
        "message": {"text": _message(found)},
        "locations": [],
        # The line's number may move: the finding is the same while file, kind and words are.
        "partialFingerprints": {"shardlab/v1": _fingerprint(found.code, file, found.what)},
    }
    if file:
        result["locations"] = [_location(file, line, where.function if where else "")]
    return result


def _message(found: Finding) -> str:
    fix = f"\nTry: {found.fix}" if found.fix else ""
    return "\n".join([found.what, *found.shows]) + fix


def _location(file: str, line: int, function: str) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(file), "region": {"startLine": line}}
    }
    if function:
        location["logicalLocations"] = [{"name": function, "kind": "function"}]
    return location


def _artifact(file: str) -> dict[str, str]:
    """Return a place relative to the folder the command was called in, where it is below it."""
    path = Path(os.path.abspath(file))
    if path.is_relative_to(Path.cwd()):
        return {"uri": quote(path.relative_to(Path.cwd()).as_posix()), "uriBaseId": _ROOT}
    return {"uri": path.as_uri()}


def _fingerprint(*parts: str) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
