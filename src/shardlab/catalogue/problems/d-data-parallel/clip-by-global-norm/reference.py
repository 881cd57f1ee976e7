"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def gradient_specs(mesh):
    """Return the spec of each gradient: sharded over both mesh axes, over one, over none."""
    a, b = mesh.axis_names[:2]
    return {"bias": Spec(), "embed": Spec((a, b)), "head": Spec(None, b), "w": Spec(a, b)}


def inputs(draw):
    m, n = draw.mesh.axis_sizes[:2]
    k = draw.scale

    def random_integers(*shape):
        return draw.rng.integers(-4, 5, shape).astype(np.float32)

    grads = {
        # Large, so that counting it once per device changes the norm visibly.
        "bias": draw.rng.integers(5, 9, 2 + k).astype(np.float32),
        "embed": random_integers(m * n * k, 2),
        "head": random_integers(3, n * (1 + k)),
        "w": random_integers(m * k, n * (1 + k)),
    }
    # Every third case is below the limit and must come back unchanged.
    max_norm = 1e6 if draw.number % 3 == 2 else 2.5
    return {"grads": grads, "specs": gradient_specs(draw.mesh), "max_norm": max_norm}


def expected(mesh, grads, specs, max_norm):
    norm = np.sqrt(sum(np.sum(grad.astype(np.float64) ** 2) for grad in grads.values()))
    scale = min(1.0, max_norm / norm)
    return {name: np.float32(grad * scale) for name, grad in grads.items()}, np.float32(norm)


def input_specs(mesh):
    return {"grads": gradient_specs(mesh)}


def output_specs(mesh):
    return gradient_specs(mesh), Spec()
