"""The tool that compares public programs: what it reads, and that it sees every difference."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from public_program_cells import read_cells  # noqa: E402  needs the path above
from public_programs import Program, compare_leaves, compare_program  # noqa: E402

CELLS = [
    "import jax, jax.numpy as jnp\nfrom jax.sharding import PartitionSpec as P, NamedSharding",
    "%matplotlib inline\n!pip install jax\nmesh = jax.make_mesh((8,), ('x',))",
    "x = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P('x')))\ny = jnp.sin(x).sum()",
    "1 / 0",
    "raise SystemExit(0)",
]


def notebook(cells):
    code = [{"cell_type": "code", "source": [cell]} for cell in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Title"]}, *code]})


def test_magics_and_cells_of_other_languages_are_dropped(tmp_path):
    file = tmp_path / "a.ipynb"
    file.write_text(notebook([*CELLS, "%%bash\nls", "%timeit -n 3 f(x)\nif x:\n  !ls \\\n  -l"]))
    cells = read_cells(file)
    assert cells[1] == "pass\npass\nmesh = jax.make_mesh((8,), ('x',))"
    assert cells[-1] == "f(x)\nif x:\n  pass\n  pass"
    assert len(cells) == 6


def test_a_page_has_its_code_blocks(tmp_path):
    file = tmp_path / "a.md"
    file.write_text(
        "# A\n\n```{code-cell} ipython3\n:tags: [x]\n\na = 1\n```\n\n```python\nb = 2\n```\n"
    )
    assert [cell.strip() for cell in read_cells(file)] == ["a = 1", "b = 2"]


def compare(tmp_path, **fields):
    (tmp_path / "repo").mkdir(exist_ok=True)
    options = argparse.Namespace(
        folder=tmp_path, timeout=600.0, trace=False, keep=tmp_path / "keep", preludes={}
    )
    return compare_program(Program(name="small", repository="repo", **fields), options)


def test_a_program_is_equal_on_real_and_virtual_devices(tmp_path):
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "a.ipynb").write_text(notebook(CELLS))
    row = compare(tmp_path, path="a.ipynb")
    assert (row.status, row.details) == ("equal", [])
    assert row.n_values >= 2
    record = json.loads((tmp_path / "keep" / "small" / "simulated.json").read_text())
    leaf = record["cells"][2]["values"]["x"][""]
    assert leaf["sharding"] == ["NamedSharding", {"x": 8}, "P('x',)", list(range(8))]
    assert record["cells"][3]["error"]["type"] == "ZeroDivisionError"


def test_every_difference_is_seen(tmp_path):
    entry = (
        "import os, sys, jax.numpy as jnp\n"
        "is_real = 'XLA_FLAGS' in os.environ\n"
        "a = jnp.ones(3) * (1 if is_real else 1.01)\n"
        "b = jnp.ones(3 if is_real else 4)\n"
        "sys.exit(0 if is_real else 5)\n"
    )
    row = compare(tmp_path, entry=entry)
    assert row.status == "differs"
    text = "\n".join(row.details)
    assert "exit code: real 0, simulated 1" in text
    assert "error: real None, simulated {'type': 'SystemExit'" in text
    assert "a: value: real 1.0, simulated 1.0" in text
    assert "b shape: real [3], simulated [4]" in text


def test_a_fixed_path_in_tmp_is_another_folder_in_each_run(tmp_path):
    entry = (
        "import os, jax.numpy as jnp\n"
        "os.makedirs('/tmp/shardlab-checkpoints/step-0')\n"
        "a = jnp.ones(3)\n"
    )
    for _ in range(2):
        row = compare(tmp_path, entry=entry)
        assert (row.status, row.details) == ("equal", [])
    assert not Path("/tmp/shardlab-checkpoints").exists()


def test_what_is_not_installed_or_cloned_is_missing(tmp_path):
    assert compare(tmp_path, path="a.py").status == "missing"
    row = compare(tmp_path, entry="pass", packages=["no_such_package"])
    assert (row.status, row.details) == ("missing", ["package no_such_package"])


def test_an_edit_that_no_longer_applies_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="no cell contains 'steps=100'"):
        compare(tmp_path, entry="pass", replace=[["steps=100", "steps=2"]])


def test_numbers_may_differ_by_rounding_and_shardings_may_not():
    leaf = {"type": "float32", "numbers": [1.0, 2.0], "scale": 2.0, "sharding": ["P('x',)"]}
    assert compare_leaves({"": leaf}, {"": {**leaf, "numbers": [1.0, 2.0 + 1e-5]}}, 1e-4) == []
    other = {"": {**leaf, "sharding": ["P('x', None)"]}}
    assert compare_leaves({"": leaf}, other, 1e-4) == [
        " sharding: real [\"P('x',)\"], simulated [\"P('x', None)\"]"
    ]
