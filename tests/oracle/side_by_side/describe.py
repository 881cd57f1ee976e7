"""Describes the results of a program as plain data that two processes can compare."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import jax
import numpy as np


def describe(value: Any) -> Any:
    """Return `value` as JSON: arrays with their numbers, sharding and every device's shard."""
    if isinstance(value, jax.Array):
        return _describe_array(value)
    if isinstance(value, jax.sharding.Sharding):
        return _describe_sharding(value)
    if isinstance(value, jax.Device):
        return f"device {value.id}"
    if isinstance(value, jax.sharding.Mesh):
        return _describe_mesh(value)
    if isinstance(value, dict):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    if isinstance(value, np.ndarray):
        return {"numpy": _plain_numbers(value), "dtype": str(value.dtype)}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.number)):
        return _plain_number(float(value))
    return _plain_text(str(value))


def outcome(program: Any) -> Any:
    """Run a program and describe its result, or its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return {"result": describe(program())}
        except Exception as error:
            return {"error": type(error).__name__, "message": _plain_text(str(error))}


def differences(real: Any, simulated: Any, path: str = "") -> list[str]:
    """Return where two descriptions differ; numbers may differ by rounding."""
    if isinstance(real, dict) and isinstance(simulated, dict) and real.keys() == simulated.keys():
        return [d for k in real for d in differences(real[k], simulated[k], f"{path}.{k}")]
    if isinstance(real, list) and isinstance(simulated, list) and len(real) == len(simulated):
        pairs = enumerate(zip(real, simulated, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}[{i}]")]
    if isinstance(real, float) and isinstance(simulated, float):
        # Sums over eight devices and over one array round differently.
        same = math.isclose(real, simulated, rel_tol=1e-4, abs_tol=1e-6)
        return [] if same or real != real != simulated else [f"{path}: {real} != {simulated}"]
    return [] if real == simulated else [f"{path}: real {real!r}, simulated {simulated!r}"]


def _describe_array(array: jax.Array) -> dict[str, Any]:
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    numbers = jax.random.key_data(array) if is_key else array
    return {
        "value": _plain_numbers(np.asarray(numbers)),
        "type": str(array.dtype),
        "weak_type": bool(array.aval.weak_type),
        "shape": list(array.shape),
        "sharding": _describe_sharding(array.sharding),
        "committed": bool(array.committed),
        "shards": [_describe_shard(shard, is_key) for shard in array.addressable_shards],
    }


def _describe_shard(shard: Any, is_key: bool) -> list[Any]:
    data = jax.random.key_data(shard.data) if is_key else shard.data
    index = [[part.start, part.stop] for part in shard.index]
    return [shard.device.id, shard.replica_id, index, _plain_numbers(np.asarray(data))]


def _describe_sharding(sharding: Any) -> Any:
    if isinstance(sharding, jax.sharding.NamedSharding):
        return [_describe_mesh(sharding.mesh), str(sharding.spec), sharding.memory_kind]
    devices = sorted(d.id for d in sharding.device_set)
    return [type(sharding).__name__, devices, sharding.memory_kind]


def _describe_mesh(mesh: Any) -> Any:
    names = dict(mesh.shape)
    ids = [d.id for d in mesh.devices.flat] if hasattr(mesh, "devices") else "abstract"
    return [names, [str(t) for t in mesh.axis_types], ids]


def _plain_numbers(array: Any) -> Any:
    if array.dtype.kind in "fc" or array.dtype.name == "bfloat16":
        kind = np.complex128 if array.dtype.kind == "c" else np.float64
        return [_plain_number(x) for x in np.asarray(array, kind).ravel().tolist()]
    return array.tolist()


def _plain_number(number: Any) -> Any:
    return str(number) if isinstance(number, complex) else float(number)


def _plain_text(text: str) -> str:
    """Drop what differs between two processes: addresses."""
    return re.sub(r"0x[0-9a-f]+", "0x", text)
