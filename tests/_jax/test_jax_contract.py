"""Behaviour of JAX that shardlab relies on; a JAX release that changes it fails here by name."""

from __future__ import annotations

import contextlib
import ctypes
import doctest
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import dispatch, distributed
from jax._src.lib import _jax as jaxlib
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab import _jax
from shardlab._jax import device_hooks, executed_programs, host_hooks
from shardlab.simulator.hosts.distributed_client import VirtualDistributedClient
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES, IDENTITY_COLLECTIVES
from shardlab.simulator.interpreter.rules.local import is_elementwise
from shardlab.simulator.virtual_devices.devices import virtual_mesh

MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
ARGUMENT = jax.ShapeDtypeStruct((16, 8), jnp.float32)


def traced_primitives(body, check_vma=True):
    """Return the names of the primitives that a body is traced to, at any depth."""
    f = jax.shard_map(
        body, mesh=MESH, in_specs=P("data", "model"), out_specs=P("data"), check_vma=check_vma
    )

    def primitive_names(jaxpr):
        inner, _ = _jax.open_jaxpr(jaxpr)
        for eqn in inner.eqns:
            yield eqn.primitive.name
            for body in _jax.inner_jaxprs(eqn.params):
                yield from primitive_names(body)

    return set(primitive_names(jax.make_jaxpr(f)(ARGUMENT)))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: lax.psum(x, "model"),
        lambda x: lax.pmax(x, "model"),
        lambda x: lax.pmin(x, "model"),
        lambda x: lax.all_gather(x, "model"),
        lambda x: lax.psum_scatter(x, "data", tiled=True),
        lambda x: lax.all_to_all(x, "data", 0, 0, tiled=True),
        lambda x: lax.ppermute(x, "model", [(0, 1)]),
        lambda x: lax.pshuffle(x, "data", [1, 0]),
    ],
    ids=[
        "psum",
        "pmax",
        "pmin",
        "all_gather",
        "psum_scatter",
        "all_to_all",
        "ppermute",
        "pshuffle",
    ],
)
def test_collective_is_traced_to_a_primitive_with_a_rule(body):
    traced = traced_primitives(lambda x: jnp.ravel(body(x))[:1], check_vma=False)
    assert traced & set(COLLECTIVES)


def test_casts_between_vma_types_are_identity_collectives():
    assert (
        traced_primitives(lambda x: lax.psum(x + lax.psum(x, "data"), "model"))
        & IDENTITY_COLLECTIVES
    )


def test_elementwise_primitives_are_recognized():
    assert is_elementwise(lax.add_p)
    assert is_elementwise(lax.exp_p)
    assert is_elementwise(lax.convert_element_type_p)
    assert not is_elementwise(lax.dot_general_p)
    assert not is_elementwise(lax.sort_p)


def test_batching_reports_where_jax_puts_the_new_axis():
    aval = _jax.plain_aval((3, 5), jnp.float32)
    closed = _jax.trace_plain(lambda x: jnp.sort(x, 1), [aval])
    batched, dims = _jax.batch_jaxpr(closed, 7, (1,))
    (out,) = _jax.eval_jaxpr(batched, [jnp.zeros((3, 7, 5))])
    assert out.shape[dims[0]] == 7


def test_named_axis_effect_marks_collectives_only():
    f = jax.shard_map(
        lambda x: lax.psum(jnp.sin(x), "model"), mesh=MESH, in_specs=P(None, "model"), out_specs=P()
    )
    (eqn,) = jax.make_jaxpr(f)(ARGUMENT).jaxpr.eqns
    by_name = {e.primitive.name: e.effects for e in _jax.open_jaxpr(eqn.params["jaxpr"])[0].eqns}
    assert not by_name["sin"]
    effects = next(effects for name, effects in by_name.items() if name in COLLECTIVES)
    assert {e.name for e in effects if isinstance(e, _jax.NamedAxisEffect)} == {"model"}


def test_mesh_of_python_objects_computes_shard_shapes():
    sharding = NamedSharding(virtual_mesh("data=16,model=32"), P("model", "data"))
    assert sharding.shard_shape((64, 32)) == (2, 2)
    assert len(sharding.devices_indices_map((64, 32))) == 512
    assert _jax.is_virtual_kind(sharding.mesh.abstract_mesh)


def test_arrays_accept_python_attributes():
    x = jnp.ones(3)
    x._shardlab_test = 1
    assert isinstance(x, device_hooks.ArrayImpl)
    assert x.__dict__["_shardlab_test"] == 1


def test_the_buffer_slot_of_a_type_is_where_host_hooks_clears_it():
    def has_buffer(kind):
        return ctypes.c_void_p.from_address(id(kind) + host_hooks._BUFFER_SLOT).value is not None

    kinds = (bytes, bytearray, memoryview, np.ndarray, device_hooks.ArrayImpl, int, object, dict)
    assert [has_buffer(kind) for kind in kinds] == [True] * 5 + [False] * 3


def test_jax_reads_the_host_of_a_device_from_its_process_index():
    devices = virtual_mesh("x=4").devices
    sharding = NamedSharding(virtual_mesh("x=4"), P("x"))
    assert sharding._internal_device_list.process_indices == {0}
    assert sharding.is_fully_addressable
    assert {device.process_index for device in devices} == {devices[0].client.process_index()}


def test_jax_has_what_virtual_hosts_replace():
    state = distributed.global_state
    names = "client", "process_id", "num_processes", "preemption_sync_manager"
    assert [getattr(state, name) for name in names] == [None, 0, 1, None]
    for name in ("_device_put_sharding_impl", "_DeferredShardArg"):
        assert hasattr(dispatch, name)
    assert callable(dispatch._is_supported_cross_host_transfer)
    assert callable(multihost_utils.global_array_to_host_local_array_p.impl)
    client_methods = {name for name in dir(jaxlib.DistributedRuntimeClient) if name[0] != "_"}
    assert client_methods <= set(dir(VirtualDistributedClient))


def test_every_execution_and_compilation_can_be_observed():
    class Observer:
        def __init__(self):
            self.events = []

        def compiling(self, name):
            self.events.append(f"compiling {name}")
            return contextlib.nullcontext()

        def compiled(self, executable):
            self.events.append(f"compiled {executable.name}")
            assert executable.lowered_from.jaxpr.out_avals[0].shape == (3,)
            assert "ENTRY" in executable.hlo_text()
            assert not executable.is_on_several_processes

        def execute(self, executable, run):
            self.events.append(f"executing {executable.name}")
            return run()

    def observed(x):
        return x + 1

    observer, jitted = Observer(), jax.jit(observed)
    argument = np.arange(3.0, dtype=np.float32)
    with executed_programs.observe_executions(observer):
        result = jitted(argument)
    assert result.tolist() == [1.0, 2.0, 3.0]
    assert observer.events == [
        "compiling jit(observed)", "compiled jit(observed)", "executing jit(observed)",
    ]  # fmt: skip
    jitted(argument + 1)
    assert len(observer.events) == 3  # JAX is as before


def test_no_cluster_is_detected_on_a_plain_machine():
    assert executed_programs.detected_cluster() is None
    assert executed_programs.coordination_client() is None
    assert executed_programs.process_position() == (0, 1)


def test_this_process_has_one_device():
    assert len(jax.devices()) == 1
    assert np.asarray(jax.devices())[0].platform == "cpu"


@pytest.mark.parametrize(
    "name",
    [
        "simulator.peek",
        "simulator.shard_map",
        "simulator.shards",
        "simulator.simulated_mode",
        "simulator.virtual_devices.backend",
        "simulator.virtual_devices.devices",
        "tracing.compiler.inserted_collectives",
    ],
)
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(f"shardlab.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
