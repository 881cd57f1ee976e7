"""dropped(key, x, mesh): x with about half of its elements set to zero, differently everywhere."""

import numpy as np

from shardlab.judge.protocol.values import Key


def inputs(draw):
    n = draw.mesh.axis_sizes[0] * 16
    return {"key": Key(int(draw.rng.integers(1000))), "x": np.arange(1, n + 1, dtype=np.float32)}


def expected(mesh, key, x):
    return x


def properties(mesh, inputs, result):
    n = mesh.axis_sizes[0]
    masks = [shard == 0 for shard in np.split(result, n)]
    violations = []
    if not np.array_equal(result[result != 0], inputs["x"][result != 0]):
        violations.append("Elements that are not dropped are changed.")
    if n > 1 and all(np.array_equal(mask, masks[0]) for mask in masks):
        violations.append(f"All {n} shards drop the same elements.")
    return violations
