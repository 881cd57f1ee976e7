"""Inputs from a seed, and what must hold of the answer: many masks are right."""

import numpy as np
from shardlab.layouts.spec import Spec

from shardlab.judge.protocol.values import Key


def inputs(draw):
    # 64 elements on a device: two of 512 devices draw the same mask by chance once in 10**7 runs.
    shape = (draw.mesh.axis_sizes[0] * 4 * draw.scale, 8)
    # Never 0, so that every 0 of the result has been dropped.
    x = draw.rng.integers(1, 10, shape).astype(np.float32)
    p = 0.25 if draw.number % 2 else 0.75
    return {"key": Key(int(draw.rng.integers(1 << 31))), "x": x, "p": p}


def expected(mesh, key, x, p):
    return np.zeros_like(x)  # shape and dtype; the rest is in properties


def output_specs(mesh):
    return input_specs(mesh)["x"]


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def properties(mesh, inputs, result):
    x, p = inputs["x"], inputs["p"]
    kept = result != 0
    want = np.where(kept, x / np.float32(1 - p), 0)
    if not np.allclose(result, want, rtol=1e-5):
        at = tuple(map(int, np.argwhere(~np.isclose(result, want, rtol=1e-5))[0]))
        return [
            f"Where x{list(at)} is {x[at]:g} and p is {p}, the result is {result[at]:.6g}; right "
            f"are 0 and {x[at] / (1 - p):.6g}."
        ]
    return _rate(kept, p) or _repeated(mesh, kept)


def inputs_2(draw):
    one = inputs(draw)
    first, other = one.pop("key"), Key(int(draw.rng.integers(1 << 31)))
    return {"keys": (first, other, first), **one}


def expected_2(mesh, keys, x, p):
    return [expected(mesh, key, x, p) for key in keys]


output_specs_2, input_specs_2 = output_specs, input_specs


def properties_2(mesh, inputs, result):
    for each in result:
        if found := properties(mesh, inputs, each):
            return found
    first, other, again = (each != 0 for each in result)
    if np.array_equal(first, other):
        return ["keys[0] and keys[1] are different keys, and give the same mask."]
    if not np.array_equal(first, again):
        return ["keys[0] and keys[2] are the same key, and give different masks."]
    return []


def _rate(kept, p):
    """Compare how many elements were dropped with p; six standard deviations are allowed."""
    dropped = 1 - kept.mean()
    if abs(dropped - p) <= 6 * np.sqrt(p * (1 - p) / kept.size):
        return []
    return [f"{dropped:.0%} of {kept.size} elements were dropped; p is {p}."]


def _repeated(mesh, kept):
    """Ask whether two pieces have the same mask."""
    seen = {}
    for place, mask in enumerate(np.split(kept, mesh.axis_sizes[0])):
        first = seen.setdefault(mask.tobytes(), place)
        if first != place:
            told = (
                f"Pieces {first} and {place} along {mesh.axis_names[0]!r} have the same "
                f"{mask.size} elements dropped and kept."
            )
            return [("same_random_numbers", told)]
    return []
