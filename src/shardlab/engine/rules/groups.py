"""`axis_index_groups`: a collective within groups of devices, each group on its own.

Groups of one size are the rows of a mesh (group, member). So the devices are put into that order,
the collective runs over the axis `member`, and the devices go back to where they stood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shardlab.engine.spread import Axes, Spread, in_front, out_of_front, vary

Groups = Sequence[Sequence[int]]

# Axes that pass through; no person's mesh axis can have such a name.
_GROUP, _MEMBER = "\0group", "\0member"


def within_groups(
    axes: Axes,
    value: Spread,
    names: Sequence[str],
    groups: Groups,
    rule: Callable[[Axes, Spread, Sequence[str]], Spread],
) -> Spread:
    """Apply `rule(axes, value, names)` to each group alone; all groups have one size."""
    n_members = len(groups[0])
    order = np.concatenate([np.array(group) for group in groups])
    inner = axes.with_axis(_GROUP, len(groups)).with_axis(_MEMBER, n_members)
    array, rest = in_front(value, names, axes)
    grouped = out_of_front(array[order], (_GROUP, _MEMBER), rest, inner)
    out = vary(rule(inner, grouped, (_MEMBER,)), (_GROUP, _MEMBER), inner)
    array, rest = in_front(out, (_GROUP, _MEMBER), inner)
    return out_of_front(array[np.argsort(order)], names, rest, axes)
