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


@pytest.mark.parametrize("name", RUN)
def test_simulated_and_real_devices_agree(name, real_devices):
    simulated = simulate(PROGRAMS[name])
    compare(real_devices.get({"written": name}), simulated)


@pytest.mark.parametrize("name", REFUSED)
def test_what_real_devices_refuse_is_refused(name, real_devices):
    with pytest.raises(RealError, match=re.escape(PROGRAMS[name].refused)):
        real_devices.get({"written": name})
    with pytest.raises(LabError):
        simulate(PROGRAMS[name])


@pytest.mark.parametrize("name", SIMULATED_ALONE)
def test_what_only_other_backends_run_agrees_with_numpy(name, real_devices):
    program = PROGRAMS[name]
    with pytest.raises(RealError, match=re.escape(program.refused)):
        real_devices.get({"written": name})
    args = [np.asarray(item.make(seed)) for seed, item in enumerate(program.inputs)]
    compare(plain("value", program.reference(*args)), without_log(simulate(program)))


def without_log(arrays):
    return {name: array for name, array in arrays.items() if name != "log"}


def test_the_simulation_had_one_device():
    assert len(jax.devices()) == 1
