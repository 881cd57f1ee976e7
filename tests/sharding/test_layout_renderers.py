"""Renderers of a layout: plain text, rich, SVG with a text alternative, HTML."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from render.svg_frame import assert_inside_frame
from shardlab.render.palette import axis_shade, rgb_channels
from shardlab.render.svg import picture_svg
from shardlab.render.terminal import picture_rich, picture_text
from shardlab.sharding.layout import layout
from shardlab.sharding.layout_picture import device_values_picture

SVG = "{http://www.w3.org/2000/svg}"
EXAMPLES = [
    ((), "", "x=4"),
    ((8,), "x", "x=2"),
    ((16, 12), "data,model", "data=2,model=4"),
    ((64, 16), "x", "x=16"),
    ((64, 128, 32, 8), "a,b,c", "a=2,b=4,c=2"),
    ((4096, 4096), "a,b", "a=64,b=64"),
    ((4096, 8), "", "a=4096"),
    ((0, 8), "x", "x=2"),
    ((8, 8), "", "()"),
]


def printed(value, **options):
    out = io.StringIO()
    Console(file=out, **options).print(value)
    return out.getvalue()


def test_the_text_shows_shards_and_devices():
    assert layout((8, 6), "None,model", "data=2,model=2", "bf16").text() == (
        """\
bfloat16[8, 6]  P(None, 'model')  on mesh data=2,model=2
each device holds [8, 3], 48 bytes
2 shards, each replicated on 2 devices
total 192 bytes on all devices; full array 96 bytes
data=2 replicas   model=2 shards dim 1

Shards: 2
↓ dim 0: 8, unsharded   → dim 1: 6, 2 shards over model
      0:3            3:6
    ┌──────────────┬──────────────┐
0:8 │ #0         ╱ │ #1         ╱ │
    │ devices 0, 2 │ devices 1, 3 │
    └──────────────┴──────────────┘

Devices: 4
↓ data   → model
         model=0       model=1
       ┌─────────────┬─────────────┐
data=0 │ device 0  ╱ │ device 1  ╱ │
       │ #0 [:, 0:3] │ #1 [:, 3:6] │
       ├─────────────┼─────────────┤
data=1 │ device 2  ╱ │ device 3  ╱ │
       │ #0 [:, 0:3] │ #1 [:, 3:6] │
       └─────────────┴─────────────┘
╱ replica: other devices have the same block"""
    )


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_line_fits_the_width_and_a_screen(example, width):
    lines = layout(*example).text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < 60


@pytest.mark.parametrize("example", EXAMPLES)
def test_rich_without_color_prints_the_same_text(example):
    value = layout(*example)
    plain = printed(value, width=80)
    assert [line.rstrip() for line in plain.splitlines()] == value.text(80).splitlines()


def test_rich_in_color_fills_each_shard():
    out = printed(layout((8,), "x", "x=2"), width=80, force_terminal=True, color_system="truecolor")
    for shard in (0, 1):
        red, green, blue = rgb_channels(axis_shade(0, shard, 2).light)
        assert f"48;2;{red};{green};{blue}" in out


@pytest.mark.parametrize("example", EXAMPLES)
def test_svg_is_well_formed_and_has_a_text_alternative(example):
    value = layout(*example)
    root = ET.fromstring(value.svg())
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text.startswith(f"float32{list(value.shape)}")
    assert root.find(f"{SVG}desc").text == root.get("aria-label")
    assert f"Devices: {value.n_devices:,}<" in value.svg()


@pytest.mark.parametrize("example", EXAMPLES)
def test_svg_stays_small_and_inside_its_frame(example):
    value = layout(*example)
    root = ET.fromstring(value.svg())
    assert len(value.svg()) < 500_000
    assert float(root.get("width")) < 1400
    assert float(root.get("height")) < 1200
    assert_inside_frame(root)


def test_svg_tooltips_name_each_box():
    titles = [t.text for t in ET.fromstring(layout((8,), "x", "x=2").svg()).iter(f"{SVG}title")]
    assert "shard #1 [4:8] on device 1" in titles
    assert "device 1 (x=1) holds [4:8]" in titles


def test_the_notebook_shows_the_svg():
    value = layout((8,), "x", "x=2")
    html = value._repr_html_()
    assert html.startswith("<figure")
    assert value.svg() in html


def test_names_cannot_break_out_of_the_markup():
    svg = layout((8,), ("<b>&",), {"<b>&": 2}).svg()
    ET.fromstring(svg)
    assert "<b>" not in svg


def test_device_values_are_drawn_in_every_form():
    picture = device_values_picture(
        layout((4,), "x", "x=2"), {0: "[0. 1.]", 1: "<2>"}, title="After"
    )
    assert picture_text(picture) == (
        """\
After
x=2 shards dim 0

Devices: 2
→ x
  x=0        x=1
┌──────────┬──────────┐
│ device 0 │ device 1 │
│ [0. 1.]  │ <2>      │
└──────────┴──────────┘"""
    )
    assert picture_rich(picture).plain.splitlines()[0] == "After"
    assert "&lt;2&gt;" in picture_svg(picture)
    ET.fromstring(picture_svg(picture))
