"""`shardlab autoshard`: the answer as text, JSON and rules, and what it rejects."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import jax

def step(params, x):
    def loss(params):
        return (jax.nn.relu(x @ params["up"]) @ params["down"]).sum()
    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))

step_args = {"up": "bf16[64,192]", "down": "bf16[192,64]"}, "bf16[1024,64]"
"""

LIMIT = ("--proof-limit", "3600")  # the proofs end by themselves


def autoshard(folder, *options):
    return subprocess.run(
        [sys.executable, "-m", "shardlab", "autoshard", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_answer_is_printed_or_written_as_json(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    done = autoshard(tmp_path, "train.py:step", "--mesh", "data=4", "--json", "-", *LIMIT)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["program"] == "step"
    assert [item["name"] for item in answer["arguments"]] == [
        "params['down']",
        "params['up']",
        "x",
    ]
    assert answer["search"]["is_exhaustive"]
    assert answer["proof"]["verdict"] == "proven"
    assert answer["discarded"] == []


def test_no_proof_shows_the_answer_of_the_search_alone(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    done = autoshard(tmp_path, "train.py:step", "--mesh", "data=4", "--no-proof")
    assert done.returncode == 0, done.stderr
    assert "Not proven: no proof was requested." in done.stdout
    assert "\nProof\n" not in done.stdout


def test_a_mesh_or_a_number_of_devices_is_needed(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    done = autoshard(tmp_path, "train.py:step")
    assert done.returncode == 2
    assert "--mesh data=16,model=4 or --devices 64" in done.stderr
