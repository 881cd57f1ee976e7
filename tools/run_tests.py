"""What `make test` does: lint, types and tests, then the engine again on the newest JAX.

Each step prints one line when it starts; the first failure ends the run with its output above.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECOND = ROOT / ".venv-newest"
ENGINE_TESTS = [
    "tests/_jax",
    "tests/simulator",
    "tests/tracing",
    "tests/analysis",
    "tests/oracle",
    "tests/judge/worker",
    "tests/sharding",
    "tests/planner/models",
    "tests/test_examples.py",
]
WORKERS = ["-n", str(max(1, min(os.cpu_count() or 1, 4)))]


def main() -> int:
    start = time.monotonic()
    bin_ = Path(sys.executable).parent
    python = sys.executable
    steps = [
        ("lint", [bin_ / "ruff", "check", "--quiet", "."]),
        ("format", [bin_ / "ruff", "format", "--check", "--quiet", "."]),
        ("types", [bin_ / "mypy"]),
        (f"tests on {describe(python)}", [python, "-m", "pytest", "-q", *WORKERS]),
    ]
    for name, command in steps:
        if not run(name, command):
            return 1
    if not on_newest():
        return 1
    print(f"make test: all passed in {(time.monotonic() - start) / 60:.1f} minutes")
    return 0


def run(name: str, command: list[object]) -> bool:
    print(f"make test: {name}", flush=True)
    done = subprocess.run([str(part) for part in command], cwd=ROOT, check=False)
    if done.returncode:
        print(f"make test: {name} FAILED", flush=True)
    return done.returncode == 0


def on_newest() -> bool:
    """Run the engine's tests on the newest interpreter there is, with the newest JAX it gets."""
    interpreter = newest_interpreter()
    if interpreter is None:
        print("make test: no newer interpreter found; the engine was tested on this one only")
        return True
    python = SECOND / "bin" / "python"
    if not install(interpreter, python):
        return False
    return run(
        f"engine tests on {describe(python)}",
        [python, "-m", "pytest", "-q", *WORKERS, *ENGINE_TESTS],
    )


def install(interpreter: Path, python: Path) -> bool:
    stamp = SECOND / ".installed"
    if stamp.exists() and stamp.stat().st_mtime > (ROOT / "pyproject.toml").stat().st_mtime:
        return True
    print(f"make test: installing a second environment with {interpreter.name} (once)", flush=True)
    shutil.rmtree(SECOND, ignore_errors=True)
    for command in (
        [interpreter, "-m", "venv", SECOND],
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", ".[dev]"],
    ):
        if subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode:
            print("make test: the second environment could not be installed; FAILED")
            return False
    stamp.touch()
    return True


def newest_interpreter() -> Path | None:
    """Return the newest CPython above this one, on PATH or under pyenv, that can make a venv."""
    found: dict[tuple[int, int], Path] = {}
    for folder in [*os.environ.get("PATH", "").split(os.pathsep), *pyenv_folders()]:
        for path in Path(folder).glob("python3.*") if folder else ():
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            if match and (3, int(match[1])) > sys.version_info[:2] and works(path):
                found.setdefault((3, int(match[1])), path)
    return found[max(found)] if found else None


def pyenv_folders() -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [str(path) for path in sorted(root.glob("versions/3.*/bin"))]


def works(path: Path) -> bool:
    """Say whether this is a stable CPython with venv; a shim for nothing answers with an error."""
    probe = "import venv, ensurepip, sys; sys.exit(sys.version_info.releaselevel != 'final')"
    return subprocess.run([path, "-c", probe], capture_output=True, check=False).returncode == 0


def describe(python: object) -> str:
    probe = "import sys, jax; print('Python', sys.version.split()[0], 'with JAX', jax.__version__)"
    return subprocess.run(
        [str(python), "-c", probe], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
