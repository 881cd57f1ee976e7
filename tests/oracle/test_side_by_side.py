"""Unchanged programs give the same in simulated mode as on 8 real host devices.

Each module under `side_by_side` runs once on real devices, in a process of its own (this one has a
single device), and once here in the mode: values, types, shardings, commitment, every shard of
every array, and the message of every error are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import jax
import pytest

from shardlab.simulator.simulated_mode import simulated

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from side_by_side.describe import differences, outcome  # noqa: E402  needs the path above

# Programs that differ, and why. A program that no longer differs must leave this list.
EXPECTED_DIFFERENCES = {
    "jits": {
        "two_meshes_over_the_same_devices": "propagation does not cross from one mesh to another",
    },
    "maps": {
        "output_not_replicated": "the error names the user's function, where JAX names its wrapper",
    },
    # The compiler's output shardings are inferred for 70 of 72 programs.
    "propagation": {
        "top_k": "XLA expands it before it propagates shardings",
        "dynamic_slice": "XLA turns one at a constant position into a slice before it propagates",
    },
}


def on_real_devices(module: str) -> dict[str, object]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "side_by_side", module],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def in_simulated_mode(program: object) -> object:
    with simulated(devices=8):
        return json.loads(json.dumps(outcome(program)))


MODULES = [
    "placement",
    "arrays",
    "eager",
    "jits",
    "transforms",
    "explicit",
    "maps",
    "propagation",
    "models",
    "others",
    "refs",
    "labels",
    "unreduced",
    "forbidden_collectives",
]


@pytest.mark.parametrize("module", MODULES)
def test_programs_give_the_same_as_on_real_devices(module):
    programs = import_module(f"side_by_side.{module}").PROGRAMS
    if not programs:
        pytest.skip(f"JAX {jax.__version__} does not have what these programs are about")
    real = on_real_devices(module)
    assert programs.keys() == real.keys()
    all_differences = {
        name: differences(real[name], in_simulated_mode(program))
        for name, program in programs.items()
    }
    assert len(jax.devices()) == 1
    differing = {name: diffs[:3] for name, diffs in all_differences.items() if diffs}
    expected = EXPECTED_DIFFERENCES.get(module, {})
    assert {k: v for k, v in differing.items() if k not in expected} == {}
    assert differing.keys() == expected.keys()


def test_every_module_of_programs_is_compared():
    modules = {path.stem for path in (HERE / "side_by_side").glob("*.py")}
    assert modules - {"__init__", "__main__", "describe", "registry"} == set(MODULES)
