"""Every program of the autoshard benchmark is a program that JAX traces, on meshes that fit it."""

from __future__ import annotations

import pytest

from shardlab.hardware.chips import parse_hardware
from shardlab.sharding.mesh import parse_mesh

jax = pytest.importorskip("jax")
pytest.importorskip("optax")
registry = pytest.importorskip("benchmarks.autoshard.registry")


@pytest.mark.parametrize("name", registry.NAMES)
def test_each_program_traces_on_its_shapes_and_has_three_meshes(name):
    program = registry.make_program(name)
    leaves = jax.tree.leaves(program.args)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    outputs = jax.eval_shape(program.function, *program.args)
    # A train step returns its state as it takes it, or the next step would not accept it.
    if len(program.args) > 2 and not name.startswith("inference"):
        for before, after in zip(program.args[:2], outputs[:2], strict=True):
            assert jax.tree.structure(before) == jax.tree.structure(after)
            shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(before)]
            assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)]
    assert len({parse_mesh(mesh) for mesh in program.meshes}) == 3
    assert parse_hardware(program.hardware).title


def test_there_are_at_least_25_programs_and_each_family_has_its_folder():
    assert len(registry.NAMES) >= 25
    assert len(set(registry.NAMES)) == len(registry.NAMES)
