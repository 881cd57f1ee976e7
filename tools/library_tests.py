"""Runs the sharding tests of JAX, Flax and Optax on 8 virtual devices and on 8 real host devices.

    python tools/library_tests.py path/to/clones                    every file of the list below
    python tools/library_tests.py path/to/clones array_test.py      only these
    python tools/library_tests.py path/to/clones --jax-ref COMMIT   another version of JAX's tests
    python tools/library_tests.py path/to/clones --quick            only failures on real devices

`path/to/clones` has the clones jax, flax and optax (bare is fine; one that is missing is skipped).
Test files are read at the tag of the installed version, or at HEAD where the clone lacks the tag.

A test counts if it passes on real devices. Every test that then fails on virtual devices must be in
tests/oracle/conformance/library_failures.toml, with the class of its reason, and every test of that
table must fail; otherwise the exit code is 1. With `--quick` only the tests that fail on virtual
devices run on real ones, which takes half the time; the tests that fail only there are the same.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ROOT / "tests" / "oracle" / "conformance"
TABLE = PLUGINS / "library_failures.toml"

TEST_FILES = {
    "jax": (
        "tests/multi_device_test.py",
        "tests/debug_nans_test.py",
        "tests/array_test.py",
        "tests/shard_map_test.py",
        "tests/pjit_test.py",
    ),
    "flax": (
        "tests/nnx/spmd_test.py",
        "tests/nnx/partitioning_test.py",
        "tests/nnx/transforms_test.py",
        "tests/linen/partitioning_test.py",
        "tests/core/core_meta_test.py",
    ),
    "optax": ("optax/_src/sharding_test.py", "optax/contrib/_sharding_test.py"),
}
TAGS = {"jax": "jax-v{}", "flax": "v{}", "optax": "v{}"}
# Why a test that passes on devices may fail on virtual ones. "ours" is a fault of the simulation.
CLASSES = ("compiled_text", "internals", "intended", "ours")

Outcomes = dict[str, dict[str, str]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("files", nargs="*", help="names of test files; all if there are none")
    parser.add_argument("--jax-ref", help="the commit or tag of JAX's tests")
    parser.add_argument("--quick", action="store_true", help="run only failures on real devices")
    options = parser.parse_intermixed_args(arguments)
    table = read_table()
    is_clean = True
    for library, paths in TEST_FILES.items():
        repository = find_clone(options.clones, library)
        reference = find_reference(repository, library, options.jax_ref)
        if reference is None:
            print(f"{library}: no clone below {options.clones}, or the library is not installed")
            continue
        for path in paths:
            if not options.files or Path(path).name in options.files:
                outcomes = run_on_both(library, repository, reference, path, options.quick)
                is_clean &= outcomes is None or report_file(f"{library}:{path}", outcomes, table)
    return 0 if is_clean else 1


def read_table() -> dict[str, dict[str, str]]:
    """Return the known failures by `library:file::test`."""
    entries = tomllib.loads(TABLE.read_text())["failures"]
    generation = ".".join(version("jax").split(".")[:2])
    known = {}
    for entry in entries:
        if entry["class"] not in CLASSES:
            raise SystemExit(f"{TABLE}: unknown class {entry['class']!r}")
        if entry.get("jax", generation) == generation:
            for test in entry["tests"]:
                known[f"{entry['file']}::{test}"] = entry
    return known


def find_clone(clones: Path, library: str) -> Path:
    return next((path for path in (clones / library, clones) if path.is_dir()), clones)


def find_reference(repository: Path, library: str, jax_reference: str | None) -> str | None:
    """Return the tag of the installed version, HEAD if the clone lacks it, None if neither fits."""
    try:
        tag = TAGS[library].format(version(library))
    except PackageNotFoundError:
        return None
    candidates = (jax_reference if library == "jax" else None, tag, "HEAD")
    for reference in filter(None, candidates):
        probe = ["git", "-C", str(repository), "cat-file", "-e"]
        probe.append(f"{reference}:{TEST_FILES[library][0]}")
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return reference
    return None


def run_on_both(
    library: str, repository: Path, reference: str, path: str, is_quick: bool
) -> tuple[Outcomes, Outcomes] | None:
    """Return the outcomes of a test file on real and on virtual devices."""
    with tempfile.TemporaryDirectory() as folder:
        # `git show` needs no checkout, so a bare clone works and a work tree stays as it is.
        source = subprocess.run(
            ["git", "-C", str(repository), "show", f"{reference}:{path}"],
            capture_output=True,
            check=False,
        )
        if source.returncode:
            print(f"{library} {reference}: {path} does not exist")
            return None
        print(f"{library}:{path} at {reference}", flush=True)
        test_file = Path(folder) / Path(path).name
        test_file.write_bytes(source.stdout)
        virtual = run_tests(test_file, is_simulated=True)
        if not is_quick or not virtual:
            return run_tests(test_file, is_simulated=False), virtual
        # A test that passes on virtual devices counts as one that passes on real ones.
        real = {t: outcome for t, outcome in virtual.items() if outcome["outcome"] == "passed"}
        # In the order of the file: a test may leave a mesh set that later ones trip over.
        if others := [test for test in virtual if test not in real]:
            real |= run_tests(test_file, is_simulated=False, tests=others)
        return real, virtual


def run_tests(test_file: Path, *, is_simulated: bool, tests: Sequence[str] = ()) -> Outcomes:
    """Run a test file, or some of its tests, in a process of its own; return the outcomes."""
    report = test_file.with_suffix(".jsonl")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "OUTCOMES_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(PLUGINS)]),
    }
    if not is_simulated:
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    plugins = ["outcome_report", *(["simulated_devices"] if is_simulated else [])]
    options = [option for plugin in plugins for option in ("-p", plugin)]
    options += ["-p", "no:cacheprovider", "-W", "ignore", "--tb=no"]
    selected = [f"{test_file}::{test}" for test in tests] or [str(test_file)]
    # check=False: tests fail, and the report says which.
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *selected],
        cwd=test_file.parent,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if process.returncode not in (0, 1):  # pytest itself: 0 all passed, 1 some failed
        print(f"  pytest ended with {process.returncode}; outcomes may be missing")
    if not report.exists():
        raise SystemExit(f"pytest did not run {test_file.name}")
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    return {line["test"].partition("::")[2]: line for line in lines}


def report_file(file: str, outcomes: tuple[Outcomes, Outcomes], table: dict[str, Any]) -> bool:
    """Print the counts of one file; return whether the table describes its failures exactly."""
    real, virtual = outcomes
    passed = {test for test, outcome in real.items() if outcome["outcome"] == "passed"}
    failures = {t: virtual.get(t, {"outcome": "missing"}) for t in passed}
    failures = {t: outcome for t, outcome in failures.items() if outcome["outcome"] != "passed"}
    prefix = f"{file}::"
    known = {t.removeprefix(prefix): e for t, e in table.items() if t.startswith(prefix)}
    counts = collections.Counter(
        known[test]["class"] if test in known else "not in the table" for test in failures
    )
    classes = ", ".join(f"{n} {name}" for name, n in counts.items())
    print(
        f"  {len(passed)} pass on real devices, {len(passed) - len(failures)} of them on virtual "
        f"devices" + (f" ({classes})" if classes else ""),
        flush=True,
    )
    for test in sorted(failures.keys() - known.keys()):
        reason = failures[test].get("error", failures[test]["outcome"]).splitlines()[0][:160]
        print(f"  fails, but is not in the table: {test}: {reason}")
    for test in sorted(known.keys() - failures.keys()):
        print(f"  is in the table, but passes: {test}")
    return failures.keys() == known.keys()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
