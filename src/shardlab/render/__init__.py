"""Pictures of layouts: one form in picture.py, drawn as text, rich text, SVG and HTML. Pure."""

from shardlab.render.picture import Picture, Room, holdings, layout_picture
from shardlab.render.terminal import picture_rich, picture_text

__all__ = ["Picture", "Room", "holdings", "layout_picture", "picture_rich", "picture_text"]
