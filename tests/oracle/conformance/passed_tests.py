"""A pytest plugin that records which tests passed, for tools/conformance.py."""

from __future__ import annotations

import json
import os
import sys


def pytest_terminal_summary(terminalreporter):
    passed = {report.nodeid.split("::")[-1] for report in terminalreporter.stats.get("passed", [])}
    runs = getattr(sys.modules.get("reroute"), "runs", {})
    executed = sorted(name for name in passed if runs.get(name))
    if runs:
        terminalreporter.write_line(
            f"rerouted: {len(passed)} passed, of which {len(executed)} executed the simulator "
            f"({sum(runs.values())} shard_map evaluations)"
        )
    target = os.environ.get("REROUTE_REPORT")
    if target:
        with open(target, "w") as file:
            json.dump({"passed": sorted(passed), "executed": executed}, file)
