"""Simulated mode: entering, leaving, nesting, and arrays that outlive it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab._jax import device_hooks
from shardlab.errors import InvalidDeviceCount, NotMeasured

AUTO = (AxisType.Auto,) * 2


def place_array():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=AUTO)
    values = jnp.arange(32.0).reshape(4, 8)
    return jax.device_put(values, NamedSharding(mesh, P("data", "model")))


def patchable_attributes():
    """Return the identity of everything that the mode may replace."""
    array = {k: v for k, v in vars(device_hooks.ArrayImpl).items() if not k.startswith("__")}
    modules = [
        jax,
        device_hooks.xla_bridge,
        device_hooks.pjit,
        device_hooks.pxla,
        device_hooks.dispatch,
        device_hooks.array_lib,
    ]
    attributes = {(m.__name__, k): v for m in modules for k, v in vars(m).items()}
    attributes.update({("ArrayImpl", k): v for k, v in array.items()})
    attributes.update(
        {("MeshComputation", k): v for k, v in vars(device_hooks.pxla.MeshComputation).items()}
    )
    return {k: id(v) for k, v in attributes.items() if callable(v) or isinstance(v, property)}


def jax_state():
    n_devices = len(jax.devices())
    return n_devices, jax.config.values, jax.sharding.get_mesh(), patchable_attributes()


# ----------------------------------------------------------------------------- entering and leaving


def test_leaving_restores_jax():
    before = jax_state()
    with shardlab.simulated(devices=8):
        jax.config.update("jax_num_cpu_devices", 3)
        assert len(jax.devices()) == 8
        jax.set_mesh(jax.make_mesh((2, 4), ("a", "b")))
        jax.config.update("jax_enable_x64", True)
        jax.jit(lambda x: x + 1)(jnp.ones(3))
    assert jax_state() == before
    assert jnp.ones(2).dtype == np.float32


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_leaving_by_an_exception_restores_jax(error):
    before = jax_state()

    def program():
        with shardlab.simulated(devices=8):
            jax.set_mesh(jax.make_mesh((8,), ("a",)))
            raise error

    with pytest.raises(error):
        program()
    assert jax_state() == before


def test_closing_a_generator_restores_jax():
    before = jax_state()

    def steps():
        with shardlab.simulated(devices=8):
            yield len(jax.devices())
            yield 0

    generator = steps()
    assert next(generator) == 8
    generator.close()
    assert jax_state() == before


FRESH_PROCESS = """
import jax
from jax.sharding import AxisType, PartitionSpec as P
from shardlab.errors import UnboundAxis
from shardlab.simulator.simulated_mode import simulated
with simulated(devices=2):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    f = lambda x: jax.lax.psum(x, "dta")
    try:
        jax.shard_map(f, mesh=mesh, in_specs=P("data"), out_specs=P())(jax.numpy.ones(2))
    except UnboundAxis:
        print("hooked")
"""


def test_entering_the_mode_alone_hooks_shard_map():
    """In a new process: here another test may have loaded `shardlab.shard_map` already."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS], capture_output=True, text=True, timeout=600
    )
    assert done.stdout == "hooked\n", done.stderr


def test_nested_modes_use_the_inner_device_count():
    with shardlab.simulated(devices=8):
        x = place_array()
        with shardlab.simulated(devices=512):
            assert jax.device_count() == 512
            assert len((x + 1).devices()) == 8
        assert jax.device_count() == 8
    assert jax.device_count() == 1


def test_mode_applies_to_other_threads():
    results = []
    with shardlab.simulated(devices=8):
        thread = threading.Thread(
            target=lambda: results.extend([jax.device_count(), place_array() + 1])
        )
        thread.start()
        thread.join()
        assert results[0] == 8
        assert len(results[1].addressable_shards) == 8


def test_two_threads_can_enter_at_once():
    before, errors = jax_state(), []
    barrier = threading.Barrier(2)

    def enter(n_devices):
        try:
            barrier.wait()
            for _ in range(10):
                with shardlab.simulated(devices=n_devices):
                    assert float(jnp.arange(4.0).sum()) == 6.0
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=enter, args=(n,)) for n in (2, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert jax_state() == before


@pytest.mark.parametrize("devices", [0, -1, "8", 2.5, True, False, 10**9, 10**30])
def test_invalid_device_counts_are_rejected_before_anything_changes(devices):
    before = jax_state()
    with pytest.raises(InvalidDeviceCount, match=r"\[simulate\.invalid_device_count\]") as caught:
        shardlab.simulated(devices=devices).__enter__()
    assert repr(devices) in str(caught.value)
    assert jax_state() == before


def test_numpy_counts_and_one_device_are_valid():
    for devices in (np.int64(4), 1):
        with shardlab.simulated(devices=devices):
            assert jax.device_count() == devices


def test_without_a_number_the_programs_setting_counts(monkeypatch):
    flag = "--xla_force_host_platform_device_count=16"
    monkeypatch.setenv("XLA_FLAGS", flag)
    with shardlab.simulated():
        assert jax.device_count() == 16
        assert os.environ["XLA_FLAGS"] == flag
    monkeypatch.delenv("XLA_FLAGS")
    with shardlab.simulated():
        jax.config.update("jax_num_cpu_devices", 4)
        assert jax.device_count() == 4
        with pytest.raises(RuntimeError, match="before backends are"):
            jax.config.update("jax_num_cpu_devices", 2)
    with shardlab.simulated():
        assert jax.device_count() == 8


def test_a_requested_device_count_also_starts_the_backend_with_the_first_array():
    with shardlab.simulated(devices=8):
        jax.config.update("jax_num_cpu_devices", 4)  # ignored: the caller has asked for 8
        assert jnp.ones(2).devices() == {jax.devices()[0]}
        with pytest.raises(RuntimeError, match="should be updated before backends"):
            jax.config.update("jax_num_cpu_devices", 2)
        with pytest.raises(RuntimeError, match="must be called before any JAX calls"):
            jax.distributed.initialize("localhost:8889", num_processes=1, process_id=0)


# --------------------------------------------------------------- arrays inside and outside the mode


def test_arrays_made_inside_are_ordinary_outside():
    with shardlab.simulated(devices=8):
        x = place_array()
        key = jax.device_put(jax.random.split(jax.random.key(0), 4), x.sharding.update(spec=P()))
    assert x.devices() == set(jax.devices())
    assert len(x.addressable_shards) == 1
    np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(x), 2 * np.arange(32).reshape(4, 8))
    assert jax.random.uniform(key[0]).shape == ()


def test_arrays_made_before_are_usable_inside_and_after():
    x = jnp.arange(8.0)
    with shardlab.simulated(devices=8):
        mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
        y = jax.device_put(x, NamedSharding(mesh, P("i")))
        assert [float(s.data[0]) for s in y.addressable_shards] == list(range(8))
        assert (x + y).sharding.spec == P("i")
    assert float(x.sum()) == 28.0


def test_labels_return_with_the_mode():
    with shardlab.simulated(devices=8):
        x = place_array()
    with shardlab.simulated(devices=8):
        assert x.sharding.spec == P("data", "model")


def test_functions_jitted_outside_are_traced_again_inside():
    traces = []

    @jax.jit
    def f(x):
        traces.append(jax.device_count())
        return x * jax.device_count()

    assert float(f(1.0)) == 1.0
    for _ in range(2):
        with shardlab.simulated(devices=8):
            assert float(f(1.0)) == 8.0
            assert float(f(1.0)) == 8.0
        assert float(f(1.0)) == 1.0
    assert traces == [1, 8]


def test_names_imported_before_the_mode_follow_it(monkeypatch):
    import sys
    import types

    module = types.ModuleType("imported_before")
    module.local_devices = jax.local_devices
    monkeypatch.setitem(sys.modules, "imported_before", module)
    with shardlab.simulated(devices=8):
        assert len(module.local_devices()) == 8
        imported_inside = jax.local_devices
    assert len(module.local_devices()) == 1
    assert len(imported_inside()) == 1


# ------------------------------------------------------------------------------------ not simulated


def test_what_only_real_executables_have_is_not_measured():
    with shardlab.simulated(devices=8):
        compiled = jax.jit(lambda x: x * 2).lower(place_array()).compile()
        with pytest.raises(NotMeasured, match="where: serialize of a program compiled"):
            compiled.runtime_executable().serialize()


def test_a_program_is_compiled_once_and_only_on_request(monkeypatch):
    from shardlab.simulator.virtual_devices import compiled_program

    n_compiled = []
    original = compiled_program._compile_and_analyze
    monkeypatch.setattr(
        compiled_program, "_compile_and_analyze", lambda c: n_compiled.append(c) or original(c)
    )
    compiled_program._warn_about_cpu.cache_clear()
    with shardlab.simulated(devices=8):
        f, x = jax.jit(lambda x: x.sum(0)), place_array()
        f(x)
        assert not n_compiled
        text = f.lower(x).compile().as_text()
        with pytest.warns(compiled_program.CompiledForCpu, match="compiler for CPU"):
            memory = f.lower(x).compile().memory_analysis()
        cost = f.lower(x).compile().cost_analysis()
    assert len(n_compiled) == 1
    assert "all-reduce" in text
    assert text.startswith("HloModule")
    assert "XLA for CPU" in text
    assert memory.argument_size_in_bytes == x.nbytes // 8
    assert cost["flops"] > 0


def test_shards_of_unreduced_arrays_are_partial_sums():
    with shardlab.simulated(devices=4):
        mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
        with jax.set_mesh(mesh):
            x = jax.device_put(np.arange(8.0), P("x"))
            sum_shards = jax.jit(lambda x: jnp.einsum("a->", x, out_sharding=P(unreduced={"x"})))
            shards = [float(shard.data) for shard in sum_shards(x).addressable_shards]
            total = float(jax.reshard(sum_shards(x), P()))
    assert (shards, total) == ([1, 5, 9, 13], 28)


def test_reading_the_shards_of_a_scalar_leaves_its_sharding():
    with shardlab.simulated(devices=4):
        replicated = NamedSharding(jax.make_mesh((4,), ("x",)), P())
        step = jax.device_put(np.float32(2), replicated)
        assert [float(shard.data) for shard in step.addressable_shards] == [2] * 4
        assert step.sharding == replicated


def test_virtual_devices_print_as_host_devices():
    real = jax.devices()[0]
    with shardlab.simulated(devices=4):
        virtual = jax.devices()[0]
        assert (repr(virtual), str(virtual)) == (repr(real), str(real))
        assert (virtual.platform, virtual.device_kind) == (real.platform, real.device_kind)
        assert repr(virtual.default_memory()) == repr(real.default_memory())
        # Equal texts, but never equal: JAX's caches of traces must not mix the two up.
        mesh = jax.make_mesh((1,), ("x",)).abstract_mesh
    assert str(mesh) == str(jax.make_mesh((1,), ("x",)).abstract_mesh)
    assert mesh != jax.make_mesh((1,), ("x",)).abstract_mesh


# ----------------------------------------------------------------------------- inspecting shardings


def test_visualize_and_print_sharded_arrays(capsys):
    with shardlab.simulated(devices=8):
        x = place_array()
        jax.debug.visualize_array_sharding(x, use_color=False)
        jax.jit(lambda x: jax.debug.print("sum {}", x.sum()))(x)
        jax.effects_barrier()
    picture = capsys.readouterr().out
    assert "CPU 7" in picture
    assert "sum 496.0" in picture


def test_every_one_of_512_devices_has_its_shard():
    with shardlab.simulated(devices=512):
        mesh = jax.make_mesh((16, 32), ("data", "model"), axis_types=AUTO)
        x = jax.device_put(jnp.ones((64, 64)), NamedSharding(mesh, P("data", "model")))
        y = jax.jit(lambda x: x @ x.T)(x)
        assert len(y.addressable_shards) == 512
        assert y.addressable_shards[511].data.shape == (4, 64)
