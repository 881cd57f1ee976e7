"""JAX is the reference: each written program on eight real devices, and simulated on one."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from program import compare, plain_arrays
from runtimes import RealError, simulate_program
from written import PROGRAMS

from shardlab.errors import LabError

pytestmark = pytest.mark.xdist_group("oracle")


RUN = [name for name, program in PROGRAMS.items() if not program.rejected]
REJECTED = [n for n, p in PROGRAMS.items() if p.rejected and p.reference is None]
SIMULATED_ONLY = [n for n, p in PROGRAMS.items() if p.rejected and p.reference is not None]


def for_programs(names):
    requests = [{"written": name} for name in names]
    return pytest.mark.parametrize("program_request", requests, ids=names)


@for_programs(RUN)
def test_simulated_and_real_devices_agree(program_request, real_devices):
    simulated = simulate_program(PROGRAMS[program_request["written"]])
    compare(real_devices.get_result(program_request), simulated)


@for_programs(REJECTED)
def test_what_real_devices_reject_is_rejected(program_request, real_devices):
    with pytest.raises(RealError, match=re.escape(PROGRAMS[program_request["written"]].rejected)):
        real_devices.get_result(program_request)
    with pytest.raises(LabError):
        simulate_program(PROGRAMS[program_request["written"]])


@for_programs(SIMULATED_ONLY)
def test_what_only_other_backends_run_agrees_with_numpy(program_request, real_devices):
    program = PROGRAMS[program_request["written"]]
    with pytest.raises(RealError, match=re.escape(program.rejected)):
        real_devices.get_result(program_request)
    args = [np.asarray(item.make(seed)) for seed, item in enumerate(program.inputs)]
    compare(plain_arrays("value", program.reference(*args)), without_log(simulate_program(program)))


def without_log(arrays):
    return {name: array for name, array in arrays.items() if name != "log"}


def test_the_simulation_had_one_device():
    assert len(jax.devices()) == 1
