"""Draw inputs from a seed and compute the expected result in plain NumPy."""

from shardlab import Spec
from shardlab.catalogue.drawing import draw_exact, draw_size


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # At most three rows per device: concatenated instead of added, 64 terms are 64 times as large.
    rows, inner, cols = (n * min(draw_size(draw), 3) for _ in range(3))
    # Multiples of 1/8 up to 12: products and their sums are exact in any order.
    return {
        "a": draw_exact(draw, (rows, inner), limit=12),
        "b": draw_exact(draw, (inner, cols), limit=12),
    }


def expected(mesh, a, b):
    return a @ b


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"a": Spec(None, axis), "b": Spec(axis)}


def output_specs(mesh):
    return Spec(mesh.axis_names[0])
