"""Pictures of plans: areas and lengths are bytes, and color is never the only sign."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from render.svg_frame import assert_inside_frame, assert_labels_fit
from shardlab.planner.make_plan import plan
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory_bars import bars_svg, memory_bars
from shardlab.planner.model import Model
from shardlab.planner.plan import KINDS
from shardlab.planner.tensor_group import parse_tensor_group
from shardlab.planner.treemap import sharding_style, squarify
from shardlab.render.palette import axis_shade
from shardlab.render.svg_marks import Box
from shardlab.sharding.dtype import parse_dtype

SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = {"strategy": "fsdp", "optimizer": "adamw", "hardware": "tpu-v5p"}
PLANS = {
    "small": plan("llama3-8b", "fsdp=8", workload=Workload(batch=64, sequence=2048), **OPTIONS),
    "large": plan("deepseek-v3", "fsdp=64,tensor=8", **OPTIONS),
    "over": plan("llama3-70b", "fsdp=8", **OPTIONS),
    "without a chip": plan("llama3-8b", "data=2,model=4", strategy="tensor"),
    "one tensor": plan(
        Model(name="one", groups=(parse_tensor_group("w", (6, 4), parse_dtype("f32")),)), "x=3"
    ),
    "one device": plan("llama3-8b", "x=1"),
    "nothing": plan(Model(name="none", groups=()), "x=3"),
}


def root(svg):
    return ET.fromstring(svg)


@pytest.mark.parametrize("name", PLANS)
def test_each_picture_has_a_title_and_a_description(name):
    for svg in (PLANS[name].svg(), PLANS[name].treemap()):
        top = root(svg)
        assert top.get("role") == "img"
        assert PLANS[name].model in top.find(f"{SVG}title").text
        assert top.find(f"{SVG}desc").text == top.get("aria-label")


@pytest.mark.parametrize("name", PLANS)
def test_text_and_boxes_are_within_the_picture(name):
    for svg in (PLANS[name].svg(), PLANS[name].treemap()):
        assert_inside_frame(root(svg))
        assert_labels_fit(root(svg))


def test_the_bar_is_as_long_as_the_bytes():
    drawn = PLANS["small"]
    boxes = [
        (group.find(f"{SVG}title").text, float(group.find(f"{SVG}rect").get("width")))
        for group in root(drawn.svg()).iter(f"{SVG}g")
    ]
    lengths = {title.split(":")[0]: width for title, width in boxes}
    per_byte = lengths["optimizer"] / drawn.bytes_of("optimizer")
    for kind in ("parameters", "gradients", "activations"):
        assert lengths[kind] == pytest.approx(drawn.bytes_of(kind) * per_byte, abs=0.6)


def test_equal_devices_are_one_bar_and_unequal_ones_the_extremes():
    (bar,) = memory_bars(PLANS["small"])
    assert bar.name == "each of 8 devices"
    model = Model(name="odd", groups=(parse_tensor_group("w", (5, 1000), parse_dtype("f32")),))
    fullest, emptiest = memory_bars(plan(model, "x=4", rules={"rules": [("w", "x")]}))
    assert fullest.n_bytes == 2 * 1000 * 4
    assert (emptiest.name, emptiest.n_bytes) == ("emptiest, device 3", 0)


def test_an_older_plan_is_drawn_next_to_the_new_one():
    svg = bars_svg(PLANS["small"], PLANS["over"])
    texts = [text.text for text in root(svg).iter(f"{SVG}text")]
    assert {"before", "now"} <= set(texts)
    assert any("→" in text for text in texts)


def test_the_overflow_is_labeled():
    assert "54.7 GB too much" in [t.text for t in root(PLANS["over"].svg()).iter(f"{SVG}text")]


def test_the_treemap_hatches_what_is_replicated_and_names_it():
    drawn = plan("llama3-8b", "data=2,model=4", strategy="tensor")
    svg = drawn.treemap()
    texts = [text.text for text in root(svg).iter(f"{SVG}text")]
    assert "url(#texture-replica)" in svg
    assert "replicated on some devices" in texts
    titles = [title.text for title in root(svg).iter(f"{SVG}title")]
    assert any("each shard on 2 devices" in title for title in titles)


def test_zero_1_shows_the_parameter_and_the_states_separately():
    drawn = plan("llama3-8b", "data=8", strategy="zero1", optimizer="adamw")
    titles = [title.text for title in root(drawn.treemap()).iter(f"{SVG}title")]
    assert any(
        "up_proj.weight: parameter, gradient" in title and "replicated on every device" in title
        for title in titles
    )
    assert any(
        "up_proj.weight: master, mu, nu" in title and "sharded over all" in title
        for title in titles
    )


def test_arrays_that_do_not_fit_next_to_the_name_are_below_it():
    rules = {"rules": [("mlp|attn", "fsdp")]}
    drawn = plan("llama3-8b", "data=4,fsdp=8", rules=rules, strategy="zero1", optimizer="adamw")
    texts = [element.text for element in root(drawn.treemap()).iter(f"{SVG}text")]
    position = texts.index("mlp.down_proj")
    assert texts[position + 1] == "master, mu, nu"


def test_a_tile_has_the_hues_of_the_mesh_axes_that_shard_it():
    drawn = plan("llama3-8b", "data=2,fsdp=2,model=2", strategy="fsdp+tensor")
    styles = {
        row.path: sharding_style(row.parameter, drawn) for row in drawn.rows if "proj" in row.path
    }
    both = (axis_shade(1, 0, 1), axis_shade(2, 0, 1))
    assert {style.paint.colors for style in styles.values()} == {both}
    assert {style.paint.texture for style in styles.values()} == {"replica"}
    (norm,) = {sharding_style(row.parameter, drawn) for row in drawn.rows if "norm" in row.path}
    assert norm.label == "replicated on every device"


def test_names_are_shortened_by_words():
    for drawn in PLANS.values():
        for text in root(drawn.treemap()).iter(f"{SVG}text"):
            assert not text.text.startswith("…")


@example([1, 9_481_831_360], 32.0, 20.0)
@given(
    st.lists(st.integers(1, 10**12), min_size=1, max_size=30),
    st.floats(20, 1000),
    st.floats(20, 1000),
)
def test_a_treemap_fills_its_box_with_areas_proportional_to_the_sizes(sizes, width, height):
    sizes = sorted(sizes, reverse=True)
    boxes = squarify(sizes, Box(x=3, y=5, width=width, height=height))
    area = width * height / sum(sizes)
    for size, box in zip(sizes, boxes, strict=True):
        assert box.width * box.height == pytest.approx(size * area, rel=1e-6, abs=1e-6)
        assert 3 - 1e-6 <= box.x <= box.x + box.width <= 3 + width * (1 + 1e-6)
        assert 5 - 1e-6 <= box.y <= box.y + box.height <= 5 + height * (1 + 1e-6)


def test_every_kind_has_its_own_fill_and_letter():
    from shardlab.planner.memory_bars import _FILLS, _LETTERS

    assert len({_FILLS[kind] for kind in KINDS}) == len(KINDS) == len({*_LETTERS.values()})
