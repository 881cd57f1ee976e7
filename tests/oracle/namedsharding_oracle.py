"""Compare `shardlab.layout` with `jax.sharding.NamedSharding` on real host devices.

test_namedsharding.py runs it in a separate process: the number of host devices must be set before
JAX is first used, and the other tests need a JAX with one. Prints the number of each outcome.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from math import prod

N_DEVICES = 24
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={N_DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from shardlab.errors import LabError  # noqa: E402
from shardlab.sharding.layout import layout  # noqa: E402
from shardlab.sharding.mesh import Mesh, parse_mesh  # noqa: E402
from shardlab.sharding.spec import parse_spec  # noqa: E402

NAMES = ("data", "model", "stage", "seq")
OUTCOMES: Counter[str] = Counter()


@st.composite
def meshes(draw):
    """Draw a mesh of up to four axes over some of the host devices, in any order."""
    sizes: list[int] = []
    for size in draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), max_size=4)):
        if prod(sizes) * size <= N_DEVICES:
            sizes.append(size)
    devices = list(jax.devices())
    if draw(st.booleans()):
        devices = draw(st.permutations(devices))
    device_array = np.array(devices[: prod(sizes)], dtype=object).reshape(sizes)
    return jax.sharding.Mesh(device_array, NAMES[: len(sizes)])


@st.composite
def specs(draw, mesh):
    """Draw mostly valid specs; sometimes a name twice, an unknown name, or an extra entry."""
    names = list(draw(st.permutations(mesh.axis_names))) if mesh.axis_names else []
    if draw(st.integers(0, 9)) == 0:
        names.append(draw(st.sampled_from(NAMES)))
    entries = []
    for _ in range(draw(st.integers(0, 4))):
        n = min(draw(st.sampled_from([0, 0, 1, 1, 1, 2, 3])), len(names))
        axis_group = tuple(names.pop() for _ in range(n))
        spellings = [axis_group]
        if n == 0:
            spellings += [None]
        if n == 1:
            spellings += [axis_group[0], axis_group[0]]
        entries.append(draw(st.sampled_from(spellings)))
    return tuple(entries)


@st.composite
def layout_inputs(draw):
    mesh = draw(meshes())
    entries = draw(specs(mesh))
    rank = max(0, len(entries) + draw(st.sampled_from([0, 0, 0, 1, 2, -1])))
    sizes = []
    for dim in range(rank):
        entry = entries[dim] if dim < len(entries) else None
        names = (entry,) if isinstance(entry, str) else entry or ()
        n_shards = prod(mesh.shape.get(name, 1) for name in names)
        is_divisible = draw(st.integers(0, 9)) > 1
        sizes.append(
            draw(st.integers(0, 5)) * n_shards if is_divisible else draw(st.integers(0, 30))
        )
    return tuple(sizes), entries, mesh


def jax_layout(shape, entries, mesh):
    """Return JAX's shard shape and indices, or None if it raises (some exceptions are bugs)."""
    try:
        sharding = NamedSharding(mesh, PartitionSpec(*entries))
        indices = sharding.devices_indices_map(shape)
        return sharding.shard_shape(shape), {
            device.id: tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
            for device, index in indices.items()
        }
    except Exception:
        return None


def our_layout(shape, entries, mesh):
    try:
        result = layout(shape, entries, mesh)
    except LabError as error:
        return error
    indices = {d: tuple((s.start, s.stop) for s in index) for d, index in result.indices().items()}
    return result, (result.shard_shape, indices)


@settings(
    max_examples=int(sys.argv[1]) if len(sys.argv) > 1 else 3000,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(layout_inputs())
def check_layouts_agree(inputs):
    _, entries, mesh = inputs
    theirs, ours = jax_layout(*inputs), our_layout(*inputs)
    if isinstance(ours, LabError):
        OUTCOMES[ours.code] += 1
        if theirs is not None:
            assert ours.code == "layout.spec_too_long", f"we raise, JAX returns {theirs}: {ours}"
            check_device_put_rejects(*inputs)
        return
    OUTCOMES["agree"] += 1
    result, our_answer = ours
    assert theirs is not None, f"JAX raises, we return {our_answer}"
    assert our_answer == theirs
    check_figures(result, theirs[1])
    check_spellings(result, entries, mesh)


def check_device_put_rejects(shape, entries, mesh):
    """Check the one difference: NamedSharding accepts entries past the rank that do not shard.

    JAX rejects such a sharding for an array, and so do we.
    """
    with pytest.raises(ValueError, match="rank"):
        jax.device_put(np.zeros(shape), NamedSharding(mesh, PartitionSpec(*entries)))
    OUTCOMES["device_put rejects it too"] += 1


def check_figures(result, indices):
    """Check the counts against JAX's own map: distinct indices, and devices for each."""
    copies = Counter(indices.values())
    if 0 not in result.shape:  # an empty index does not identify a shard
        assert len(copies) == result.n_shards
        assert set(copies.values()) == {result.n_replicas}
        for device in result.mesh.devices:
            same = {d for d in indices if indices[d] == indices[device]}
            assert set(result.replicas_of(device)) == same
    assert result.bytes_per_device == prod(result.shard_shape) * 4
    assert result.total_bytes == result.bytes_per_device * len(indices)


def check_spellings(result, entries, mesh):
    """Check that PartitionSpec, text and AbstractMesh parse to the same values."""
    assert parse_spec(PartitionSpec(*entries)) == parse_spec(str(result.spec)) == result.spec
    assert parse_mesh(mesh.abstract_mesh).shape == result.mesh.shape
    assert Mesh.from_json(result.mesh.to_json()) == result.mesh
    assert type(result).from_json(result.to_json()) == result


if __name__ == "__main__":
    assert jax.device_count() == N_DEVICES
    check_layouts_agree()
    print(json.dumps(OUTCOMES))
