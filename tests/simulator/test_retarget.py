"""A program on meshes of other sizes than its own."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.errors import MeshAxesMismatch
from shardlab.simulator.retarget import retarget_programs
from shardlab.simulator.virtual_devices.devices import virtual_mesh

X = np.arange(24.0, dtype=np.float32)


def scale_by_device_count(x):
    """Each device sees its own shard; the sum of ones counts them."""
    return x * lax.psum(jnp.ones((), x.dtype), "data")


def own_virtual_mesh():
    return shardlab.shard_map(
        scale_by_device_count, mesh="data=8", in_specs=P("data"), out_specs=P("data")
    )


def own_real_mesh():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",), axis_types=(AxisType.Auto,))
    return jax.shard_map(scale_by_device_count, mesh=mesh, in_specs=P("data"), out_specs=P("data"))


def context_mesh():
    return jax.shard_map(scale_by_device_count, in_specs=P("data"), out_specs=P("data"))


def mesh_made_inside():
    def f(x):
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        return jax.shard_map(
            scale_by_device_count, mesh=mesh, in_specs=P("data"), out_specs=P("data")
        )(x)

    return f


def mesh_set_inside():
    def f(x):
        with jax.set_mesh(jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))):
            return jax.shard_map(scale_by_device_count, in_specs=P("data"), out_specs=P("data"))(x)

    return f


@pytest.mark.parametrize(
    "program",
    [
        *(
            make()
            for make in (
                own_virtual_mesh,
                own_real_mesh,
                context_mesh,
                mesh_made_inside,
                mesh_set_inside,
            )
        ),
        *(
            jax.jit(make())
            for make in (own_virtual_mesh, own_real_mesh, context_mesh, mesh_made_inside)
        ),
    ],
)
def test_a_program_runs_on_each_mesh_in_turn(program):
    for n in (2, 3, 12):
        with retarget_programs({"data": n}):
            np.testing.assert_array_equal(program(X), X * n)


def test_a_program_has_its_own_mesh_again_afterwards():
    virtual, real, context = own_virtual_mesh(), own_real_mesh(), context_mesh()
    with retarget_programs("data=3"):
        for program in (virtual, real, context):
            np.testing.assert_array_equal(program(X), X * 3)
    np.testing.assert_array_equal(virtual(X), X * 8)
    np.testing.assert_array_equal(real(X), X)
    with shardlab.simulated(4), jax.set_mesh(virtual_mesh("data=4")):
        np.testing.assert_array_equal(context(X), X * 4)


def test_axes_keep_the_programs_order():
    program = shardlab.shard_map(
        lambda x: lax.axis_index(("data", "model")).reshape(1),
        mesh="model=2,data=4",
        in_specs=P(),
        out_specs=P(("data", "model")),
    )
    with retarget_programs("data=2,model=3"):
        np.testing.assert_array_equal(program(X), np.arange(6))


def test_sizes_that_do_not_divide_are_rejected_by_jax():
    with retarget_programs("data=5"), pytest.raises(ValueError, match="evenly divisible"):
        own_virtual_mesh()(X)


def test_other_axis_names_are_rejected():
    with (
        retarget_programs("batch=2"),
        pytest.raises(MeshAxesMismatch, match="'data'; the mesh given has 'batch'"),
    ):
        own_virtual_mesh()(X)


def test_gradients_and_partial_functions_are_retargeted():
    loss = jax.jit(functools.partial(lambda f, x: f(x).sum(), own_virtual_mesh()))
    with retarget_programs("data=6"):
        np.testing.assert_array_equal(jax.grad(loss)(X), np.full(24, 6))
