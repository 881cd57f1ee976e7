"""The pytest plugin: tests on virtual meshes, golden files, and time limits for tests that hang.

pytest loads it in every project that has shardlab installed, so nothing here imports JAX before a
test uses a mesh.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_MESHES_MARKER = (
    "meshes(*meshes): run the test once on each of these virtual meshes, such as "
    '"data=2,model=4"; the fixture virtual_mesh is the mesh.'
)
_TIMEOUT_MARKER = "shardlab_timeout(seconds): fail the test if it takes longer than this."
_TIMEOUT_KEY = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardlab", "virtual meshes")
    group.addoption(
        "--shardlab-update",
        action="store_true",
        help="Write golden files of traces and shardings instead of comparing with them.",
    )
    parser.addini(
        "shardlab_timeout",
        "Seconds for a test on virtual meshes, and for each shardlab assertion (default 120).",
        default="120",
    )
    parser.addini(
        "shardlab_mesh",
        "The virtual_mesh of tests without the marker 'meshes' (default data=8).",
        default="data=8",
    )
    parser.addini(
        "shardlab_devices",
        "Number of simulated devices while test files are imported (default: the real devices). "
        "For modules that create a mesh when they are imported.",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MESHES_MARKER)
    config.addinivalue_line("markers", _TIMEOUT_MARKER)
    text = config.getini("shardlab_timeout")
    try:
        seconds = float(text)
    except ValueError:
        raise pytest.UsageError(
            f"shardlab_timeout = {text}: expected a number of seconds"
        ) from None
    config.stash[_TIMEOUT_KEY] = seconds
    devices = config.getini("shardlab_devices")
    if devices and not devices.isdecimal():
        raise pytest.UsageError(f"shardlab_devices = {devices}: expected a number of devices")

    from shardlab import testing

    # The assertions of `testing` also work without pytest, so the limit is a variable of theirs.
    testing.timeout = seconds


# ------------------------------------------------------------------------------------------ meshes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each of its meshes."""
    marker = metafunc.definition.get_closest_marker("meshes")
    if marker is None:
        return
    meshes = [_parse_marker_mesh(mesh) for mesh in marker.args]
    if not meshes:
        meshes = [_InvalidMesh('The marker has no mesh: write @pytest.mark.meshes("data=2").')]
    if "virtual_mesh" not in metafunc.fixturenames:
        metafunc.fixturenames.append("virtual_mesh")
    # The id appears in the name of the test, and so in the name of its golden file.
    ids = [mesh if isinstance(mesh, str) else "no mesh" for mesh in meshes]
    metafunc.parametrize("virtual_mesh", meshes, indirect=True, ids=ids)


class _InvalidMesh(NamedTuple):
    """A mesh that cannot be parsed. Only its test fails; an error here would hide the file."""

    message: str


def _parse_marker_mesh(mesh: Any) -> str | _InvalidMesh:
    from shardlab.errors import LabError
    from shardlab.sharding.mesh import parse_mesh

    try:
        return str(parse_mesh(mesh))
    except LabError as error:
        return _InvalidMesh(f"@pytest.mark.meshes: {error}")


@pytest.fixture
def virtual_mesh(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A jax.sharding.Mesh of devices that do not exist, in simulated mode during the test."""
    from shardlab.simulator.simulated_mode import mesh_in_context

    text = getattr(request, "param", None) or request.config.getini("shardlab_mesh")
    if isinstance(text, _InvalidMesh):
        pytest.fail(text.message, pytrace=False)
    # In context, so that a shard_map without a mesh uses it.
    with mesh_in_context(text) as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def _shardlab_enter_mesh(request: pytest.FixtureRequest) -> None:
    """Run a marked test on its mesh even if it does not use the fixture `virtual_mesh`."""
    if request.node.get_closest_marker("meshes") is not None:
        request.getfixturevalue("virtual_mesh")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import test files in simulated mode if `shardlab_devices` is set."""
    devices = session.config.getini("shardlab_devices")
    if not devices:
        return (yield)
    from shardlab.simulator.simulated_mode import simulated

    with simulated(int(devices)):
        return (yield)


# ------------------------------------------------------------------------------------ golden files


@pytest.fixture
def shardlab_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that compares a Trace, or the shardings of arrays, with a golden file.

    The file is `golden/<module>/<test>.txt` beside the test, or `<test>-<name>.txt`.
    """
    from shardlab.testing import assert_golden

    folder = request.path.parent / "golden" / request.path.stem
    test = _safe_file_name(request.node.name)

    def compare(record: Any, name: str = "") -> None:
        __tracebackhide__ = True
        file = folder / f"{test}{'-' + _safe_file_name(name) if name else ''}.txt"
        update = request.config.getoption("--shardlab-update")
        assert_golden(record, _relative_path(file), update=update)

    return compare


def _safe_file_name(name: str) -> str:
    return re.sub(r"[^\w=,.-]+", "_", name).strip("_")


def _relative_path(file: Path) -> Path:
    folder = Path.cwd()
    return file.relative_to(folder) if file.is_relative_to(folder) else file


# -------------------------------------------------------------------------------------------- hangs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test on virtual meshes that exceeds its time limit, wherever it hangs."""
    seconds = _find_time_limit(item)
    if seconds is None:
        return (yield)
    from shardlab.testing import time_limit

    with time_limit(seconds, item.nodeid, give_up=lambda message: _end_run(item, message)):
        return (yield)


def _find_time_limit(item: pytest.Item) -> float | None:
    marker = item.get_closest_marker("shardlab_timeout")
    if marker is not None:
        return _parse_timeout(marker)
    is_on_mesh = "virtual_mesh" in getattr(item, "fixturenames", ())
    # A marked test runs on its mesh even if it does not use the fixture.
    if not is_on_mesh and item.get_closest_marker("meshes") is None:
        return None
    return item.config.stash[_TIMEOUT_KEY]


def _parse_timeout(marker: pytest.Mark) -> float:
    try:
        return float(*marker.args, **marker.kwargs)
    except (TypeError, ValueError):
        arguments = ", ".join(map(repr, marker.args))
        pytest.fail(
            f"@pytest.mark.shardlab_timeout({arguments}): expected a number of seconds",
            pytrace=False,
        )


def _end_run(item: pytest.Item, message: str) -> None:
    """Report the test as failed and end the process: the main thread never returns.

    Under xdist only this worker ends; xdist replaces it and runs the other tests.
    """
    import os

    try:
        # An xdist worker has no terminal reporter; its controller reports the crash itself.
        if not hasattr(item.config, "workerinput"):
            report = pytest.TestReport(
                item.nodeid, item.location, {}, "failed", message, "call", duration=0.0
            )
            # Otherwise the report would be captured as output of the test, and lost.
            capture = item.config.pluginmanager.getplugin("capturemanager")
            if capture is not None:
                capture.suspend_global_capture(in_=True)
            item.ihook.pytest_runtest_logreport(report=report)
            item.session.testsfailed += 1
            item.config.hook.pytest_sessionfinish(session=item.session, exitstatus=1)
    finally:
        os.write(2, f"\n{message}\n".encode())
        # sys.exit would wait for the main thread, which hangs.
        os._exit(1)
