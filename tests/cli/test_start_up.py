"""Start-up: commands that are arithmetic load neither JAX nor NumPy, so that they start fast.

`make bench` measures how fast.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import contextlib, io, sys
from shardlab.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main({arguments!r}, standalone_mode=False)
print(sorted({{"jax", "numpy", "flax"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "command",
    [
        "layout 4096x16384:bf16 --spec None,model --mesh data=2,model=4",
        "plan llama3-8b --mesh fsdp=8 --strategy fsdp",
        "completion bash",
    ],
)
def test_arithmetic_commands_load_no_jax_and_no_numpy(command):
    probe = PROBE.format(arguments=command.split())
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
