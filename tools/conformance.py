"""Runs JAX's own shard_map tests with every shard_map rerouted to the simulator.

    python tools/conformance.py path/to/jax      a clone of JAX's repository (bare is fine)
    python tools/conformance.py --check path/to/jax

Takes tests/shard_map_test.py at the tag of the installed JAX out of that clone, runs it once as it
is and once rerouted, and compares the tests that fail only when rerouted with the list in
docs/conformance.md: exactly those, or the exit code is 1. With --check every shard_map that the
tests run is also checked, and the alarms are compared with the list there.
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
BAR = 415


def main(arguments: list[str]) -> int:
    is_check = arguments[:1] == ["--check"]
    arguments = arguments[is_check:]
    if len(arguments) != 1:
        print(__doc__)
        return 2
    tag = f"jax-v{jax.__version__}"
    with tempfile.TemporaryDirectory() as folder:
        source = test_file(arguments[0], tag, Path(folder))
        if source is None:
            print(f"{arguments[0]} has no tag {tag} with tests/shard_map_test.py in it")
            return 2
        if is_check:
            return report_alarms(tag, alarms(source))
        plain = outcomes(source, [])
        rerouted = outcomes(source, ["-p", "reroute"])
    return report(tag, plain, rerouted)


def test_file(repository: str, tag: str, folder: Path) -> Path | None:
    shown = subprocess.run(
        ["git", "-C", repository, "show", f"{tag}:tests/shard_map_test.py"],
        capture_output=True,
        check=False,
    )
    if shown.returncode:
        return None
    path = folder / "shard_map_test.py"
    path.write_bytes(shown.stdout)
    return path


def outcomes(source: Path, options: list[str]) -> dict[str, object]:
    """Run the file and return the names of the tests that passed."""
    target = source.with_suffix(".json")
    print(f"{'rerouted' if options else 'as it is'} ...", flush=True)
    run(source, ["-p", "passed_tests", *options], {"REROUTE_REPORT": str(target)})
    found: dict[str, object] = json.loads(target.read_text())
    return found


def alarms(source: Path) -> dict[str, Any]:
    """Run the file, checking every shard_map on the way, and return what was found."""
    target = source.with_suffix(".json")
    print("rerouted and checked ...", flush=True)
    run(source, ["-p", "reroute", "-p", "alarms"], {"ALARMS_REPORT": str(target)})
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def run(source: Path, options: list[str], told: dict[str, str]) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "oracle" / "conformance")])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **told}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", *options, source],
        cwd=source.parent,
        env=environment,
        check=False,
    )


def report(tag: str, plain: dict, rerouted: dict) -> int:
    before, after = set(plain["passed"]), set(rerouted["passed"])
    lost = before - after
    listed = set(re.findall(r"^\| `(test_\w+)` \| [^`]", DOC.read_text(), re.MULTILINE))
    print(
        f"{tag}: {len(before)} pass as they are, {len(before & after)} of them rerouted "
        f"(at least {BAR} wanted), {len(rerouted['executed'])} executed the simulator"
    )
    for name in sorted(lost - listed):
        print(f"  fails and is not listed in docs/conformance.md: {name}")
    for name in sorted(listed - lost):
        print(f"  is listed in docs/conformance.md and passes: {name}")
    return 0 if lost == listed and len(before & after) >= BAR else 1


def report_alarms(tag: str, found: dict[str, Any]) -> int:
    given = {(test, code) for test, code, _ in found["alarms"]}
    listed = set(re.findall(r"^\| `(test_\w+)` \| `([\w.]+)` \|", DOC.read_text(), re.MULTILINE))
    print(
        f"{tag}: {found['programs']} programs of {found['tests']} tests checked, "
        f"{len(given)} alarms, {len(found['failures'])} programs could not be read"
    )
    for test, code in sorted(given - listed):
        print(f"  an alarm that is not listed in docs/conformance.md: {code} in {test}")
    for test, code in sorted(listed - given):
        print(f"  is listed in docs/conformance.md and gives no alarm: {code} in {test}")
    for test, why in found["failures"].items():
        print(f"  could not be read: {test}: {why}")
    return 0 if given == listed and not found["failures"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
