"""Draw inputs from a seed and check properties of the result: many masks are correct."""

import numpy as np

from shardlab import Spec
from shardlab.judge.protocol.values import Key


def inputs(draw):
    # With 64 elements per device, two of 512 devices draw the same mask once in 10**7 runs.
    shape = (draw.mesh.axis_sizes[0] * 4 * draw.scale, 8)
    # Never 0, so every 0 in the result is a dropped element.
    x = draw.rng.integers(1, 10, shape).astype(np.float32)
    p = 0.25 if draw.number % 2 else 0.75
    return {"key": Key(int(draw.rng.integers(1 << 31))), "x": x, "p": p}


def expected(mesh, key, x, p):
    return np.zeros_like(x)  # shape and dtype only; properties() checks the values


def output_specs(mesh):
    return input_specs(mesh)["x"]


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def properties(mesh, inputs, result):
    x, p = inputs["x"], inputs["p"]
    mask = result != 0
    expected_values = np.where(mask, x / np.float32(1 - p), 0)
    if not np.allclose(result, expected_values, rtol=1e-5):
        position = tuple(map(int, np.argwhere(~np.isclose(result, expected_values, rtol=1e-5))[0]))
        return [
            f"For x{list(position)} = {x[position]:g} and p = {p}, the result is "
            f"{result[position]:.6g}; expected 0 or {x[position] / (1 - p):.6g}."
        ]
    return _check_drop_rate(mask, p) or _find_repeated_mask(mesh, mask)


def inputs_2(draw):
    arguments = inputs(draw)
    first, second = arguments.pop("key"), Key(int(draw.rng.integers(1 << 31)))
    return {"keys": (first, second, first), **arguments}


def expected_2(mesh, keys, x, p):
    return [expected(mesh, key, x, p) for key in keys]


output_specs_2, input_specs_2 = output_specs, input_specs


def properties_2(mesh, inputs, result):
    for step in result:
        if violations := properties(mesh, inputs, step):
            return violations
    first, second, third = (step != 0 for step in result)
    if np.array_equal(first, second):
        return ["keys[0] and keys[1] are different keys, but give the same mask."]
    if not np.array_equal(first, third):
        return ["keys[0] and keys[2] are the same key, but give different masks."]
    return []


def _check_drop_rate(mask, p):
    """Compare the fraction of dropped elements with p, within six standard deviations."""
    drop_rate = 1 - mask.mean()
    if abs(drop_rate - p) <= 6 * np.sqrt(p * (1 - p) / mask.size):
        return []
    return [f"{drop_rate:.0%} of {mask.size} elements were dropped; p is {p}."]


def _find_repeated_mask(mesh, mask):
    """Report two shards along the first mesh axis that have the same mask."""
    first_shard = {}
    for shard, shard_mask in enumerate(np.split(mask, mesh.axis_sizes[0])):
        earlier_shard = first_shard.setdefault(shard_mask.tobytes(), shard)
        if earlier_shard != shard:
            message = (
                f"Shards {earlier_shard} and {shard} along {mesh.axis_names[0]!r} have the same "
                f"mask of {shard_mask.size} elements."
            )
            return [("same_random_numbers", message)]
    return []
