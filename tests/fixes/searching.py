"""Searches a fix for a program given as text, in this process."""

from __future__ import annotations

import time

import shardlab
from shardlab.analysis.fix_proof import Program
from shardlab.execution.fix_search import SearchRequest, search_fixes
from shardlab.execution.load_target import load_target_module
from shardlab.execution.target import Target

HEAD = """import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

"""


def search(folder, body, mesh, *args, reference=None):
    """Return the search for the function `step` of a file, and the file."""
    path = folder / f"program_{abs(hash(body))}.py"
    path.write_text(HEAD + body, "utf-8")
    with shardlab.simulated(devices=8):
        module = load_target_module(Target("file", str(path), "step"))
        reference = getattr(module, reference) if reference else None
        report = shardlab.check(module.step, *args, mesh=mesh, reference=reference)
        request = SearchRequest(
            module=module,
            function_name="step",
            load_program=lambda module: Program(function=module.step, args=args),
            report=report,
            deadline=time.monotonic() + 3600,
            meshes=(mesh,),
            reference=reference,
        )
        return search_fixes(request), path


def changed_lines(fix):
    """Return the lines that a diff removes and adds, without indentation."""
    lines = fix.diff.splitlines()[2:]
    return [line[0] + line[1:].strip() for line in lines if line[0] in "+-"]
