"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec

LEARNING_RATE, B1, B2, EPS = 0.1, 0.9, 0.999, 1e-8


def inputs(draw):
    rng = draw.rng
    rows, columns = map(int, rng.integers(1, 3 + draw.scale, 2))
    shape = (draw.mesh.axis_sizes[0] * rows, columns)
    grads, m, v = draw.numbers(*shape), draw.numbers(*shape), abs(draw.numbers(*shape))
    # At least 1: the quotient of a large m and a small v would raise the tolerance for all.
    grads += np.copysign(1, grads)
    # Most elements are ordinary. Some have no gradient in this step (m and v still change the
    # parameter), some never had one (0 / eps), and some have one as small as eps. In some v
    # has faded to 0, but m has not: eps alone keeps the step finite, and there is a step.
    kinds = ["ordinary", "paused", "unused", "tiny", "faded"]
    kind = rng.choice(kinds, shape, p=[0.4, 0.15, 0.15, 0.15, 0.15])
    if draw.number in (2, 5):
        kind.flat[rng.integers(kind.size)] = "faded"
    if draw.number == 4:
        kind.flat[rng.integers(kind.size)] = "ordinary"
    grads[kind == "paused"] = 0
    v[kind == "paused"] += 1
    for array in (grads, m, v):
        array[kind == "unused"] = 0
    grads[kind == "tiny"] *= 1e-8
    m[kind == "tiny"] = v[kind == "tiny"] = 0
    grads[kind == "faded"] = v[kind == "faded"] = 0
    m[kind == "faded"] = 1e-8 * (m + np.copysign(1, m))[kind == "faded"]
    if draw.number == 4 and draw.scale > 1:
        # Gradients above 1e4. The quotient of m and the root of v is the same as without.
        is_large = np.isin(kind, ["ordinary", "paused"])
        grads[is_large] *= 2**14
        m[is_large] *= 2**14
        v[is_large] *= 2**28
    # From the first step to one for which the bias corrections are 1, in equal ratios; both ends
    # are certain.
    t = {2: 1, 3: 100_000, 6: 100_000}.get(draw.number, int(10 ** rng.uniform(0, 5)))
    return {"params": draw.numbers(*shape), "grads": grads, "m": m, "v": v, "t": t}


def accepts(mesh, params, grads, m, v, t):
    return t > 0 and (v >= 0).all()


def expected(mesh, params, grads, m, v, t):
    p, g, m, v = (array.astype(np.float64) for array in (params, grads, m, v))
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g**2
    p = p - LEARNING_RATE * (m / (1 - B1**t)) / (np.sqrt(v / (1 - B2**t)) + EPS)
    return p.astype(np.float32), m.astype(np.float32), v.astype(np.float32)


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"m": Spec(axis), "v": Spec(axis)}


def output_specs(mesh):
    axis = mesh.axis_names[0]
    return Spec(), Spec(axis), Spec(axis)


def budget(mesh, params, grads, m, v, t):
    n = mesh.axis_sizes[0]
    return {"wire_bytes": params.nbytes * (n - 1) // n}
