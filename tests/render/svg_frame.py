"""Checks of any SVG picture: well-formed, complete in itself, nothing outside its frame or box."""

from __future__ import annotations

import re

from shardlab.render.text_width import text_width

SVG = "{http://www.w3.org/2000/svg}"
TOLERANCE = 2  # pixels


def text_ends(text):
    """Return the estimated left and right end of a horizontal text element."""
    size = float(text.get("font-size", 12))
    width = text_width(
        text.text,
        size,
        is_bold=text.get("font-weight") == "600",
        is_code="code" in (text.get("class") or ""),
    )
    start = float(text.get("x"))
    start -= {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
    return start, start + width


def assert_inside_frame(root):
    """Assert that boxes, lines and text are within the frame of the picture."""
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.iter(f"{SVG}rect"):
        if box.get("x") is not None:
            x, y, w, h = (float(box.get(name)) for name in ("x", "y", "width", "height"))
            assert -1 <= x <= x + w <= width
            assert -1 <= y <= y + h <= height
    patterns = {path for pattern in root.iter(f"{SVG}pattern") for path in pattern}
    for path in root.iter(f"{SVG}path"):
        if path in patterns:
            continue
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
        assert all(-1 <= x <= width for x in numbers[::2])
        assert all(-1 <= y <= height for y in numbers[1::2])
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("y")) <= height
        if not text.get("transform"):
            left, right = text_ends(text)
            assert left >= -TOLERANCE, text.text
            assert right <= width + TOLERANCE, text.text


def assert_labels_fit(root):
    """Assert that the text of each group of one box is within that box."""
    for group in root.iter(f"{SVG}g"):
        boxes = [box for box in group.findall(f"{SVG}rect") if box.get("x") is not None]
        if not boxes or group.find(f"{SVG}g") is not None:
            continue
        left = float(boxes[0].get("x"))
        right = left + float(boxes[0].get("width"))
        for text in group.findall(f"{SVG}text"):
            start, end = text_ends(text)
            assert left - TOLERANCE <= start <= end <= right + TOLERANCE, text.text


def assert_self_contained(svg):
    """Assert that nothing is loaded from elsewhere, and that light and dark colors are there."""
    assert re.findall(r"https?://[^\"' ]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in svg
    assert "href" not in svg
    assert "@import" not in svg
    assert set(re.findall(r"url\(([^)]*)\)", svg)) <= {"#texture-replica", "#texture-partial"}
    assert "prefers-color-scheme:dark" in svg
    # Each class has its custom property on light and on dark paper.
    names = set(re.findall(r"var\(--([\w-]+)\)", svg))
    for block in re.findall(r"shardlab-picture\{([^}]*)\}", svg):
        assert names <= set(re.findall(r"--([\w-]+):#", block))
