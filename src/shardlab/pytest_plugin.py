"""The pytest plugin: tests on virtual meshes, golden files, and no test that sticks.

Loaded by pytest itself, for every project that has shardlab installed: nothing here imports JAX
before a test asks for a mesh.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_MESHES = (
    "meshes(*meshes): run the test once on each of these virtual meshes, such as "
    '"data=2,model=4"; the fixture virtual_mesh is the mesh.'
)
_TIMEOUT = "shardlab_timeout(seconds): fail the test if it takes longer than this."
_KEY = pytest.StashKey[float]()


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
        "How many devices there are while test files are imported, in simulated mode (default: "
        "the real ones). For modules that build a mesh when they are imported.",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MESHES)
    config.addinivalue_line("markers", _TIMEOUT)
    text = config.getini("shardlab_timeout")
    try:
        seconds = float(text)
    except ValueError:
        raise pytest.UsageError(
            f"shardlab_timeout = {text}: a number of seconds is wanted"
        ) from None
    config.stash[_KEY] = seconds
    devices = config.getini("shardlab_devices")
    if devices and not devices.isdecimal():
        raise pytest.UsageError(f"shardlab_devices = {devices}: a number of devices is wanted")

    from shardlab import testing

    testing.timeout = seconds


# ------------------------------------------------------------------------------------------ meshes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each of its meshes."""
    marker = metafunc.definition.get_closest_marker("meshes")
    if marker is None:
        return
    meshes = [_mesh_text(mesh) for mesh in marker.args]
    if not meshes:
        meshes = [_Unread('The marker names no mesh: write @pytest.mark.meshes("data=2").')]
    if "virtual_mesh" not in metafunc.fixturenames:
        metafunc.fixturenames.append("virtual_mesh")
    ids = [mesh if isinstance(mesh, str) else "no mesh" for mesh in meshes]
    metafunc.parametrize("virtual_mesh", meshes, indirect=True, ids=ids)


class _Unread(NamedTuple):
    """A mesh that cannot be read. Its test alone fails: an error here would hide its whole file."""

    message: str


def _mesh_text(mesh: Any) -> str | _Unread:
    from shardlab.errors import LabError
    from shardlab.sharding.mesh import parse_mesh

    try:
        return str(parse_mesh(mesh))
    except LabError as error:
        return _Unread(f"@pytest.mark.meshes: {error}")


@pytest.fixture
def virtual_mesh(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A jax.sharding.Mesh of devices that do not exist, in simulated mode during the test."""
    from shardlab.simulator.simulated_mode import mesh_in_context

    text = getattr(request, "param", None) or request.config.getini("shardlab_mesh")
    if isinstance(text, _Unread):
        pytest.fail(text.message, pytrace=False)
    with mesh_in_context(text) as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def _shardlab_marked(request: pytest.FixtureRequest) -> None:
    """Put a marked test on its mesh also where it does not ask for the mesh itself."""
    if request.node.get_closest_marker("meshes") is not None:
        request.getfixturevalue("virtual_mesh")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import test files in simulated mode, where `shardlab_devices` asks for it."""
    devices = session.config.getini("shardlab_devices")
    if not devices:
        return (yield)
    from shardlab.simulator.simulated_mode import simulated

    with simulated(int(devices)):
        return (yield)


# ------------------------------------------------------------------------------------ golden files


@pytest.fixture
def shardlab_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that compares a Trace, or the shardings of arrays, with a kept file.

    The file is `golden/<module>/<test>.txt` beside the test, or `<test>-<name>.txt`.
    """
    from shardlab.testing import assert_golden

    folder = request.path.parent / "golden" / request.path.stem
    test = _file_name(request.node.name)

    def compare(record: Any, name: str = "") -> None:
        __tracebackhide__ = True
        file = folder / f"{test}{'-' + _file_name(name) if name else ''}.txt"
        update = request.config.getoption("--shardlab-update")
        assert_golden(record, _from_here(file), update=update)

    return compare


def _file_name(name: str) -> str:
    return re.sub(r"[^\w=,.-]+", "_", name).strip("_")


def _from_here(file: Path) -> Path:
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file


# -------------------------------------------------------------------------------------------- hangs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let a test on virtual meshes fail when it takes too long, however it is stuck."""
    seconds = _seconds(item)
    if seconds is None:
        return (yield)
    from shardlab.testing import time_limit

    with time_limit(seconds, item.nodeid, give_up=lambda message: _give_up(item, message)):
        return (yield)


def _seconds(item: pytest.Item) -> float | None:
    marker = item.get_closest_marker("shardlab_timeout")
    if marker is not None:
        return _given_seconds(marker)
    is_on_mesh = "virtual_mesh" in getattr(item, "fixturenames", ())
    # A marked test is on its mesh also where it does not name the fixture.
    if not is_on_mesh and item.get_closest_marker("meshes") is None:
        return None
    return item.config.stash[_KEY]


def _given_seconds(marker: pytest.Mark) -> float:
    try:
        return float(*marker.args, **marker.kwargs)
    except (TypeError, ValueError):
        given = ", ".join(map(repr, marker.args))
        pytest.fail(
            f"@pytest.mark.shardlab_timeout({given}): a number of seconds is wanted", pytrace=False
        )


def _give_up(item: pytest.Item, message: str) -> None:
    """Report the test as failed and end the run: the main thread will never come back.

    Under xdist only this worker ends; its successor goes on with the other tests.
    """
    import os

    try:
        if not hasattr(item.config, "workerinput"):
            report = pytest.TestReport(
                item.nodeid, item.location, {}, "failed", message, "call", duration=0.0
            )
            capture = item.config.pluginmanager.getplugin("capturemanager")
            if capture is not None:
                capture.suspend_global_capture(in_=True)
            item.ihook.pytest_runtest_logreport(report=report)
            item.session.testsfailed += 1
            item.config.hook.pytest_sessionfinish(session=item.session, exitstatus=1)
    finally:
        os.write(2, f"\n{message}\n".encode())
        os._exit(1)
