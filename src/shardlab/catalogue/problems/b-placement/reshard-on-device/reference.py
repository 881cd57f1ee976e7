"""Draw inputs from a seed and compute the expected result in plain NumPy."""

from shardlab import Spec
from shardlab.catalogue.drawing import draw_distinct_shards, draw_size

_SECOND_AXIS_CASE, _TWO_AXES_CASE = 4, 5  # meshes with two axes


def inputs(draw):
    n = draw.mesh.n_devices
    # Divisible by the number of devices, so that every spec fits.
    shape = (n * draw_size(draw), n * draw_size(draw))
    specs = _all_specs(draw.mesh)
    if draw.number == _SECOND_AXIS_CASE:
        # The second mesh axis alone shards a dimension.
        specs = [s for s in specs if (draw.mesh.axis_names[1],) in s.axes]
    if draw.number == _TWO_AXES_CASE:
        # At least one target moves data, needs no all-gather, and is not simply the columns.
        first = draw.mesh.axis_names[0]
        specs = [s for s in specs if first in s.mesh_axes and len(s.mesh_axes) == 2]
    return {"x": draw_distinct_shards(draw, shape), "spec": specs[draw.rng.integers(0, len(specs))]}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0], None)}


def expected(mesh, x, spec):
    return x


def output_specs(mesh, x, spec):
    return spec


def budget(mesh, x, spec):
    # Without the first mesh axis, every device needs rows of all others. Any other target needs
    # only slices of them.
    needs_all_rows = mesh.axis_names[0] not in spec.mesh_axes
    return {"all_gather": int(needs_all_rows), "all_to_all": 1, "ppermute": 1}


def _all_specs(mesh):
    first, *rest = mesh.axis_names
    specs = [Spec(), Spec(first, None), Spec(None, first)]
    for second in rest:
        pairs = ((first, second), (second, first))
        specs += [Spec(second), Spec(None, second)]
        specs += [Spec(*pair) for pair in pairs]
        specs += [Spec(pair) for pair in pairs]
        specs += [Spec(None, pair) for pair in pairs]
    return specs
