"""Runs JAX's own shard_map tests with every shard_map rerouted to the simulator.

    python tools/conformance.py path/to/jax      a clone of JAX's repository (bare is fine)

Takes tests/shard_map_test.py at the tag of the installed JAX out of that clone, runs it once as it
is and once rerouted, and compares the tests that fail only when rerouted with the list in
docs/conformance.md: exactly those, or the exit code is 1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "conformance.md"
BAR = 415


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    tag = f"jax-v{jax.__version__}"
    with tempfile.TemporaryDirectory() as folder:
        source = test_file(arguments[0], tag, Path(folder))
        if source is None:
            print(f"{arguments[0]} has no tag {tag} with tests/shard_map_test.py in it")
            return 2
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
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "conformance")])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": path,
        "REROUTE_REPORT": str(target),
    }
    print(f"{'rerouted' if options else 'as it is'} ...", flush=True)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "passed_tests", *options, source],
        cwd=source.parent,
        env=environment,
        check=False,
    )
    found: dict[str, object] = json.loads(target.read_text())
    return found


def report(tag: str, plain: dict, rerouted: dict) -> int:
    before, after = set(plain["passed"]), set(rerouted["passed"])
    lost = before - after
    listed = set(re.findall(r"^\| `(test_\w+)` \|", DOC.read_text(), re.MULTILINE))
    print(
        f"{tag}: {len(before)} pass as they are, {len(before & after)} of them rerouted "
        f"(at least {BAR} wanted), {len(rerouted['executed'])} executed the simulator"
    )
    for name in sorted(lost - listed):
        print(f"  fails and is not listed in docs/conformance.md: {name}")
    for name in sorted(listed - lost):
        print(f"  is listed in docs/conformance.md and passes: {name}")
    return 0 if lost == listed and len(before & after) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
