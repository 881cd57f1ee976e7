"""The bytes of a plan are those of the arguments of a real train step compiled by XLA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def case(model, mesh, strategy, optimizer="adamw"):
    return {"model": model, "mesh": mesh, "strategy": strategy, "optimizer": optimizer}


# devices -> train steps; the decoder's "" is the sharding that its own parameters ask for
STEPS = {
    8: [
        case("llama3-8b", "fsdp=8", "fsdp"),
        case("decoder", "fsdp=4,tensor=2", ""),
        case("decoder", "fsdp=4,tensor=2", "", "adafactor"),
        case("decoder", "data=2,tensor=4", "data-parallel", "sgd"),
    ],
    64: [
        case("llama3-8b", "data=16,tensor=4", "zero1+tensor"),
        case("decoder", "fsdp=16,tensor=4", ""),
        case("decoder", "data=64", "zero1"),
    ],
    512: [
        case("llama3-8b", "fsdp=64,tensor=8", "fsdp+tensor"),
        case("decoder", "fsdp=64,tensor=8", ""),
    ],
}
# With SHARDLAB_WIDE=1: every strategy at every size, every optimizer; some minutes of CPU.
if os.environ.get("SHARDLAB_WIDE"):
    for n_devices, n_tensor in ((8, 4), (64, 4), (512, 8)):
        mesh = f"data=2,fsdp={n_devices // 2 // n_tensor},tensor={n_tensor}"
        for name in ("fsdp", "tensor", "fsdp+tensor", "zero1", "zero2", "zero3", "data-parallel"):
            STEPS[n_devices] += [case("llama3-8b", mesh, name), case("decoder", mesh, name)]
        for name in ("adam", "adafactor", "sgd", "momentum", "lion", "muon"):
            STEPS[n_devices] += [
                case("decoder", mesh, "", name),
                case("decoder", mesh, "zero1", name),
            ]


def compiled(devices, cases):
    """Return what the compiler says of each case, from a process with that many devices."""
    job = {"devices": devices, "cases": cases, "examples": str(ROOT / "examples")}
    done = subprocess.run(
        [sys.executable, str(HERE / "compile_steps.py")],
        input=json.dumps(job) + "\n",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "devices", [8, *(pytest.param(n, marks=pytest.mark.long) for n in (64, 512))]
)
def test_planned_bytes_are_the_compilers_to_the_byte(devices):
    cases = STEPS[devices]
    for requested, answer in zip(cases, compiled(devices, cases), strict=True):
        assert answer["planned"] + answer["batch"] == answer["measured"], requested
        assert answer["tensors"] == {"llama3-8b": 291, "decoder": 21}[requested["model"]]
