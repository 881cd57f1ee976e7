"""A pytest plugin that runs a library's own tests on 8 virtual devices, in simulated mode.

    pytest -p simulated_devices path/to/jax/tests/pjit_test.py

The tests are unchanged: whatever they import, place, compile and read goes through the same mode
that `shardlab run` uses.
"""

from __future__ import annotations

import contextlib

from shardlab.simulator.simulated_mode import simulated

_mode = contextlib.ExitStack()


def pytest_configure(config):
    # Before any test file is imported: these read the devices at module level.
    _mode.enter_context(simulated(devices=8))


def pytest_unconfigure(config):
    _mode.close()
