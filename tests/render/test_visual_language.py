"""The visual language: every kind of picture has the same colors, fits, and reads without color."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from rich.console import Console

from hardware.sample_traces import call, train_step
from render.svg_frame import (
    SVG,
    assert_inside_frame,
    assert_labels_fit,
    assert_self_contained,
    text_ends,
)
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.render.palette import INK, axis_shade, contrast_ratio, rgb_channels
from shardlab.render.terminal import picture_text
from shardlab.sharding.layout import layout
from shardlab.sharding.layout_picture import layout_picture
from shardlab.sharding.reshard import reshard
from shardlab.sharding.reshard_picture import reshard_svg
from shardlab.tracing.trace import Trace

MESH = (("data", 2), ("model", 4))
CALLS = (
    call("psum", "model", (8, 64), MESH),
    call("all_gather", ("data", "model"), (8, 64), MESH),
    call("all_to_all", "data", (8, 64), MESH),
    call("ppermute", "model", (8, 64), MESH),
)


def resharded(shape, old, new, mesh):
    before, after = layout(shape, old, mesh), layout(shape, new, mesh)
    return reshard_svg(before, after, reshard(before, after))


def pictures():
    """Return an SVG of every kind that a command writes, by name."""
    trace = Trace(program="f", mesh=MESH, collectives=CALLS)
    options = {"optimizer": "adamw", "hardware": "tpu-v5p"}
    batch = Workload(batch=64, sequence=2048)
    small = plan("llama3-8b", "fsdp=8", strategy="fsdp", workload=batch, **options)
    large = plan("llama3-70b", "data=2,model=4", strategy="tensor", **options)
    return {
        "layout": layout((16, 12), "data,model", "data=2,model=4").svg(),
        "layout of replicas": layout((4096, 16384), "None,model", "data=2,model=4").svg(),
        "layout of three dimensions": layout((64, 128, 32), "a,b,c", "a=2,b=4,c=2").svg(),
        "layout of 512 shards": layout((4096, 4096), "a,b", "a=16,b=32").svg(),
        "layout of 512 shards in a row": layout((4096,), "x", "x=512").svg(),
        "layout with long names": layout(
            (64, 64), "pipeline_stage,expert_parallel", "pipeline_stage=4,expert_parallel=8"
        ).svg(),
        "reshard": resharded((16, 32), "None,model", "data", "data=2,model=4"),
        "reshard in three dimensions": resharded((8, 16, 32), "x,y", "y,x", "x=2,y=2"),
        "reshard of many shards": resharded((512, 512), "a,b", "a", "a=16,b=16"),
        "reshard to itself": resharded((8, 8), "x", "x", "x=2"),
        "timeline": train_step().timeline_svg(train_step().estimate("tpu-v5p")),
        "traffic": train_step().traffic_svg(),
        **{f"steps of {item.op}": trace.steps_svg(n) for n, item in enumerate(CALLS)},
        "memory": small.svg(),
        "memory over the budget": large.svg(),
        "treemap": small.treemap(),
        "treemap with replicas": large.treemap(),
    }


PICTURES = pictures()
every_picture = pytest.mark.parametrize("name", PICTURES)


@every_picture
def test_a_picture_needs_nothing_else_and_has_light_and_dark_colors(name):
    root = ET.fromstring(PICTURES[name])
    assert root.get("role") == "img"
    assert root.find(f"{SVG}desc").text == root.get("aria-label")
    assert_self_contained(PICTURES[name])


@every_picture
def test_nothing_leaves_the_frame_or_its_box(name):
    root = ET.fromstring(PICTURES[name])
    assert_inside_frame(root)
    if "three" not in name:  # the faces of a block are no rectangles
        assert_labels_fit(root)


@every_picture
def test_labels_of_one_line_do_not_overlap(name):
    by_line = {}
    for text in ET.fromstring(PICTURES[name]).iter(f"{SVG}text"):
        if not text.get("transform"):
            by_line.setdefault(text.get("y"), []).append((*text_ends(text), text.text))
    for line in by_line.values():
        line.sort()
        for (_, right, first), (left, _, second) in pairwise(line):
            assert left >= right - 1, (first, second)


@every_picture
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_are_readable_on_the_fill_of_their_box(name, theme):
    svg = PICTURES[name]
    blocks = re.findall(r"shardlab-picture\{([^}]*)\}", svg)
    block = blocks[0 if theme == "light" else 1]
    values = dict(re.findall(r"--([\w-]+):(#\w+)", block))
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        boxes = [box for box in group.findall(f"{SVG}rect") if "f-" in (box.get("class") or "")]
        for text in group.findall(f"{SVG}text") if boxes else ():
            fill, ink = (
                re.search(r"f-([\w-]+)", node.get("class"))[1] for node in (boxes[0], text)
            )
            assert contrast_ratio(values[ink], values[fill]) >= 4.5, text.text


def test_a_coordinate_has_the_same_color_in_every_renderer():
    array = layout((8,), "model", "data=2,model=4")
    shades = [axis_shade(1, step, 4) for step in range(4)]
    out = io.StringIO()
    Console(file=out, width=90, force_terminal=True, color_system="truecolor").print(array)
    steps = Trace(program="f", mesh=MESH, collectives=CALLS[:1]).steps_svg(0)
    after = resharded((8, 8), "model", "None,model", "data=2,model=4")
    for shade in shades:
        red, green, blue = rgb_channels(shade.light)
        assert f"48;2;{red};{green};{blue}m" in out.getvalue()
        for svg in (array.svg(), steps, after):
            assert f'fill="{shade.light}"' in svg
            assert f"--{shade.name}:{shade.dark};" in svg


def test_an_axis_has_its_hue_on_charts_too():
    trace = Trace(program="f", mesh=MESH, collectives=CALLS)
    for svg in (trace.timeline_svg(), trace.traffic_svg()):
        names = set(re.findall(r"f-a(\d)-", svg))
        assert names == {"0", "1"}
    only_model = Trace(program="f", mesh=MESH, collectives=CALLS[:1])
    assert set(re.findall(r"f-a(\d)-", only_model.timeline_svg())) == {"1"}


def test_text_without_color_still_tells_shards_replicas_and_axes():
    text = picture_text(layout_picture(layout((8, 6), "None,model", "data=2,model=2")))
    assert "data=2 replicas   model=2 shards dim 1" in text
    assert text.count("╱") == 2 + 4 + 1  # shards, devices, legend
    labels = re.findall(r"#\d \[[^]]*\]", text)
    assert sorted(labels) == ["#0 [:, 0:3]"] * 2 + ["#1 [:, 3:6]"] * 2


def test_the_ink_of_a_terminal_is_that_of_the_fills():
    out = io.StringIO()
    console = Console(file=out, width=90, force_terminal=True, color_system="truecolor")
    console.print(layout((8,), "x", "x=2"))
    red, green, blue = rgb_channels(INK.light)
    assert f"38;2;{red};{green};{blue}" in out.getvalue()


def test_each_message_of_a_collective_is_an_arrow_from_its_sender():
    svg = Trace(program="f", mesh=MESH, collectives=CALLS[3:]).steps_svg(0)
    root = ET.fromstring(svg)
    ribbons = [path for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "5"]
    assert len(ribbons) == 4
    starts = {re.match(r"M([\d.]+)", path.get("d"))[1] for path in ribbons}
    ends = {re.search(r"L([\d.]+) [\d.]+$", path.get("d"))[1] for path in ribbons}
    assert starts == ends  # the centers of the four columns


def test_a_reshard_has_both_layouts_and_the_collectives_between():
    texts = [text.text for text in ET.fromstring(PICTURES["reshard"]).iter(f"{SVG}text")]
    assert texts.count("Devices: 8") == 2
    assert {"1. slice over data", "2. all_gather over model"} <= set(texts)
    assert {"P(None, 'model')", "P('data')"} <= set(texts)
    assert "no communication" in PICTURES["reshard to itself"]
