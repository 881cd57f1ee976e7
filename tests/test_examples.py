"""The five seed functions: on one device as they are specified, and on many virtual ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import shardlab

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import seed_problems as seeds  # noqa: E402 - found beside the tests, not installed

MESHES = [(1,), (2,), (3,), (4,), (8,), (2, 4)]


@pytest.fixture(params=MESHES, ids=lambda shape: "x".join(map(str, shape)))
def mesh(request):
    shape = request.param
    with shardlab.simulated(devices=int(np.prod(shape))):
        names = ("data", "model")[: len(shape)]
        yield jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


def test_replicated_sharding_value_is_the_sum_on_one_device():
    assert seeds.replicated_sharding_value(jnp.array([1.0, 2.0, 3.0])) == 6.0


def test_replicated_sharding_value_counts_each_copy_once(mesh):
    x = jnp.array([0.5, -2.0, 3.0, 10.0, 7.0])
    total = seeds.replicated_sharding_value(x, mesh)
    assert total == 18.5
    assert total.sharding.is_fully_replicated
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    assert len(placed.addressable_shards) == mesh.size
    for shard in shardlab.shards(placed):
        np.testing.assert_array_equal(shard.data, x)


def test_shard_map_double_doubles_on_one_device():
    np.testing.assert_array_equal(seeds.shard_map_double(jnp.array([1.0, 2.0])), [2.0, 4.0])


def test_shard_map_double_keeps_order_and_layout(mesh):
    x = jnp.arange(24.0) ** 2 - 5
    y = seeds.shard_map_double(x, mesh)
    np.testing.assert_array_equal(y, 2 * np.asarray(x))
    assert y.sharding.shard_shape(y.shape) == (24 // mesh.size,)
    pieces = [shard.data for shard in shardlab.shards(y)]
    np.testing.assert_array_equal(np.concatenate(pieces), 2 * np.asarray(x))


def test_partition_spec_layout_divides_the_output_axis():
    out = seeds.partition_spec_layout(4, 8, 16)
    assert out.shape == (2,)
    assert jnp.issubdtype(out.dtype, jnp.floating)
    np.testing.assert_array_equal(out, [8.0, 4.0])


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((24, 16), (None, "model")),
        ((24, 16), ("model", None)),
        ((24, 16), (("data", "model"),)),
        ((24, 16), ("model", "data")),
        ((24,), ()),
    ],
)
def test_shard_shape_agrees_with_jax(shape, spec):
    with shardlab.simulated(devices=8):
        mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
        expected = NamedSharding(mesh, PartitionSpec(*spec)).shard_shape(shape)
    assert seeds.shard_shape(shape, spec, {"data": 2, "model": 4}) == expected


def test_shard_shape_rejects_an_indivisible_dimension():
    with pytest.raises(ValueError, match="dimension 1 has size 10, not divisible by 4"):
        seeds.shard_shape((6, 10), (None, "model"), {"data": 2, "model": 4})


def test_shard_map_psum_is_the_sum_on_one_device():
    assert seeds.shard_map_psum(jnp.array([1.0, 2.0, 3.0])) == 6.0


def test_shard_map_psum_is_the_global_sum_on_every_device(mesh):
    x = jnp.arange(24.0) ** 2
    total = seeds.shard_map_psum(x, mesh)
    assert total == 4324.0
    assert total.sharding.is_fully_replicated


def test_shard_map_simulate_flattens_one_layer_over_slices():
    x = jnp.arange(24.0).reshape(8, 3) / 7
    out = seeds.shard_map_simulate(0.0, x, 4.0, 5.0)
    assert out.shape == (40,)
    np.testing.assert_allclose(out, seeds.shard_map_simulate(0, x, 1, 5), rtol=1e-5, atol=1e-6)


def test_nnx_shard_map_agrees_with_the_loop_over_slices(mesh):
    x = jnp.arange(72.0).reshape(24, 3) / 10
    mapped = seeds.nnx_shard_map(0, x, mesh, 5)
    looped = seeds.shard_map_simulate(0, x, mesh.size, 5)
    # Other slices, other order of the same few additions.
    np.testing.assert_allclose(mapped, looped, rtol=1e-5, atol=1e-5)


HOST_SCRIPTS = {"hosts.py", "hosts_hang.py"}  # need several hosts
SCRIPTS = sorted(
    path for path in EXAMPLES.rglob("*.py") if path.name not in {"tour.py", *HOST_SCRIPTS}
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_runs(script):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "returncode", "output"),
    [("hosts.py", 0, "loss on the data of host 0"), ("hosts_hang.py", 1, "simulate.hosts_differ")],
)
def test_example_runs_on_virtual_hosts(script, returncode, output):
    command = [sys.executable, "-m", "shardlab", "run", "--hosts", "2", "--devices", "4"]
    done = subprocess.run(
        [*command, str(EXAMPLES / script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == returncode, done.stderr
    assert output in done.stdout + done.stderr


@pytest.mark.parametrize("script", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_examples_import_public_names_only(script):
    imports = re.findall(r"^\s*(?:from|import) (shardlab\S*)", script.read_text(), re.MULTILINE)
    assert set(imports) <= {"shardlab"}


def test_the_tour_shows_the_bug_the_deadlock_and_512_devices_in_100_lines():
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "tour.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    text = " ".join(done.stdout.split())
    assert "loss on 1 device: 82.7845 loss on 8 devices: 0.3805" in text
    assert "[hazard.replicas_differ]" in text
    assert "[hazard.deadlock]" in text
    assert "gradient [-2046.0, -2048.0]" in text
    assert done.stdout.rstrip().endswith("docs/tutorial.md starts from the beginning.")
    assert len(done.stdout.splitlines()) <= 100
