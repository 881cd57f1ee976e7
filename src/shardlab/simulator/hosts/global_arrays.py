"""Arrays over the devices of several hosts: what a host knows of them, and how the rest comes.

A host computes every program on full arrays, as simulated mode does, so a result is known to all
hosts that ran the program. An array that a host made itself has only the shards of that host. When
a program uses it, the hosts exchange the missing shards first; this is also where they wait for
each other, and where they compare which program they run.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab._jax import device_hooks
from shardlab.errors import HostsDiffer
from shardlab.simulator.hosts.coordinator import hosts_text
from shardlab.simulator.hosts.host_link import program_line
from shardlab.simulator.hosts.world import host_link, this_host
from shardlab.simulator.interpreter.device_context import DeviceOwners
from shardlab.simulator.virtual_devices.array_labels import (
    attach_sharding,
    attached_sharding,
    is_local_only,
)

_COMPLETE = "_shardlab_complete"  # of an array with local shards only: the array with all of them
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_digests: weakref.WeakKeyDictionary[Any, dict[Any, str]] = weakref.WeakKeyDictionary()
_file_numbers = itertools.count()
# Files of this host by group of hosts: read by all of them once they meet again.
_written: dict[tuple[int, ...], list[Path]] = {}

# What a host tells the others about an argument.
_KNOWN, _LOCAL, _SAME = "known", "local", "same "


def is_global(sharding: Any) -> bool:
    """Return whether a sharding has devices of another host."""
    return sharding is not None and not sharding.is_fully_addressable


def meet_for_program(name: str, jaxpr: Any, arrays: Sequence[Any], placement: Any) -> list[Any]:
    """Wait for the other hosts of a program, and return its arguments with all shards."""
    avals = [str(aval) for aval in jaxpr.in_avals]
    operation = f"{_readable(name)}({_shortened(avals)})"
    names = _argument_names(jaxpr, len(arrays))
    return exchange_arguments(
        operation, _program_digest(jaxpr, placement), arrays, placement.ins, placement.hosts, names
    )


def exchange_arguments(
    operation: str,
    digest: str,
    arrays: Sequence[Any],
    shardings: Sequence[Any],
    hosts: tuple[int, ...],
    names: Sequence[str],
) -> list[Any]:
    """Meet the other hosts for an operation, and return its arrays with all shards."""
    states = [_state(array, sharding) for array, sharding in zip(arrays, shardings, strict=True)]
    channel = f"hosts {','.join(map(str, hosts))}"
    replies = host_link().meet(
        channel, hosts, operation, agreement=digest, value=json.dumps(states)
    )
    _remove_files(hosts)
    of_all = [json.loads(reply) for reply in replies]
    missing = []
    for index, states_of_one in enumerate(zip(*of_all, strict=True)):
        _check_same(operation, names[index], dict(zip(hosts, states_of_one, strict=True)))
        if _LOCAL in states_of_one:
            missing.append(index)
    complete = [_complete_array(array) for array in arrays]
    if missing:
        merged = _exchange_shards(operation, channel, hosts, missing, arrays, shardings, names)
        for index, array in merged.items():
            complete[index] = array
    return complete


def delete_donated(array: Any) -> None:
    """Delete an array whose complete form was donated: its buffer is another one."""
    target = getattr(array, "_base_array", array)
    if getattr(target, "__dict__", {}).get(_COMPLETE) is not None:
        array.delete()


def owners_of_devices(name: str, placement: Any) -> DeviceOwners:
    """Return which host has which device of a program, and how they share results of callbacks."""
    hosts = placement.hosts

    def share(arrays: Sequence[Any]) -> dict[int, list[Any]]:
        value = json.dumps([base64.b64encode(array.tobytes()).decode() for array in arrays])
        operation = f"a callback in {_readable(name)}"
        replies = host_link().meet(f"callbacks of {name}", hosts, operation, value=value)
        return {
            host: [
                np.frombuffer(base64.b64decode(data), array.dtype).reshape(array.shape)
                for data, array in zip(json.loads(reply), arrays, strict=True)
            ]
            for host, reply in zip(hosts, replies, strict=True)
        }

    return DeviceOwners(
        hosts=tuple(device.process_index for device in placement.devices),
        this_host=this_host(),
        share=share,
    )


# ------------------------------------------------------------------------------- what differs


def _state(array: Any, sharding: Any) -> str:
    target = getattr(array, "_base_array", array)
    label = attached_sharding(target)
    if is_global(label):
        if not is_local_only(target) or _COMPLETE in target.__dict__:
            return _KNOWN
        return _SAME + _digest(target) if label.is_fully_replicated else _LOCAL
    # An array of this host alone, or a number: JAX puts the host's own value on its devices.
    return _SAME + _digest(target) if sharding.is_fully_replicated else _LOCAL


def _digest(value: Any) -> str:
    with device_hooks.use_real_jax():
        data = np.ascontiguousarray(np.asarray(value))
    return _hash(data.reshape(-1).view(np.uint8).data)


def _hash(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _check_same(operation: str, name: str, states: dict[int, str]) -> None:
    digests = {host: state for host, state in states.items() if state.startswith(_SAME)}
    if len(set(digests.values())) > 1:
        host_link().fail(_replicas_differ(operation, name, _groups(digests)))


def _groups(digests: dict[int, str]) -> str:
    """Return which hosts have the same value.

    >>> _groups({0: "a", 1: "b", 2: "a"})
    'equal on hosts 0 and 2; different on host 1'
    """
    by_digest: dict[str, list[int]] = {}
    for host, digest in digests.items():
        by_digest.setdefault(digest, []).append(host)
    texts = [f"equal on {hosts_text(hosts)}" for hosts in by_digest.values() if len(hosts) > 1]
    alone = [hosts[0] for hosts in by_digest.values() if len(hosts) == 1]
    return "; ".join([*texts, *([f"different on {hosts_text(alone)}"] if alone else [])])


def _replicas_differ(operation: str, name: str, equal: str) -> HostsDiffer:
    return HostsDiffer(
        f"{name} is replicated over the hosts, but they have different values. JAX does not "
        "check this: on real hosts the replicas differ from here on.",
        where=f"{operation} at {program_line()}; {equal}",
        fix="give every host the same value: the same seed, or "
        "multihost_utils.broadcast_one_to_all(value).",
    )


def _program_digest(jaxpr: Any, placement: Any) -> str:
    """Return a digest of a program and its shardings that is equal on all hosts."""
    by_placement = _digests.setdefault(jaxpr, {})
    if placement not in by_placement:
        inner, consts = _jax.open_jaxpr(jaxpr)
        # Addresses of functions differ between processes.
        text = [_ADDRESS.sub("", str(inner))]
        text += [_digest(const) for const in consts if not is_global(attached_sharding(const))]
        text += [repr(s) for s in (*placement.ins, *placement.outs)]
        by_placement[placement] = _hash("\n".join(text).encode())
    return by_placement[placement]


def _readable(name: str) -> str:
    """Return a program's name as in a traceback.

    >>> _readable("jit_step")
    'jit(step)'
    """
    return f"jit({name[4:]})" if name.startswith("jit_") else name


def _shortened(texts: list[str]) -> str:
    return ", ".join(texts if len(texts) <= 3 else [*texts[:3], "..."])


def _argument_names(jaxpr: Any, count: int) -> list[str]:
    names = _jax.argument_names(jaxpr)
    if len(names) != count:
        return [f"Argument {index}" for index in range(count)]
    return [f"Argument {name!r}" for name in names]


# ---------------------------------------------------------------------------------- exchange


def _complete_array(array: Any) -> Any:
    target = getattr(array, "_base_array", array)
    complete = getattr(target, "__dict__", {}).get(_COMPLETE)
    return array if complete is None else _as_keys(complete, array)


def _as_keys(data: Any, like: Any) -> Any:
    """Return the array behind random keys as keys, if `like` is one."""
    if not hasattr(like, "_base_array"):
        return data
    with device_hooks.use_real_jax():
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))


def _exchange_shards(
    operation: str,
    channel: str,
    hosts: tuple[int, ...],
    missing: list[int],
    arrays: Sequence[Any],
    shardings: Sequence[Any],
    names: Sequence[str],
) -> dict[int, Any]:
    """Write the shards of this host, read those of the others, and return the full arrays."""
    values, labels = {}, {}
    for index in missing:
        array = arrays[index]
        target = getattr(array, "_base_array", array)
        label = attached_sharding(target)
        if not is_global(label):
            label = shardings[index]
            if target is not array:
                label = device_hooks.physical_sharding(array.aval, label)
        labels[index] = label
        with device_hooks.use_real_jax():
            values[index] = np.array(target)
    path = _write_shards(values, labels)
    _written.setdefault(hosts, []).append(path)
    paths = host_link().meet(channel, hosts, operation, agreement="shards", value=str(path))
    owners: dict[tuple[int, str], tuple[int, bytes]] = {}
    for host, other in zip(hosts, paths, strict=True):
        for index, bounds, data in _read_shards(Path(other)):
            first, replica = owners.setdefault((index, str(bounds)), (host, data))
            if replica != data:
                groups = f"different on {hosts_text([first, host])}"
                host_link().fail(_replicas_differ(operation, f"A shard of {names[index]}", groups))
            region = tuple(slice(start, stop) for start, stop in bounds)
            shape = values[index][region].shape
            values[index][region] = np.frombuffer(data, values[index].dtype).reshape(shape)
    return {i: _labelled(values[i], labels[i], arrays[i]) for i in missing}


def _labelled(value: Any, label: Any, array: Any) -> Any:
    with device_hooks.use_real_jax():
        complete = attach_sharding(jax.numpy.asarray(value), label)
    target = getattr(array, "_base_array", array)
    if is_global(attached_sharding(target)):
        target.__dict__[_COMPLETE] = complete
    return _as_keys(complete, array)


def _write_shards(values: dict[int, Any], labels: dict[int, Any]) -> Path:
    """Write each distinct local shard: a line of JSON that describes them all, then their bytes."""
    head, parts = [], []
    for index, value in values.items():
        regions = labels[index].addressable_devices_indices_map(value.shape).values()
        for bounds in dict.fromkeys(_bounds(region, value.shape) for region in regions):
            data = value[tuple(slice(start, stop) for start, stop in bounds)].tobytes()
            head.append((index, bounds, len(data)))
            parts.append(data)
    path = host_link().folder / f"{this_host()}-{next(_file_numbers)}"
    with path.open("wb") as file:
        file.write(json.dumps(head).encode() + b"\n")
        file.writelines(parts)
    return path


def _read_shards(path: Path) -> list[tuple[int, list[list[int]], bytes]]:
    with path.open("rb") as file:
        head = json.loads(file.readline())
        return [(index, bounds, file.read(size)) for index, bounds, size in head]


def _bounds(region: Any, shape: Any) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(size)[:2] for part, size in zip(region, shape, strict=True))


def _remove_files(hosts: tuple[int, ...]) -> None:
    # All hosts of the group have met again, so they have read what was written for them.
    for path in _written.pop(hosts, ()):
        path.unlink(missing_ok=True)
