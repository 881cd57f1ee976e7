"""How collectives are shown: the hue of their mesh axes, a letter for plain text, the HLO name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from shardlab.collectives.call import CollectiveCall
from shardlab.render.palette import Color, axis_shade, slate_shade
from shardlab.render.picture import AxisKey, Paint, mesh_paint
from shardlab.sharding.mesh import MeshSizes

# The names in HLO text and in profilers.
HLO_NAMES = {
    "psum": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "psum_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
    "pbroadcast": "collective-broadcast",
}


# The letter of an operation on charts, where color is its mesh axis.
_LETTERS = {
    "psum": "P",
    "all_gather": "G",
    "psum_scatter": "S",
    "all_to_all": "A",
    "ppermute": "E",
    "pmax": "M",
    "pmin": "N",
}
_RARE_LETTER = "O"
# Along one bar operations differ in shade too, so that neighbors are seen as two.
_SHADES = ("all_gather", "psum_scatter", "psum", "all_to_all", "ppermute", "pmax", "pmin")


def op_text(op: str) -> str:
    """Return the JAX name with the HLO name.

    >>> op_text("psum")
    'psum (all-reduce)'
    """
    return f"{op} ({HLO_NAMES[op]})" if op in HLO_NAMES else op


def op_paint(op: str, mesh_axes: Sequence[str], mesh: MeshSizes) -> Paint:
    """Return the paint of an operation over mesh axes: their hues, in the operation's shade."""
    position = _SHADES.index(op) if op in _SHADES else len(_SHADES)
    names = [name for name, _ in mesh]
    axes = sorted(names.index(name) for name in mesh_axes if name in names)
    # Only the stronger half of the ramp: a bar of one pixel must be visible on its lane.
    n_shades = len(_SHADES) + 1
    colors = [axis_shade(axis, n_shades + position, 2 * n_shades) for axis in axes]
    return Paint(tuple(colors) or (slate_shade(0, 2),))


def op_shade(op: str) -> Color:
    """Return the shade of an operation without a mesh axis, for legends."""
    return slate_shade(_SHADES.index(op) if op in _SHADES else len(_SHADES), len(_SHADES) + 1)


def op_letter(op: str) -> str:
    """Return the letter of an operation; rare ones share one."""
    return _LETTERS.get(op, _RARE_LETTER)


def member_paint(call: CollectiveCall, mesh: MeshSizes, member: int) -> Paint:
    """Return the paint of a device of the group: its coordinates along the axes of the call."""
    names, sizes = [name for name, _ in mesh], [size for _, size in mesh]
    axes = [names.index(name) for name in group_axes(call, mesh)]
    if call.group_size != prod(sizes[axis] for axis in axes):
        # Groups by axis_index_groups have no regular coordinates: count along the first axis.
        color = axis_shade(axes[0] if axes else 0, member, call.group_size)
        return Paint((color,))
    steps = {}
    for axis in reversed(axes):
        member, steps[axis] = divmod(member, sizes[axis])
    return mesh_paint(sizes, steps)


def group_axes(call: CollectiveCall, mesh: MeshSizes) -> list[str]:
    """Return the mesh axes that number the devices of a group, major first."""
    # ppermute numbers devices in mesh order; all other collectives in the order of their axes.
    if call.op == "ppermute":
        return [name for name, _ in mesh if name in call.mesh_axes]
    names = {name for name, _ in mesh}
    return [name for name in call.mesh_axes if name in names]


def call_keys(
    mesh: MeshSizes, mesh_axes: Iterable[str], *, has_shades: bool = True
) -> tuple[AxisKey, ...]:
    """Return the legend of the hues of these mesh axes."""
    present = set(mesh_axes)
    return tuple(
        AxisKey(name, axis, size, has_shades=has_shades)
        for axis, (name, size) in enumerate(mesh)
        if name in present and size > 1
    )
