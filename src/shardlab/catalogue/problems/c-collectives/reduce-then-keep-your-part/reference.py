"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_exact, draw_size


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # On 64 devices at most three: concatenated instead of added, 64 terms are 64 times as large.
    sizes = [draw_size(draw) for _ in range(3)]
    rows, inner, cols = (n * (size if n < 64 else min(size, 3)) for size in sizes)
    if draw.number == 0:  # one device
        inner += 64
    if draw.number == 1:
        rows = inner = cols
    # Multiples of 1/8 up to 36: more bits than bfloat16, and products and sums are exact.
    a = draw_exact(draw, (rows, inner), limit=36, fraction=8)
    b = draw_exact(draw, (inner, cols), limit=36, fraction=8)
    if draw.scale > 1:  # and as exact times a power of two
        a = np.ldexp(a, 20 if draw.number == 2 else 0)
        b = np.ldexp(b, 20 if draw.number == 3 else 0)
    return {"a": a, "b": b}


def expected(mesh, a, b):
    return a @ b


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"a": Spec(None, axis), "b": Spec(axis)}


def output_specs(mesh):
    return Spec(mesh.axis_names[0])
