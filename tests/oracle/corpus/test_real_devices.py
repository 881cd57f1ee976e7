"""What a finding says happens on real devices does: on eight host devices, in other processes.

Programs that hang are killed a few seconds after they were compiled; their right twins end in that
time. The others run in one process, which works while the rest of the tests go on.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from pairs import RIGHT, WRONG

pytestmark = pytest.mark.xdist_group("real_devices")

QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
START_SECONDS = 120
HANG_SECONDS = 5


def start(*arguments):
    """A process with eight host devices; what it prints arrives in a queue, and None at its end."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {QUICK_TO_COMPILE}",
    }
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("real_run.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    lines = queue.SimpleQueue()
    threading.Thread(target=listen, args=(process.stdout, lines), daemon=True).start()
    return process, lines


def listen(stream, lines):
    with stream:
        for line in stream:
            lines.put(json.loads(line))
    lines.put(None)


def stop(process):
    process.kill()
    process.wait()


# -------------------------------------------------------------------------------------- who hangs

# One for each way to hang: a branch, a loop, a ppermute whose predicate varies over another axis,
# and collectives of different kinds that wait for each other.
HANGING = (
    "metrics_summed_on_the_first_device_only",
    "steps_counted_by_each_device_for_itself",
    "halo_exchanged_along_data_by_some_of_model",
    "routing_by_exchange_on_some_and_by_gather_on_others",
)
# To see that the time is long enough: a right twin, in the same race. All of them end (below).
ENDING = "metrics_summed_by_all_and_used_by_the_first"


@pytest.fixture(scope="module")
def ended(everything):
    """Which of these programs had ended a few seconds after all of them were compiled."""
    runs = {name: start("one", name) for name in (*HANGING, ENDING)}
    try:
        for _, lines in runs.values():
            assert lines.get(timeout=START_SECONDS) == {"event": "compiled"}
        time.sleep(HANG_SECONDS)
        return {name: not lines.empty() for name, (_, lines) in runs.items()}
    finally:
        for process, _ in runs.values():
            stop(process)


@pytest.mark.parametrize("name", HANGING)
def test_a_program_that_we_say_hangs_does(ended, name):
    assert WRONG[name].really == "hangs"
    assert ended[ENDING]
    assert not ended[name]


# ---------------------------------------------------------------------------- who ends with garbage


@pytest.fixture(scope="module")
def everything():
    """The process that runs every program that ends; it works while others are waited for."""
    process, lines = start("all")
    yield lines
    stop(process)


@pytest.fixture(scope="module")
def real(everything):
    """What every program that ends gives, by name."""
    found = {}
    while (answer := everything.get(timeout=START_SECONDS)) is not None:
        found[answer.pop("name")] = answer
    return found


def arrays(answer, which):
    return [np.asarray(each) for each in answer[which]]


def agree(answer):
    one, many = arrays(answer, "one"), arrays(answer, "many")
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=2e-5, atol=1e-6)
        for a, b in zip(one, many, strict=True)
    )


def copies_differ(answer):
    return any(
        not np.array_equal(copy, copies[0], equal_nan=True)
        for copies in map(np.asarray, answer["copies"])
        for copy in copies
    )


def named(cases, *codes):
    return [n for n, case in cases.items() if case.code in codes and not case.read_only]


def test_right_programs_give_on_many_devices_what_they_give_on_one(real):
    ran = [name for name, case in RIGHT.items() if not case.read_only]
    assert [name for name in ran if not agree(real[name])] == []
    assert [name for name in ran if copies_differ(real[name])] == []


def test_programs_that_depend_on_the_mesh_give_other_values_on_many_devices(real):
    # Of this one the values are right and the gradients are not: the next test but one.
    gradients_only = {"reduction_whose_own_gradient_sums_again"}
    names = named(WRONG, "hazard.mesh_dependent")
    assert {name for name in names if agree(real[name])} == gradients_only
    assert not any(copies_differ(real[name]) for name in names)


@pytest.mark.parametrize("name", named(WRONG, "hazard.replicas_differ"))
def test_copies_that_we_say_differ_do(real, name):
    assert WRONG[name].really == "differs"
    assert copies_differ(real[name])


def test_copies_add_up_average_or_reach_to_what_was_meant(real):
    reductions = {"missing_psum": np.sum, "missing_pmean": np.mean, "missing_pmax": np.max}
    for name in named(WRONG, "hazard.replicas_differ"):
        reduce = reductions.get(WRONG[name].cause)
        if reduce and len(real[name]["one"]) == 1 and "two_axes" not in name:
            (copies,), (one,) = arrays(real[name], "copies"), arrays(real[name], "one")
            np.testing.assert_allclose(reduce(copies, 0), one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cause", "factor"), [("factor_of_n", 4), ("divided_by_n", 1 / 4), ("gradient_scaled_by_n", 4)]
)
def test_the_last_output_is_off_by_the_factor_that_the_finding_names(real, cause, factor):
    for name, case in WRONG.items():
        if case.cause == cause and case.mesh.endswith("=4") and not agree(real[name]):
            one, many = arrays(real[name], "one")[-1], arrays(real[name], "many")[-1]
            np.testing.assert_allclose(many, factor * one, rtol=1e-5, atol=1e-6)


def test_mixed_sums_end_with_numbers_that_neither_branch_means(real):
    case, answer = WRONG["two_sums_of_different_things"], real["two_sums_of_different_things"]
    x = case.args[0].reshape(4, 6, 5)
    centred, scaled = x - x.sum(0) / 24, x * (x**2).sum(0)
    meant = np.where((x.sum((1, 2)) > 0)[:, None, None], centred, scaled)
    (found,) = arrays(answer, "many")
    assert not np.allclose(found.reshape(4, 6, 5), meant, atol=1e-3)


@pytest.mark.parametrize("name", named(WRONG, "hazard.ppermute_axis_order"))
def test_the_order_of_axes_in_a_ppermute_changes_nothing(real, name):
    """There in one order and back in the other ends where it began: both mean the mesh's."""
    if hasattr(jax.config, "jax_raise_on_ppermute_sort_diff"):
        assert "same order" in real[name]["refused"]
        return
    (found,), x = arrays(real[name], "many"), WRONG[name].args[0]
    expected = x + x if name.startswith("exchange") else x * x
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# ------------------------------------------------------------------------------- what JAX refuses

REFUSED = ("spec.unknown_axis", "spec.rank", "spec.indivisible", "spec.wrong_argument")


@pytest.mark.parametrize("name", named(WRONG, *REFUSED, "jax.rejected"))
def test_what_we_say_jax_refuses_it_refuses(real, name):
    assert real[name]["refused"]


def test_what_is_only_dear_gives_the_right_values(real):
    dear = [code for code in {case.code for case in WRONG.values()} if code.startswith("waste.")]
    assert len(dear) == 4
    for name in named(WRONG, *dear, "hazard.constraint_replicates", "hazard.psum_of_replicated"):
        assert agree(real[name]), name
