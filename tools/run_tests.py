"""What `make test` and `make test-all` do: lint, types, tests.

    python tools/run_tests.py          lint, types, and the tests on the installed JAX
    python tools/run_tests.py --all    also tests marked `long`, the docs site, and everything
                                       that needs JAX once more on the newest Python and JAX

Each step prints one line when it starts; the first failure ends the run with its output above.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
SECOND = ROOT / ".venv-newest"
CONSTRAINTS = ROOT / "constraints-dev.txt"
# What depends on the JAX release. The rest is arithmetic and text.
TESTS_WITH_JAX = [
    "tests/_jax",
    "tests/simulator",
    "tests/tracing",
    "tests/analysis",
    "tests/oracle",
    "tests/judge",
    "tests/course",
    "tests/sharding",
    "tests/planner/models",
    "tests/test_examples.py",
    "tests/test_pytest_plugin.py",
]
# Tests that share a fixture of their module stay together (tests/conftest.py). One worker more than
# cores: about a quarter of the time a test waits for a browser, a server or a sandboxed process.
WORKERS = ["-n", str(min((os.cpu_count() or 1) + 1, 4)), "--dist", "loadgroup"]
EVERY_TIER = ["-m", ""]  # pyproject.toml deselects `long` by default


def main(arguments: list[str]) -> int:
    is_all = "--all" in arguments
    name = "make test-all" if is_all else "make test"
    start = time.monotonic()
    bin_ = Path(sys.executable).parent
    python = sys.executable
    tier = EVERY_TIER if is_all else []
    prepare_web_tests(name)
    steps = [
        ("lint", [bin_ / "ruff", "check", "--quiet", "."]),
        ("format", [bin_ / "ruff", "format", "--check", "--quiet", "."]),
        ("types", [bin_ / "mypy"]),
        (f"tests on {describe(python)}", [python, "-m", "pytest", "-q", *WORKERS, *tier]),
    ]
    for step, command in steps:
        if not run(f"{name}: {step}", command):
            return 1
    if is_all and not (run(f"{name}: docs", ["make", "docs"]) and test_on_newest_jax(name)):
        return 1
    minutes = (time.monotonic() - start) / 60
    print(f"{name}: all passed in {minutes:.1f} minutes ({processor_minutes():.1f} of a processor)")
    return 0


def processor_minutes() -> float:
    """Return the processor time of all steps, which a busy machine does not change."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) / 60


def prepare_web_tests(name: str) -> None:
    """Install the packages of web/ if npm is there; say which tests of the pages cannot run."""
    if shutil.which("npm") is None:
        print(f"{name}: no npm, so the pages are not tested with axe-core and not rebuilt")
    elif not (WEB / "node_modules").is_dir():
        run(f"{name}: packages of web/", ["npm", "ci", "--silent", "--prefix", WEB])
    browsers = ("chromium", "chromium-browser", "google-chrome")
    if not any(map(shutil.which, browsers)) and "SHARDLAB_CHROMIUM" not in os.environ:
        print(f"{name}: no Chromium (apt-get install chromium), so tests/browser is skipped")


def run(step: str, command: list[object]) -> bool:
    print(step, flush=True)
    result = subprocess.run([str(part) for part in command], cwd=ROOT, check=False)
    if result.returncode:
        print(f"{step} FAILED", flush=True)
    return result.returncode == 0


def test_on_newest_jax(name: str) -> bool:
    """Run the tests that need JAX on the newest interpreter, with the newest JAX it gets."""
    interpreter = newest_interpreter()
    if interpreter is None:
        print(f"{name}: no newer interpreter found; one JAX generation was tested")
        return True
    python = SECOND / "bin" / "python"
    if not install(interpreter, python):
        return False
    command = [python, "-m", "pytest", "-q", *WORKERS, *EVERY_TIER, *TESTS_WITH_JAX]
    return run(f"{name}: tests on {describe(python)}", command)


def install(interpreter: Path, python: Path) -> bool:
    stamp = SECOND / ".installed"
    newest_input = max(path.stat().st_mtime for path in (ROOT / "pyproject.toml", CONSTRAINTS))
    if stamp.exists() and stamp.stat().st_mtime > newest_input:
        return True
    print(f"Installing a second environment with {interpreter.name} (once)", flush=True)
    shutil.rmtree(SECOND, ignore_errors=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for command in (
        [interpreter, "-m", "venv", SECOND],
        [*pip, "--constraint", CONSTRAINTS, "-e", ".[dev]"],
    ):
        if subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode:
            print("The second environment could not be installed; FAILED")
            return False
    stamp.touch()
    return True


def newest_interpreter() -> Path | None:
    """Return the newest CPython above this one, on PATH or under pyenv, that can make a venv."""
    interpreters: dict[tuple[int, int], Path] = {}
    for folder in [*os.environ.get("PATH", "").split(os.pathsep), *pyenv_folders()]:
        for path in Path(folder).glob("python3.*") if folder else ():
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            if match and (3, int(match[1])) > sys.version_info[:2] and can_make_venv(path):
                interpreters.setdefault((3, int(match[1])), path)
    return interpreters[max(interpreters)] if interpreters else None


def pyenv_folders() -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [str(path) for path in sorted(root.glob("versions/3.*/bin"))]


def can_make_venv(path: Path) -> bool:
    """Say whether this is a stable CPython with venv; a pyenv shim without a version is not."""
    probe = "import venv, ensurepip, sys; sys.exit(sys.version_info.releaselevel != 'final')"
    return subprocess.run([path, "-c", probe], capture_output=True, check=False).returncode == 0


def describe(python: object) -> str:
    probe = "import sys, jax; print('Python', sys.version.split()[0], 'with JAX', jax.__version__)"
    return subprocess.run(
        [str(python), "-c", probe], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
