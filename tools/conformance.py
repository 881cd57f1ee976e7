"""Runs JAX's own shard_map tests with every shard_map rerouted to the simulator.

    python tools/conformance.py path/to/jax      a clone of JAX's repository (bare is fine)
    python tools/conformance.py --check path/to/jax

Reads tests/shard_map_test.py from that clone, at the tag of the installed JAX, and runs it twice:
unchanged and rerouted. The tests that fail only when rerouted must be exactly those of the table in
docs/conformance.md; otherwise the exit code is 1. With --check, every shard_map that the tests run
is also checked statically, and the findings must be exactly those of the second table.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "conformance.md"
GOAL = 415  # tests that pass rerouted; docs/conformance.md has the same number

# Both tables start their rows with the name of a test. In the table of findings the second column
# is a code, in backquotes; in the table of failures it is a sentence.
FAILURE_ROW = re.compile(r"^\| `(test_\w+)` \| [^`]", re.MULTILINE)
FINDING_ROW = re.compile(r"^\| `(test_\w+)` \| `([\w.]+)` \|", re.MULTILINE)


def main(arguments: list[str]) -> int:
    is_check = arguments[:1] == ["--check"]
    arguments = arguments[is_check:]
    if len(arguments) != 1:
        print(__doc__)
        return 2
    tag = f"jax-v{jax.__version__}"
    with tempfile.TemporaryDirectory() as folder:
        test_file = extract_test_file(arguments[0], tag, Path(folder))
        if test_file is None:
            print(f"{arguments[0]} has no tag {tag} with tests/shard_map_test.py")
            return 2
        if is_check:
            return report_findings(tag, collect_findings(test_file))
        unchanged = collect_outcomes(test_file, [])
        rerouted = collect_outcomes(test_file, ["-p", "reroute"])
    return report_outcomes(tag, unchanged, rerouted)


def extract_test_file(repository: str, tag: str, folder: Path) -> Path | None:
    # `git show` needs no checkout, so a bare clone works and a work tree stays as it is.
    process = subprocess.run(
        ["git", "-C", repository, "show", f"{tag}:tests/shard_map_test.py"],
        capture_output=True,
        check=False,
    )
    if process.returncode:
        return None
    path = folder / "shard_map_test.py"
    path.write_bytes(process.stdout)
    return path


def collect_outcomes(test_file: Path, options: list[str]) -> dict[str, Any]:
    """Run the file and return the names of the tests that passed."""
    report = test_file.with_suffix(".json")
    print(f"running {'rerouted' if options else 'unchanged'} ...", flush=True)
    run_pytest(test_file, ["-p", "passed_tests", *options], {"REROUTE_REPORT": str(report)})
    outcomes: dict[str, Any] = json.loads(report.read_text())
    return outcomes


def collect_findings(test_file: Path) -> dict[str, Any]:
    """Run the file, check every shard_map that it runs, and return the findings."""
    report = test_file.with_suffix(".json")
    print("running rerouted and checked ...", flush=True)
    run_pytest(test_file, ["-p", "reroute", "-p", "alarms"], {"ALARMS_REPORT": str(report)})
    findings: dict[str, Any] = json.loads(report.read_text())
    return findings


def run_pytest(test_file: Path, options: list[str], variables: dict[str, str]) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "oracle" / "conformance")])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **variables}
    # check=False: tests fail in both runs, and the plugins' report says which.
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", *options, test_file],
        cwd=test_file.parent,
        env=environment,
        check=False,
    )


def report_outcomes(tag: str, unchanged: dict[str, Any], rerouted: dict[str, Any]) -> int:
    before, after = set(unchanged["passed"]), set(rerouted["passed"])
    failures = before - after
    documented = set(FAILURE_ROW.findall(DOC.read_text()))
    print(
        f"{tag}: {len(before)} tests pass unchanged, {len(before & after)} of them rerouted "
        f"(goal: {GOAL}), {len(rerouted['executed'])} executed the simulator"
    )
    for name in sorted(failures - documented):
        print(f"  fails, but is not in docs/conformance.md: {name}")
    for name in sorted(documented - failures):
        print(f"  passes, but is in docs/conformance.md: {name}")
    return 0 if failures == documented and len(before & after) >= GOAL else 1


def report_findings(tag: str, result: dict[str, Any]) -> int:
    findings = {(test, code) for test, code, _ in result["alarms"]}
    documented = set(FINDING_ROW.findall(DOC.read_text()))
    print(
        f"{tag}: {result['programs']} programs of {result['tests']} tests checked, "
        f"{len(findings)} findings, {len(result['failures'])} programs could not be analyzed"
    )
    for test, code in sorted(findings - documented):
        print(f"  a finding that is not in docs/conformance.md: {code} in {test}")
    for test, code in sorted(documented - findings):
        print(f"  in docs/conformance.md, but there is no such finding: {code} in {test}")
    for test, reason in result["failures"].items():
        print(f"  could not be analyzed: {test}: {reason}")
    return 0 if findings == documented and not result["failures"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
