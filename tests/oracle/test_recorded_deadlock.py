"""The deadlock of the gallery: what is recorded before it, and that real devices block there.

Real devices cannot return values of a program that blocks. So the same text runs on 8 of them with
a predicate that is the same everywhere, and returns; the values before the branch are compared.
That the text itself blocks is shown by XLA's own time
limit for a rendezvous of CPU devices, which ends the process: the test waits for its message, and
how long that takes does not matter.
"""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import numpy as np

from shardlab.recording.example_gallery import find_program
from shardlab.recording.program_recording import record_source

PROGRAM = find_program("deadlock_in_branch")
PREAMBLE = """
import os
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8"
    " --xla_cpu_collective_call_warn_stuck_timeout_seconds=2"
    " --xla_cpu_collective_call_terminate_timeout_seconds=4"
)
"""
# The predicate of each device, without the branch: what the recording shows before it blocks.
BEFORE_THE_BRANCH = """
def before(x):
    norm = jnp.sqrt((x**2).sum())
    return jnp.stack([norm, (norm > 10).astype(jnp.float32)])

mapped = jax.shard_map(before, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
print("before", *mapped(*clipped_sum_args()).tolist(), flush=True)
"""


def run_on_devices(source):
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + source],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_steps_before_the_deadlock_equal_real_devices_and_these_then_block():
    recording = record_source(PROGRAM.source, target=PROGRAM.target, mesh=PROGRAM.mesh)
    assert recording.failure.kind == "deadlock"
    process = run_on_devices(
        PROGRAM.source
        + BEFORE_THE_BRANCH
        + "jax.block_until_ready(jax.jit(clipped_sum)(*clipped_sum_args()))\nprint('returned')\n"
    )
    # The process is ended by XLA, not by this test.
    assert process.returncode != 0
    assert "returned" not in process.stdout
    assert "rendezvous" in process.stderr.lower(), process.stderr[-2000:]
    line = next(text for text in process.stdout.splitlines() if text.startswith("before "))
    real = np.array(line.split()[1:], float).reshape(4, 2)
    sqrt = next(step for step in recording.steps if step.op == "sqrt")
    greater = next(step for step in recording.steps if step.op == "gt")
    for step, expected in ((sqrt, real[:, 0]), (greater, real[:, 1])):
        value = recording.values[step.writes[0]]
        for group in value.groups:
            first, _, last = group.devices.partition("-")
            for device in range(int(first), int(last or first) + 1):
                np.testing.assert_allclose(group.mean, expected[device], rtol=1e-6)
    # Those whose predicate is true wait, for those whose predicate is false.
    waiting = recording.steps[-1].waiting
    assert waiting.devices == "1-3"
    assert waiting.missing == "0"
    assert [bool(flag) for flag in real[:, 1]] == [False, True, True, True]


def test_with_one_predicate_for_all_devices_the_program_returns_on_both():
    uniform = PROGRAM.source.replace(
        "jax.lax.cond(norm > 10,", 'jax.lax.cond(jax.lax.pmax(norm, "data") > 10,'
    )
    assert uniform != PROGRAM.source
    recording = record_source(uniform, target=PROGRAM.target, mesh=PROGRAM.mesh)
    assert recording.failure is None
    process = run_on_devices(
        uniform + "print('sum', *jax.jit(clipped_sum)(*clipped_sum_args()).tolist())\n"
    )
    assert process.returncode == 0, process.stderr[-2000:]
    real = np.array(process.stdout.split("sum ")[1].split(), float)
    (output,) = recording.outputs
    (group,) = recording.values[output.value].groups
    assert group.n == 4
    np.testing.assert_allclose([group.min, group.max], [real.min(), real.max()])
    assert jax.numpy.allclose(real.reshape(4, 4), real[:4])


def test_mismatched_collectives_give_a_value_of_neither_branch_on_real_devices():
    program = find_program("mismatched_collectives")
    recording = record_source(program.source, target=program.target, mesh=program.mesh)
    assert recording.failure.kind == "deadlock"
    process = run_on_devices(
        program.source
        + "x = normalize_args()[0]\n"
        + "scale = x / jax.jit(normalize)(x)\n"
        + "print('scale', *scale.tolist(), 'sum', float(x.sum()), 'max', float(x.max()))\n"
    )
    # Some backends block, as the recording says. XLA's CPU devices may match the two calls with one
    # another and reduce the operands of both; then no device gets what its branch computes.
    if process.returncode != 0:
        assert "rendezvous" in process.stderr.lower(), process.stderr[-2000:]
        return
    words = process.stdout.split()
    scales = {round(float(word), 3) for word in words[1 : words.index("sum")]}
    branches = {float(words[words.index(name) + 1]) for name in ("sum", "max")}
    assert not scales & branches, process.stdout
