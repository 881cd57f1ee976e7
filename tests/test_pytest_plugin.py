"""The pytest plugin: virtual meshes, budgets, golden files, and hangs that are failures.

Each run of pytest is a process of its own, so few runs hold many facts.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points

import pytest

from shardlab import testing
from shardlab.testing import Hang, time_limit

pytest_plugins = ["pytester"]

# A development install from before the plugin does not register it.
IS_REGISTERED = any(point.name == "shardlab" for point in entry_points(group="pytest11"))
PLUGIN = () if IS_REGISTERED else ("-p", "shardlab.pytest_plugin")

PROGRAMS = """
    import jax, jax.numpy as jnp, pytest
    from jax.sharding import NamedSharding, PartitionSpec as P
    from shardlab.testing import (
        assert_collectives, assert_memory, assert_mesh_invariant, assert_traffic,
        trace_program)

    def total(x):
        body = lambda x: jax.lax.psum(x.sum(), "data")
        return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)

    def partial_total(x):
        body = lambda x: x.sum()
        return jax.shard_map(body, in_specs=P("data"), out_specs=P(), check_vma=False)(x)
"""


@pytest.fixture
def run(pytester):
    """Write a test file and run pytest on it."""

    def run_pytest(text, *options):
        pytester.makepyfile(PROGRAMS + text)
        return pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", *options)

    return run_pytest


def message_of(test, result):
    """Return the lines that pytest prints for the failure of one test, without its marks."""
    text = "\n".join(result.outlines)
    section = re.search(rf"^_+ {re.escape(test)} _+\n(.*?)^(?:_____|=====)", text, re.S | re.M)
    assert section, text
    return re.sub(r"^E {7}", "", section[1], flags=re.M)


def test_marked_tests_run_on_each_mesh_and_budgets_hold(run):
    result = run(
        """
    @pytest.mark.meshes("data=2", "data=4,model=2", "data=64")
    def test_on_each_mesh(virtual_mesh):
        assert jax.device_count() == virtual_mesh.size
        assert total(jnp.arange(64.0)) == 2016  # on the mesh in context

    @pytest.mark.meshes("data=4")
    def test_that_does_not_ask_for_the_mesh():
        assert jax.device_count() == 4
        assert total(jnp.arange(8.0)) == 28

    def test_default(virtual_mesh):
        assert dict(virtual_mesh.shape) == {"data": 8}

    def test_leaves_no_mode_behind():
        assert jax.device_count() == 1

    def test_assertions_that_hold():
        assert_mesh_invariant(total, "f32[24]", meshes=["data=2", "data=4"])
        for expected in (["psum data"], ["psum"], {"psum": 1}, {"psum data": 1, "pmax": 0}):
            assert_collectives(total, "f32[24]", expected=expected, mesh="data=4")
        # 2 (g-1)/g of 4 bytes on each of 4 devices
        assert_traffic(total, "f32[24]", at_most="6B", at_most_total="24B", mesh="data=4")

    def test_memory(virtual_mesh):
        f = jax.jit(lambda x: (x * 2).sum(), in_shardings=NamedSharding(virtual_mesh, P("data")))
        assert_memory(f, "f32[64]", at_most="1KiB")
        # an eighth of 64 numbers of 4 bytes goes in, one comes out; temporaries vary
        with pytest.raises(AssertionError, match="each device stores .*the budget of 35"):
            assert_memory(f, "f32[64]", at_most=35)
        """,
        "-v",
    )
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["*test_on_each_mesh?data=4,model=2? PASSED*"])


def test_failures_are_reports_and_a_hang_is_one(run):
    result = run(
        """
    def test_invariant():
        assert_mesh_invariant(partial_total, "f32[24]", meshes=["data=2", "data=4"])

    def test_collectives():
        assert_collectives(total, "f32[24]", expected=["all_gather data", "psum"], mesh="data=4")

    def test_executions():
        assert_collectives(total, "f32[24]", expected={"psum": 3}, mesh="data=4")

    def test_traffic():
        assert_traffic(total, "f32[24]", at_most_total=23, mesh="data=4")

    def test_refused():
        assert_memory(total, "f32[25]", at_most="1GB", mesh="data=4")

    @pytest.mark.shardlab_timeout(0.5)
    def test_hang():
        while True:
            pass

    def test_after():
        pass

    @pytest.mark.shardlab_timeout(0.5)
    def test_hang_in_compiled_code():
        jax.lax.while_loop(lambda x: x >= 0, lambda x: x * 0, jnp.float32(1)).block_until_ready()
        """
    )
    result.assert_outcomes(failed=7, passed=1)
    assert result.ret == 1
    message = message_of("test_invariant", result)
    assert "'partial_total' is not the same on every mesh" in message
    assert "[hazard.replicas_differ]" in message
    message = message_of("test_collectives", result)
    assert "--- expected\n+++ actual\n- all_gather data\n  psum\n" in message
    assert "- 3 x psum\n+ 1 x psum\n" in message_of("test_executions", result)
    message = message_of("test_traffic", result)
    assert "'total': the 4 devices send 24 bytes (24 bytes), 1 byte more than the budget" in message
    message = message_of("test_refused", result)
    assert "[trace.rejected] JAX rejects 'total'. Dimension 0 of 'x' has size 25" in message
    assert "testing.py" not in message
    message = message_of("test_hang", result)
    assert "::test_hang took longer than 0.5 s and was stopped." in message
    assert "hang.py" not in message
    message = message_of("test_hang_in_compiled_code", result)
    assert "::test_hang_in_compiled_code took longer than 0.5 s and was stopped." in message


GOLDEN = """
    @pytest.mark.meshes("data=4", "data=2")
    def test_saved(virtual_mesh, shardlab_golden):
        shardlab_golden(trace_program(total, "f32[24]"), "trace")
        x = jax.device_put(jnp.ones((8, 2)), NamedSharding(virtual_mesh, P("data")))
        shardlab_golden({"x": x, "n": 3}, "shardings")
"""


def test_golden_files_are_made_compared_and_diffed_by_two_workers(run, pytester):
    first = run(GOLDEN, "-n", "2", "--shardlab-update")
    first.assert_outcomes(passed=2)
    folder = pytester.path / "golden" / first_file(pytester)
    assert sorted(file.name for file in folder.iterdir()) == [
        f"test_saved_data={n}-{kind}.txt" for n in (2, 4) for kind in ("shardings", "trace")
    ]
    shardings = folder / "test_saved_data=4-shardings.txt"
    assert shardings.read_text() == "['n']: 3\n['x']: float32[8,2] P('data') on data=4\n"
    (folder / "test_saved_data=2-trace.txt").unlink()
    trace = folder / "test_saved_data=4-trace.txt"
    trace.write_text(trace.read_text().replace("psum data", "pmax data"))
    second = run(GOLDEN)
    second.assert_outcomes(failed=2)
    message = message_of("test_saved[data=4]", second)
    assert "if it is right, run pytest with --shardlab-update." in message
    assert "\n- pmax data: float32[] x 1, forward, 6 bytes in <lambda>\n+ psum data:" in message
    message = message_of("test_saved[data=2]", second)
    assert "The golden file golden" in message
    assert "run pytest with --shardlab-update to write:" in message


def first_file(pytester):
    return next(pytester.path.glob("test_*.py")).stem


def test_the_plugin_loads_neither_jax_nor_numpy():
    heavy = "{'jax', 'numpy', 'click', 'rich'} & set(sys.modules)"
    code = f"import shardlab.pytest_plugin, shardlab.testing, sys; assert not {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_invalid_marker_fails_its_own_test_only(run):
    result = run(
        """
    MESH = jax.make_mesh((8,), ("data",))  # when it is imported, as train.py may do

    @pytest.mark.meshes("data=")
    def test_mesh():
        pass

    @pytest.mark.meshes()
    def test_no_mesh():
        pass

    @pytest.mark.shardlab_timeout("soon")
    def test_limit():
        pass

    @pytest.mark.meshes("data=2")
    def test_after():
        assert jax.device_count() == 2
        assert MESH.size == 8
        assert_collectives(total, "f32[24]", expected=["psum"])

    def test_outside():
        assert jax.device_count() == 1
        """,
        *("-o", "shardlab_devices=8"),
    )
    result.assert_outcomes(errors=2, failed=1, passed=2)
    text = "\n".join(result.outlines)
    assert "@pytest.mark.meshes: [layout.invalid_syntax] The size of mesh axis 'data' was" in text
    assert 'The marker has no mesh: write @pytest.mark.meshes("data=2").' in text
    assert "@pytest.mark.shardlab_timeout('soon'): expected a number of seconds" in text


def test_the_configured_limit_holds_for_a_marked_test_without_the_fixture(run):
    # The only test of its run, so that nothing has to finish within the short limit.
    result = run(
        """
    @pytest.mark.meshes("data=2")
    def test_hang_without_the_fixture():
        import time
        while True:
            time.sleep(0.05)
        """,
        *("-o", "shardlab_timeout=1"),
    )
    result.assert_outcomes(failed=1)
    text = "\n".join(result.outlines)
    assert "test_hang_without_the_fixture[data=2] took longer than 1 s" in text


def test_give_up_is_called_for_a_block_that_cannot_be_interrupted(monkeypatch):
    messages = []
    was_called = threading.Event()

    def give_up(message):
        messages.append(message)
        was_called.set()

    monkeypatch.setattr(testing, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(testing, "_can_set_alarm", lambda: False)
    with time_limit(0.05, "the nap", give_up=give_up):
        assert was_called.wait(600)
    assert messages == [
        "the nap took longer than 0.05 s and was stopped. Look for a loop that does not end, or "
        "allow more time (shardlab_timeout)."
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="no alarm signal there")
def test_an_inner_limit_leaves_the_outer_one_in_charge(monkeypatch):
    # On a loaded machine the interrupt may come late; the process must not end meanwhile.
    monkeypatch.setattr(testing, "GRACE_SECONDS", 600.0)

    def nap():
        with time_limit(600, "a part"):
            pass
        time.sleep(600)

    with pytest.raises(Hang, match="the outer took longer"), time_limit(0.1, "the outer"):
        nap()
