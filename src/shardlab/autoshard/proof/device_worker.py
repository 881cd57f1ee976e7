"""Runs an exported program on forced host devices and compares it with one device.

Run as `python -P -m shardlab.autoshard.proof.device_worker FOLDER`. The number of host devices is
fixed when JAX starts its backend, so this needs a process of its own; a program that blocks or
crashes ends only that. The folder has the files that `device_messages.py` names.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from shardlab._jax.compile_worker import exit_with_parent
from shardlab.analysis.run_arguments import error_summary, fill_arguments
from shardlab.autoshard.proof.device_messages import (
    ONE_DEVICE_FILE,
    SHARDED_FILE,
    DeviceRunRequest,
    DeviceRunResult,
    OutputComparison,
)
from shardlab.checks.tolerance import compare_arrays, result_tolerance
from shardlab.simulator.run_records import OutputLeaf, OutputLineage

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """How arguments are drawn that have only a shape."""

    text: str
    largest_int: int
    is_positive: bool


def run_worker(folder: Path) -> None:
    threading.Thread(target=exit_with_parent, args=[folder], daemon=True).start()
    request = DeviceRunRequest.read(folder)
    jax.config.update("jax_num_cpu_devices", math.prod(size for _, size in request.mesh))
    jax.config.update("jax_enable_x64", request.enable_x64)
    _compare_runs(folder, request).write(folder)
    sys.stdout.flush()
    # An orderly shutdown of the client takes time and gains nothing.
    os._exit(0)


def _compare_runs(folder: Path, request: DeviceRunRequest) -> DeviceRunResult:
    one_device = _read_export(folder / ONE_DEVICE_FILE)
    sharded = _read_export(folder / SHARDED_FILE)
    try:
        evaluate = jax.jit(one_device.call)
        inputs_text, arguments, expected = _choose_inputs(folder, request, one_device, evaluate)
        eps = max(request.eps, default=0.0)
        perturbed = [
            [_plain(out) for out in evaluate(*[_perturb(a, eps, seed) for a in arguments])]
            for seed in (7, 8)
        ]
    except Exception as error:
        return DeviceRunResult(failed_on="one device", failure=error_summary(error))
    try:
        outputs = _run_sharded(sharded, arguments, request)
    except Exception as error:
        return DeviceRunResult(
            inputs=inputs_text, failed_on="the mesh", failure=error_summary(error)
        )
    comparisons = []
    for index, (array, value) in enumerate(zip(outputs, expected, strict=True)):
        noise = sum((_distance(run[index], value) for run in perturbed), 0.0)
        leaf = OutputLeaf(
            value=value,
            dtype=str(array.dtype),
            noise=np.nan_to_num(noise),
            lineage=OutputLineage(eps=request.eps[index]),
        )
        comparisons.append(_compare_output(array, leaf))
    return DeviceRunResult(inputs=inputs_text, outputs=tuple(comparisons))


def _read_export(path: Path) -> Any:
    return export.deserialize(bytearray(path.read_bytes()))


def _run_sharded(exported: Any, arguments: Sequence[Any], request: DeviceRunRequest) -> list[Any]:
    names, sizes = zip(*request.mesh, strict=True)
    types = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.make_mesh(sizes, names, axis_types=types)
    shardings = exported.in_shardings_jax(mesh)
    placed = [jax.device_put(*pair) for pair in zip(arguments, shardings, strict=True)]
    outputs = jax.jit(exported.call)(*placed)
    return list(jax.block_until_ready(outputs))


# ------------------------------------------------------------------------------------- inputs


def _choose_inputs(
    folder: Path, request: DeviceRunRequest, exported: Any, evaluate: Any
) -> tuple[str, list[Any], list[Array]]:
    """Return arguments for which most outputs are finite, with these outputs.

    NaN equals NaN in the comparison, so an output that is NaN proves nothing. Two things cause it:
    a variance or a second moment that is drawn negative, and an index out of range, for which
    `jnp.take` returns NaN.
    """
    best: tuple[float, str, list[Any], list[Array]] | None = None
    for recipe in _recipes(exported.in_avals):
        arguments = list(_draw_arguments(folder, request, exported.in_avals, recipe))
        outputs = [_plain(out) for out in evaluate(*arguments)]
        share = _finite_share(outputs)
        if best is None or share > best[0]:
            best = share, recipe.text, arguments, outputs
        if share == 1.0:
            break
    assert best is not None
    return best[1:]


def _recipes(avals: Sequence[Any]) -> Iterator[_Recipe]:
    # Indices must reach every shard of the dimension that they select from, a vocabulary for
    # example. Which dimension that is is unknown; the largest one is tried first.
    dims = sorted({size for aval in avals for size in aval.shape if size > 1}, reverse=True)
    largest = [dims[0], dims[len(dims) // 2], min(5, dims[-1])] if dims else [5]
    for bound in dict.fromkeys(largest):
        for is_positive in (False, True):
            sign = "positive" if is_positive else "normal"
            yield _Recipe(f"{sign} floats, integers below {bound}", bound, is_positive)


def _draw_arguments(
    folder: Path, request: DeviceRunRequest, avals: Sequence[Any], recipe: _Recipe
) -> Iterator[Any]:
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    for seed, (struct, file) in enumerate(zip(structs, request.argument_files, strict=True)):
        if file:
            content = np.frombuffer((folder / file).read_bytes(), struct.dtype)
            yield jnp.asarray(content.reshape(struct.shape))
            continue
        # fill_arguments seeds by position: the position here keeps equal shapes apart.
        drawn = fill_arguments([None] * seed + [struct])[-1]
        yield _adapt(drawn, recipe, seed)


def _adapt(drawn: Any, recipe: _Recipe, seed: int) -> Any:
    if jnp.issubdtype(drawn.dtype, jnp.integer) and drawn.ndim:
        high = min(recipe.largest_int, int(jnp.iinfo(drawn.dtype).max))
        return jnp.asarray(np.random.default_rng(seed).integers(0, high, drawn.shape), drawn.dtype)
    if not jnp.issubdtype(drawn.dtype, jnp.floating):
        return drawn
    # As layers are initialised, so that a deep model neither overflows nor saturates a softmax.
    scale = 1 / math.sqrt(drawn.shape[-2]) if drawn.ndim > 1 else 1.0
    scaled = drawn * jnp.asarray(scale, drawn.dtype)
    return jnp.abs(scaled) if recipe.is_positive else scaled


def _perturb(array: Any, eps: float, seed: int) -> Any:
    """Return the argument changed by about one rounding, with random signs."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], array.shape)
    return (array * (1 + eps * signs)).astype(array.dtype)


# --------------------------------------------------------------------------------- comparison


def _compare_output(array: Any, expected: OutputLeaf) -> OutputComparison:
    """Compare every shard on every device: copies that should be equal may differ."""
    atol = result_tolerance(expected)
    agrees, worst, worst_device = True, 0.0, 0
    for device, (index, shard) in enumerate(_shards(array)):
        part = np.asarray(expected.value[index])
        if not bool(compare_arrays(shard, part, atol).all()):
            agrees = False
        error = float(np.max(np.nan_to_num(_distance(shard, part)), initial=0.0))
        if error > worst:
            worst, worst_device = error, device
    n_finite = int(np.isfinite(_widen(expected.value)).sum())
    return OutputComparison(
        agrees=agrees,
        error=worst,
        tolerance=atol,
        n_elements=n_finite,
        n_not_finite=expected.value.size - n_finite,
        device=worst_device,
    )


def _shards(array: Any) -> Iterator[tuple[Any, Array]]:
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    for shard in array.addressable_shards:
        data = jax.random.key_data(shard.data) if is_key else shard.data
        yield shard.index, np.asarray(data)


def _plain(value: Any) -> Array:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _widen(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _distance(actual: Array, expected: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.abs(_widen(actual) - _widen(expected)))


def _finite_share(outputs: Sequence[Array]) -> float:
    n_elements = sum(output.size for output in outputs)
    n_finite = sum(int(np.isfinite(_widen(output)).sum()) for output in outputs)
    return n_finite / n_elements if n_elements else 1.0


if __name__ == "__main__":
    run_worker(Path(sys.argv[1]))
