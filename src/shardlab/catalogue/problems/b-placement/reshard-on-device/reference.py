"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    n = draw.mesh.n_devices
    rows, columns = n * draw.scale, n * (draw.scale + 1)
    x = draw.rng.permutation(np.arange(rows * columns, dtype=np.float32)).reshape(rows, columns)
    return {"x": x, "spec": output_specs(draw.mesh)}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0], None)}


def expected(mesh, x, spec):
    return x


def output_specs(mesh):
    """Return the spec that is asked for: another one on every kind of mesh."""
    a, *others = mesh.axis_names
    if mesh.axis_sizes == (8,):
        return Spec()
    if not others:
        return Spec(None, a)
    (b,) = others
    return Spec(b, a) if mesh.axis_sizes[0] == 2 else Spec(None, (a, b))


def budget(mesh, x, spec):
    # Only a whole copy needs a gather. Everything else is an exchange of what is missing.
    return {"all_gather": int(spec == Spec()), "all_to_all": 1, "ppermute": 1}
