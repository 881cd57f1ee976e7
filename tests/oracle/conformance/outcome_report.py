"""A pytest plugin that writes the outcome of every test, for tools/library_tests.py."""

from __future__ import annotations

import json
import os


class Outcomes:
    def __init__(self):
        self.by_test = {}

    def pytest_runtest_logreport(self, report):
        # A test has three reports (setup, call, teardown); a failure in any of them counts.
        before = self.by_test.get(report.nodeid, {"outcome": "passed"})
        if report.when == "call" or report.outcome != "passed":
            outcome = {"outcome": report.outcome}
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                outcome["error"] = str(crash.message if crash else report.longrepr)[:2000]
            if before["outcome"] != "failed":
                self.by_test[report.nodeid] = outcome


_outcomes = Outcomes()


def pytest_configure(config):
    config.pluginmanager.register(_outcomes)


def pytest_sessionfinish(session):
    with open(os.environ["OUTCOMES_REPORT"], "w") as file:
        json.dump(_outcomes.by_test, file, indent=1)
