"""Layouts: what each device stores of an array, and how to reshard it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from shardlab.server.api.api_models import ERROR_RESPONSES, ApiModel
from shardlab.server.layout_requests import MAX_TEXT, parse_limited_array
from shardlab.sharding.layout import layout
from shardlab.sharding.layout_data import layout_data
from shardlab.sharding.mesh import parse_device
from shardlab.sharding.reshard import reshard

router = APIRouter(prefix="/api/v1", tags=["layout"], responses=ERROR_RESPONSES)

LayoutText = Annotated[str, StringConstraints(max_length=MAX_TEXT)]


class LayoutBody(ApiModel):
    """An array on a mesh, as `shardlab layout` takes it."""

    array: LayoutText = Field(description="Such as bf16[4096,16384] or 4096x16384:bf16.")
    mesh: LayoutText = Field(description="Such as data=2,model=4.")
    spec: LayoutText = Field(default="", description="Such as None,model; empty: replicated.")
    to: LayoutText | None = Field(default=None, description="The spec to reshard to.")
    device: LayoutText | None = Field(
        default=None, description="Also the shard of this device, by id (5) or coordinate (1,1)."
    )


@router.post("/layouts")
def compute_layout(body: LayoutBody) -> dict[str, Any]:
    """Return what each device stores, as `layout --json` does; with `to`, the collectives."""
    shape, dtype = parse_limited_array(body.array)
    source = layout(shape, body.spec, body.mesh, dtype)
    device_id = None
    if body.device is not None:
        device = parse_device(body.device)
        device_id = source.mesh.device_at(device) if isinstance(device, tuple) else device
        source.index(device_id)  # raises for a device that the mesh does not have
    if body.to is None:
        return layout_data(source, device_id=device_id)
    target = layout(shape, body.to, body.mesh, dtype)
    steps = reshard(source, target)
    return layout_data(source, target=target, steps=steps, device_id=device_id)
