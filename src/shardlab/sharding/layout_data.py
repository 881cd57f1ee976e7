"""A layout and what it is compared with, as the plain data of `layout --json` and the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlab.sharding.layout import Layout
from shardlab.sharding.reshard import ReshardStep


def layout_data(
    source: Layout,
    *,
    target: Layout | None = None,
    steps: Sequence[ReshardStep] | None = None,
    device_id: int | None = None,
) -> dict[str, Any]:
    """Return a layout; with one device's shard, another layout, and the steps between the two.

    >>> from shardlab.sharding.layout import layout
    >>> layout_data(layout((8, 6), "data", "data=2"), device_id=1)["device"]
    {'id': 1, 'coordinate': {'data': 1}, 'index': [[4, 8], [0, 6]]}
    """
    data = source.to_json()
    if device_id is not None:
        coordinate = source.mesh.coordinate(device_id)
        data["device"] = {
            "id": device_id,
            "coordinate": dict(zip(source.mesh.axis_names, coordinate, strict=True)),
            "index": [[part.start, part.stop] for part in source.index(device_id)],
        }
    if target is not None:
        data["to"] = target.to_json()
    if steps is not None:
        data["reshard"] = [step.to_json() for step in steps]
    return data
