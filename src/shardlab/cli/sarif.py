"""A report as SARIF 2.1.0, the format in which code hosts show findings beside the lines."""

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
# SARIF's names of severities.
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_ROOT = "%SRCROOT%"


def report_to_sarif(report: Report, *, program_file: str = "") -> dict[str, Any]:
    """Return the report as one run; a finding without a line is reported at `program_file`."""
    results = [_finding_result(finding, program_file) for finding in report.findings]
    for suppressed in report.suppressed:
        suppression = {"kind": "inSource", "justification": suppressed.reason}
        result = _finding_result(suppressed.finding, program_file)
        results.append({**result, "suppressions": [suppression]})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "shardlab",
                        "semanticVersion": __version__,
                        "rules": [_code_rule(code) for code in CODES],
                    }
                },
                # Findings are results, not a failure of the tool.
                "invocations": [{"executionSuccessful": True}],
                # Relative URIs are resolved against it, so a code host maps them to the repository.
                "originalUriBaseIds": {_ROOT: {"uri": Path.cwd().as_uri() + "/"}},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _code_rule(code: str) -> dict[str, Any]:
    kind = CODES[code]
    title = kind.title[0].upper() + kind.title[1:] + "."
    return {
        "id": code,
        "name": "".join(word.title() for word in code.replace("_", ".").split(".")),
        "shortDescription": {"text": title},
        "help": {
            "text": f"{title} To suppress it, write on its line: "
            f"# shardlab: ignore[{code}] and the reason.",
        },
        "defaultConfiguration": {"level": _LEVELS[kind.severity]},
    }


def _finding_result(finding: Finding, program_file: str) -> dict[str, Any]:
    location = finding.where
    has_line = location is not None and bool(location.line)
    file = location.file if location and has_line else program_file
    line = location.line if location and has_line else 1
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": list(CODES).index(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": _message_text(finding)},
        "locations": [],
        # Without the line number, which changes with every edit above it: a code host must
        # recognize the same finding in the next commit.
        "partialFingerprints": {"shardlab/v1": _hash_fingerprint(finding.code, file, finding.what)},
    }
    if file:
        result["locations"] = [_sarif_location(file, line, location.function if location else "")]
    return result


def _message_text(finding: Finding) -> str:
    fix = f"\nTry: {finding.fix}" if finding.fix else ""
    return "\n".join([finding.what, *finding.shows]) + fix


def _sarif_location(file: str, line: int, function: str) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": _artifact_location(file),
            "region": {"startLine": line},
        }
    }
    if function:
        location["logicalLocations"] = [{"name": function, "kind": "function"}]
    return location


def _artifact_location(file: str) -> dict[str, str]:
    """Return a URI relative to the current folder for files below it, an absolute one otherwise."""
    path = Path(os.path.abspath(file))
    if path.is_relative_to(Path.cwd()):
        return {"uri": quote(path.relative_to(Path.cwd()).as_posix()), "uriBaseId": _ROOT}
    return {"uri": path.as_uri()}


def _hash_fingerprint(*parts: str) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
