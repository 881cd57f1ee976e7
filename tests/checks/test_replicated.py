"""Large replicated arrays: one finding for equal arrays, and constraints that replicate."""

from __future__ import annotations

from shardlab.checks.check_replicated_arrays import find_replicated_arrays
from shardlab.findings.source import SourceLocation
from shardlab.tracing.observation import Observation, ProgramPattern

LINE = SourceLocation("train.py", 7)


def observe(kind, *paths, n_bytes=2**27):
    facts = {
        "shape": (4096, 8192),
        "dtype": "float32",
        "n_bytes": n_bytes,
        "mesh": (("data", 64),),
        "shardable": (("data", 1),),
        "boundary": "jit",
    }
    patterns = tuple(ProgramPattern(kind, LINE, {**facts, "path": path}) for path in paths)
    return Observation(program="step", mesh=(("data", 64),), patterns=patterns)


def test_the_tensors_of_80_layers_are_one_finding_with_a_count():
    paths = [f"layers[{i}]['{name}']" for i in range(80) for name in ("up", "down")]
    (finding,) = find_replicated_arrays(observe("replicated_array", *paths))
    assert finding.what.startswith(
        "'layers[0]['up']' and 159 more arrays like it, 80 of float32[4096, 8192], 80 of "
    )
    assert "21.5 GB per device" in finding.what
    assert finding.details["count"] == 160
    assert finding.details["paths"][:2] == ["layers[0]['up']", "layers[1]['up']"]


def test_arrays_of_other_lists_of_layers_and_single_arrays_are_findings_of_their_own():
    paths = ["embed", "head", *(f"{name}[{i}]['w']" for name in ("mu", "nu") for i in range(9))]
    findings = find_replicated_arrays(observe("replicated_array", *paths))
    assert [item.details["count"] for item in findings] == [1, 1, 9, 9]


def test_a_constraint_counts_with_all_its_copies():
    (finding,) = find_replicated_arrays(observe("replicating_constraint", "", n_bytes=2**21))
    assert finding.code == "waste.replicated"
    assert "replicates a value of float32[4096, 8192] on all 64 devices" in finding.what
    assert finding.where == LINE
    assert find_replicated_arrays(observe("replicating_constraint", "", n_bytes=2**19)) == []
