"""A pytest plugin that runs the tests of a library on virtual devices, in simulated mode.

    pytest -p simulated_devices path/to/jax/tests/pjit_test.py

The tests are unchanged: whatever they import, place, compile and read goes through the same mode
that `shardlab run` uses.
"""

from __future__ import annotations

import contextlib

from shardlab.simulator.simulated_mode import simulated

_mode = contextlib.ExitStack()


def pytest_configure(config):
    # Before any test file is imported: these read the devices at module level. Without a number: a
    # file may ask for fewer than 8 devices in XLA_FLAGS, and gets them on real devices too.
    _mode.enter_context(simulated())


def pytest_unconfigure(config):
    _mode.close()
