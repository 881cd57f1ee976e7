"""Settings of every test process."""

from __future__ import annotations

import os

import pytest

# Each program is compiled to run once or twice, so what it costs is compiling it. Without LLVM's
# expensive passes a result changes by no more than the order of a sum.
_FAST_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if "--xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FAST_COMPILE}".strip()


# First: pytest-xdist 3.8 reads the groups in the same hook, and would otherwise do so before.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that share a fixture of their module in one process.

    Such a fixture starts a server, a pool of sandboxes or eight devices: with pytest's workers it
    would be made once in each of them (`--dist loadgroup`, tools/run_tests.py).
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is not None:
            continue
        fixtures = getattr(item, "_fixtureinfo", None)
        definitions = fixtures.name2fixturedefs.values() if fixtures is not None else ()
        if any(versions[-1].scope == "module" for versions in definitions):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
