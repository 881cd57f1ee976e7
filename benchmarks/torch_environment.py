"""PyTorch's own environment, made when it is first asked for and kept in `.venv-torch`."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.contender import ROOT

_VERSION = "2.13.0"
_FOLDER = ROOT / ".venv-torch"


def python() -> str:
    """Return the Python of an environment that has torch and NumPy."""
    executable = _FOLDER / "bin" / "python"
    done = _FOLDER / f"torch-{_VERSION}"
    if not done.exists():
        print(f"installing torch {_VERSION} into {_FOLDER.name} (once) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(_FOLDER)], check=True)
        wanted = [f"torch=={_VERSION}", "numpy"]
        subprocess.run([str(executable), "-m", "pip", "install", "-q", *wanted], check=True)
        done.touch()
    return str(executable)
