"""doubled(x, mesh): twice each row, rows sharded over the first mesh axis."""

import numpy as np

from shardlab.sharding.spec import Spec


def inputs(draw):
    rows, columns = draw.mesh.axis_sizes[0] * (1 + draw.scale), 3
    return {"x": np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) + 1}


def expected(mesh, x):
    return 2 * x


def output_specs(mesh):
    return Spec(mesh.axis_names[0])
