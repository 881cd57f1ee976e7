"""Compare `shardlab.layout` with `jax.sharding.NamedSharding` on real host devices.

Run by test_namedsharding.py in a process of its own: the number of host devices must be set before
JAX is first used, and the other tests need a JAX with one. Prints how many examples were compared.
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
SEEN: Counter[str] = Counter()


@st.composite
def meshes(draw):
    """A mesh of up to four axes over some of the host devices, in any order."""
    sizes: list[int] = []
    for size in draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), max_size=4)):
        if prod(sizes) * size <= N_DEVICES:
            sizes.append(size)
    devices = list(jax.devices())
    if draw(st.booleans()):
        devices = draw(st.permutations(devices))
    chosen = np.array(devices[: prod(sizes)], dtype=object).reshape(sizes)
    return jax.sharding.Mesh(chosen, NAMES[: len(sizes)])


@st.composite
def specs(draw, mesh):
    """Mostly good specs; sometimes a name twice, an unknown name, or an entry too many."""
    names = list(draw(st.permutations(mesh.axis_names))) if mesh.axis_names else []
    if draw(st.integers(0, 9)) == 0:
        names.append(draw(st.sampled_from(NAMES)))
    entries = []
    for _ in range(draw(st.integers(0, 4))):
        n = min(draw(st.sampled_from([0, 0, 1, 1, 1, 2, 3])), len(names))
        taken = tuple(names.pop() for _ in range(n))
        spelled = [taken]
        if n == 0:
            spelled += [None]
        if n == 1:
            spelled += [taken[0], taken[0]]
        entries.append(draw(st.sampled_from(spelled)))
    return tuple(entries)


@st.composite
def questions(draw):
    mesh = draw(meshes())
    entries = draw(specs(mesh))
    rank = max(0, len(entries) + draw(st.sampled_from([0, 0, 0, 1, 2, -1])))
    sizes = []
    for at in range(rank):
        entry = entries[at] if at < len(entries) else None
        names = (entry,) if isinstance(entry, str) else entry or ()
        n_parts = prod(mesh.shape.get(name, 1) for name in names)
        fits = draw(st.integers(0, 9)) > 1
        sizes.append(draw(st.integers(0, 5)) * n_parts if fits else draw(st.integers(0, 30)))
    return tuple(sizes), entries, mesh


def ask_jax(shape, entries, mesh):
    """JAX's answer, or None where it refuses (with any exception: some are not meant)."""
    try:
        sharding = NamedSharding(mesh, PartitionSpec(*entries))
        indices = sharding.devices_indices_map(shape)
        return sharding.shard_shape(shape), {
            device.id: tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
            for device, index in indices.items()
        }
    except Exception:
        return None


def ask_us(shape, entries, mesh):
    try:
        one = layout(shape, entries, mesh)
    except LabError as error:
        return error
    indices = {d: tuple((s.start, s.stop) for s in index) for d, index in one.indices().items()}
    return one, (one.shard_shape, indices)


@settings(
    max_examples=int(sys.argv[1]) if len(sys.argv) > 1 else 3000,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(questions())
def layouts_agree(question):
    _, entries, mesh = question
    theirs, ours = ask_jax(*question), ask_us(*question)
    if isinstance(ours, LabError):
        SEEN[ours.code] += 1
        if theirs is not None:
            assert ours.code == "layout.spec_too_long", f"we refuse, JAX answers {theirs}: {ours}"
            device_put_refuses(*question)
        return
    SEEN["agree"] += 1
    one, answer = ours
    assert theirs is not None, f"JAX refuses, we answer {answer}"
    assert answer == theirs
    check_figures(one, theirs[1])
    check_spellings(one, entries, mesh)


def device_put_refuses(shape, entries, mesh):
    """The one difference: NamedSharding lets entries that cut nothing run past the rank.

    JAX does not let such a sharding near an array, and neither do we.
    """
    with pytest.raises(ValueError, match="rank"):
        jax.device_put(np.zeros(shape), NamedSharding(mesh, PartitionSpec(*entries)))
    SEEN["device_put refuses too"] += 1


def check_figures(one, indices):
    """The counts follow from JAX's own map: distinct slices, and devices for each."""
    copies = Counter(indices.values())
    if 0 not in one.shape:  # an empty slice says nothing about which part it is
        assert len(copies) == one.n_shards
        assert set(copies.values()) == {one.n_replicas}
        for device in one.mesh.devices:
            same = {d for d in indices if indices[d] == indices[device]}
            assert set(one.replicas_of(device)) == same
    assert one.bytes_per_device == prod(one.shard_shape) * 4
    assert one.total_bytes == one.bytes_per_device * len(indices)


def check_spellings(one, entries, mesh):
    """PartitionSpec, text and an AbstractMesh give the layout that the tuple and Mesh gave."""
    assert parse_spec(PartitionSpec(*entries)) == parse_spec(str(one.spec)) == one.spec
    assert parse_mesh(mesh.abstract_mesh).shape == one.mesh.shape
    assert Mesh.from_json(one.mesh.to_json()) == one.mesh
    assert type(one).from_json(one.to_json()) == one


if __name__ == "__main__":
    assert jax.device_count() == N_DEVICES
    layouts_agree()
    print(json.dumps(SEEN))
