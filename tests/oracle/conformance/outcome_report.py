"""A pytest plugin that writes the outcome of every test, for tools/library_tests.py.

One JSON line per test, as it ends: a run that is interrupted leaves what it has.
"""

from __future__ import annotations

import json
import os


class OutcomeReport:
    def __init__(self, path):
        self.file = open(path, "w")  # noqa: SIM115  open until the session ends
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        # A test has three reports (setup, call, teardown); a failure in any of them counts.
        has_failed = self.outcomes.get(report.nodeid, {}).get("outcome") == "failed"
        if not has_failed and (report.when == "call" or report.outcome != "passed"):
            self.outcomes[report.nodeid] = _describe_report(report)
        if report.when == "teardown" and report.nodeid in self.outcomes:
            line = {"test": report.nodeid, **self.outcomes[report.nodeid]}
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def _describe_report(report):
    if not report.failed:
        return {"outcome": report.outcome}
    crash = getattr(report.longrepr, "reprcrash", None)
    return {"outcome": "failed", "error": str(crash.message if crash else report.longrepr)[:2000]}


def pytest_configure(config):
    config.pluginmanager.register(OutcomeReport(os.environ["OUTCOMES_REPORT"]))
