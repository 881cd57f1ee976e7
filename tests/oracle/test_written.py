"""JAX decides what is right: each written program on eight real devices, and simulated on one."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from program import compare, plain
from worlds import RealError, simulate
from written import PROGRAMS

from shardlab.errors import LabError

pytestmark = pytest.mark.xdist_group("oracle")


RUN = [name for name, program in PROGRAMS.items() if not program.refused]
REFUSED = [n for n, p in PROGRAMS.items() if p.refused and p.reference is None]
SIMULATED_ALONE = [n for n, p in PROGRAMS.items() if p.refused and p.reference is not None]


def each(names):
    return pytest.mark.parametrize("question", [{"written": name} for name in names], ids=names)


@each(RUN)
def test_simulated_and_real_devices_agree(question, real_devices):
    simulated = simulate(PROGRAMS[question["written"]])
    compare(real_devices.get(question), simulated)


@each(REFUSED)
def test_what_real_devices_refuse_is_refused(question, real_devices):
    with pytest.raises(RealError, match=re.escape(PROGRAMS[question["written"]].refused)):
        real_devices.get(question)
    with pytest.raises(LabError):
        simulate(PROGRAMS[question["written"]])


@each(SIMULATED_ALONE)
def test_what_only_other_backends_run_agrees_with_numpy(question, real_devices):
    program = PROGRAMS[question["written"]]
    with pytest.raises(RealError, match=re.escape(program.refused)):
        real_devices.get(question)
    args = [np.asarray(item.make(seed)) for seed, item in enumerate(program.inputs)]
    compare(plain("value", program.reference(*args)), without_log(simulate(program)))


def without_log(arrays):
    return {name: array for name, array in arrays.items() if name != "log"}


def test_the_simulation_had_one_device():
    assert len(jax.devices()) == 1
