"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def specs_on(mesh):
    """Return how each gradient lies: over both mesh axes, over one, over none."""
    a, b = mesh.axis_names[:2]
    return {"bias": Spec(), "embed": Spec((a, b)), "head": Spec(None, b), "w": Spec(a, b)}


def inputs(draw):
    m, n = draw.mesh.axis_sizes[:2]
    k = draw.scale

    def whole(*shape):
        return draw.rng.integers(-4, 5, shape).astype(np.float32)

    grads = {
        # Large, so that counting it once per device shows.
        "bias": draw.rng.integers(5, 9, 2 + k).astype(np.float32),
        "embed": whole(m * n * k, 2),
        "head": whole(3, n * (1 + k)),
        "w": whole(m * k, n * (1 + k)),
    }
    # Every third case is below the limit, and must come back as it is.
    max_norm = 1e6 if draw.number % 3 == 2 else 2.5
    return {"grads": grads, "specs": specs_on(draw.mesh), "max_norm": max_norm}


def expected(mesh, grads, specs, max_norm):
    norm = np.sqrt(sum(np.sum(each.astype(np.float64) ** 2) for each in grads.values()))
    scale = min(1.0, max_norm / norm)
    return {name: np.float32(each * scale) for name, each in grads.items()}, np.float32(norm)


def input_specs(mesh):
    return {"grads": specs_on(mesh)}


def output_specs(mesh):
    return specs_on(mesh), Spec()
