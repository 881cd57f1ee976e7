"""A devices block: parsed once, with errors at their line, and drawn for pages and terminals."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from render.svg_frame import (
    SVG,
    assert_inside_frame,
    assert_labels_fit,
    assert_self_contained,
)
from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.devices_block import DevicesBlockError, DeviceStep, parse_devices_block
from shardlab.course.devices_svg import FRAME_WIDTH, devices_svg
from shardlab.course.devices_text import devices_text
from shardlab.course.statement_page import parse_page
from shardlab.course.statement_text import statement_rich, statement_text
from shardlab.render.palette import axis_shade, contrast_ratio
from shardlab.server.practice.statement_html import render_statement
from shardlab.sharding.spec import Spec

PSUM = """mesh data=4
x P('data'): [1 2 3] | [4 5 6] | [7 8 9] | [10 11 12]
-> jnp.sum(y)
term, partial over data: 6 | 15 | 24 | 33 # one per device
-> psum over data
total P(): 78
"""
RING = """mesh x=3
before P('x'): a | b | c
-> ppermute over x
after P('x'): @2 c | @0 a | @1 b
"""
TWO_AXES = """mesh data=2,model=3
w P('data','model'): 0 | 1 | 2 | 3 | 4 | 5
-> psum over data, model
v P(None,'model'): a; b | c | | a; b | c |
bias P(): ! 1 | 2 | 2 | 2 | 2 | 2
full y: [1 2 3 4 5 6]
"""
LONG_LINE = "mesh expert=8\nx P('expert'): " + " | ".join(f"tokens {n}" for n in range(8))
CATALOGUE = load_catalogue()


def page_blocks():
    """Return the devices blocks of every statement, by slug and number."""
    blocks = {}
    for slug, problem in CATALOGUE.problems.items():
        sections = parse_page(problem.page).sections
        texts = [b.text for s in sections for b in s.blocks if b.language == "devices"]
        blocks |= {f"{slug} {n}": text for n, text in enumerate(texts)}
    return blocks


PAGE_BLOCKS = page_blocks()
EVERY = {"psum": PSUM, "ring": RING, "two axes": TWO_AXES, "long": LONG_LINE, **PAGE_BLOCKS}
every_block = pytest.mark.parametrize("name", EVERY)


# ------------------------------------------------------------------------------------------ parsing


def test_rows_and_steps_become_values():
    block = parse_devices_block(PSUM)
    x, local, term, psum, total = block.items
    assert [cell[0].text for cell in x.cells] == ["[1 2 3]", "[4 5 6]", "[7 8 9]", "[10 11 12]"]
    assert x.spec == Spec("data")
    assert local == DeviceStep(text="jnp.sum(y)")
    assert (term.name, term.spec, term.note) == ("term", Spec(unreduced=["data"]), "one per device")
    assert (psum.text, psum.mesh_axes) == ("psum", ("data",))
    # One cell is for every device.
    assert [cell[0].text for cell in total.cells] == ["78"] * 4


def test_a_cell_has_blocks_with_origins_and_marks():
    block = parse_devices_block(TWO_AXES)
    _, v, bias, y = block.rows
    assert [held.text for held in v.cells[0]] == ["a", "b"]
    assert v.cells[2] == ()
    assert [cell[0].is_wrong for cell in bias.cells] == [True] + [False] * 5
    assert (y.is_full, y.cells[0][0].text) == (True, "[1 2 3 4 5 6]")
    ring = parse_devices_block(RING)
    assert [cell[0].origin for cell in ring.rows[1].cells] == [2, 0, 1]


def test_a_line_that_starts_with_a_bar_continues_the_row():
    text = "mesh x=3\na P('x'): 1 | 2\n  | 3 # note\nb P(): 4"
    first, second = parse_devices_block(text).rows
    assert [cell[0].text for cell in first.cells] == ["1", "2", "3"]
    assert (first.note, second.name) == ("note", "b")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "it is empty"),
        ("x: 1 | 2", 1, "the first line is the mesh"),
        ("mesh data", 1, "'=' was expected"),
        ("mesh data=1\nx: 1", 1, "2 to 16"),
        ("mesh data=17\nx: 1", 1, "the mesh has 17 devices"),
        ("mesh x=2", 1, "a row must follow"),
        ("mesh x=2\na: 1\n-> psum over x", 3, "a row must follow"),
        ("mesh x=2\n-> f\na: 1", 2, "a step follows a row"),
        ("mesh x=2\na: 1\n-> f\n-> g\nb: 1", 4, "a step follows a row"),
        ("mesh x=2\na: 1\n->\nb: 2", 3, "a step has a text"),
        ("mesh x=2\na: 1\n-> psum\nb: 2", 3, "names its mesh axes, such as -> psum over"),
        ("mesh x=2\na: 1\n-> psun over x\nb: 2", 3, "Did you mean 'psum'?"),
        ("mesh x=2\na: 1\n-> psum over y\nb: 2", 3, "'y' is not a mesh axis of x=2"),
        ("mesh x=2\na: 1\n-> psum over x, x\nb: 2", 3, "twice"),
        ("mesh x=2\n\na P('x'): 1 | 2 | 3", 3, "3 cells; the mesh has 2 devices"),
        ("mesh x=2\na P('y'): 1 | 2", 2, "'y' is not a mesh axis"),
        ("mesh x=2\na P('x): 1 | 2", 2, "expected"),
        ("mesh x=2\na P('x'), partial over x: 1 | 2", 2, "both shard the array"),
        ("mesh x=2\na P(): 1 | 2", 2, "devices 0 and 1 hold copies under P()"),
        ("mesh x=2,y=2\na P('y'): 1 | 2 | 1 | 3", 2, "devices 1 and 3 hold copies under P('y')"),
        ("mesh x=2\njust words", 2, "neither a step"),
        ("mesh x=2\n: 1 | 2", 2, "neither a step"),
        ("mesh x=2\na: 1;; 2 | 3", 2, "no text"),
        ("mesh x=2\na: @2 b | 3", 2, "the devices are 0 to 1"),
        ("mesh x=2\nfull a P('x'): 1", 2, "no spec"),
        ("mesh x=2\nfull a: 1 | 2", 2, "one cell"),
        ("mesh x=2\n" + "a" * 81 + ": 1", 2, "neither a step"),
        ("mesh x=2\n" + "P() partial over " * 50_000 + ": 1", 2, "neither a step"),
        ("mesh x=2\na: 1 # " + "b" * 81, 2, "the note has more than 80 letters"),
        ("mesh x=2\na: " + "1" * 41, 2, "more than 40 letters"),
        ("mesh x=2\na: " + ";".join("123456789"), 2, "more than 8 blocks"),
        ("mesh x=2" + "\na: 1" * 25, 26, "more than 24 rows"),
    ],
)
def test_an_error_says_what_is_wrong_and_in_which_line(text, line, message):
    with pytest.raises(DevicesBlockError) as raised:
        parse_devices_block(text)
    assert message in str(raised.value)
    assert raised.value.line == line


def test_copies_may_differ_if_the_wrong_one_is_marked():
    block = parse_devices_block("mesh x=2\na P(): 1 | ! 2")
    row = block.rows[0]
    paints = [block.paint(row, device, cell[0]) for device, cell in enumerate(row.cells)]
    assert [paint.texture for paint in paints] == ["replica", "wrong"]


# ---------------------------------------------------------------------------------- visual language


def colors(block, row):
    return [
        tuple(color.name for color in block.paint(row, device, cell[0]).colors)
        for device, cell in enumerate(row.cells)
    ]


def test_each_mesh_axis_of_the_spec_has_its_hue_and_each_coordinate_its_shade():
    block = parse_devices_block(TWO_AXES)
    shades = colors(block, block.rows[0])
    assert shades[5] == ("a0-1-2", "a1-2-3")
    assert shades[1] == (axis_shade(0, 0, 2).name, axis_shade(1, 1, 3).name)


def test_textures_follow_from_the_spec():
    block = parse_devices_block(PSUM)
    textures = [block.paint(row, 0, row.cells[0][0]).texture for row in block.rows]
    assert textures == ["", "partial", "replica"]
    assert block.textures == ("replica", "partial")
    assert [(key.name, key.size) for key in block.axis_keys] == [("data", 4)]


def test_a_block_that_moved_has_the_color_of_its_origin():
    block = parse_devices_block(RING)
    before, after = (colors(block, row) for row in block.rows)
    assert after == [before[2], before[0], before[1]]
    moves = block.find_moves(block.steps[0])
    assert [(move.source, move.target) for move in moves] == [(0, 1), (1, 2), (2, 0)]


# ------------------------------------------------------------------------------------------ the SVG


@every_block
def test_the_svg_is_complete_in_itself_and_nothing_leaves_its_box(name):
    block = parse_devices_block(EVERY[name])
    svg = devices_svg(block)
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    assert root.find(f"{SVG}desc").text == root.get("aria-label") == block.alternative
    assert_self_contained(svg)
    assert_inside_frame(root)
    assert_labels_fit(root)


@pytest.mark.parametrize("name", PAGE_BLOCKS)
def test_the_text_of_a_statement_has_its_size_on_a_narrow_screen(name):
    root = ET.fromstring(devices_svg(parse_devices_block(PAGE_BLOCKS[name])))
    # 390 pixels wide, the page shows pictures 360 pixels wide; no text is smaller than 11 there.
    assert FRAME_WIDTH <= float(root.get("width")) <= 362
    sizes = {float(text.get("font-size", 12)) for text in root.iter(f"{SVG}text")}
    assert min(sizes) >= 11


@every_block
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_are_readable_on_the_fill_of_their_box(name, theme):
    svg = devices_svg(parse_devices_block(EVERY[name]))
    block = re.findall(r"shardlab-picture\{([^}]*)\}", svg)[0 if theme == "light" else 1]
    values = dict(re.findall(r"--([\w-]+):(#\w+)", block))
    n_labels = 0
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        fill = re.search(r"f-([\w-]+)", group.find(f"{SVG}rect").get("class"))[1]
        for text in group.findall(f"{SVG}text"):
            ink = re.search(r"f-([\w-]+)", text.get("class"))[1]
            assert contrast_ratio(values[ink], values[fill]) >= 4.5, text.text
            n_labels += 1
    assert n_labels


def test_a_collective_is_a_bar_in_the_hues_of_its_mesh_axes():
    root = ET.fromstring(devices_svg(parse_devices_block(TWO_AXES)))
    bar = next(g for g in root.iter(f"{SVG}g") if g[0].text == "psum over data, model")
    classes = [box.get("class") for box in bar.findall(f"{SVG}rect")]
    assert classes[0] == f"f-{axis_shade(0, 0, 1).name}"
    assert f"f-{axis_shade(1, 0, 1).name}" in classes


def test_devices_that_do_not_fit_beside_each_other_continue_in_the_next_line():
    root = ET.fromstring(devices_svg(parse_devices_block(LONG_LINE)))
    assert float(root.get("width")) == FRAME_WIDTH
    heights = {text.get("y") for text in root.iter(f"{SVG}text") if text.text.startswith("device")}
    assert len(heights) == 2


def test_text_of_a_catalogue_stays_text():
    svg = devices_svg(parse_devices_block("mesh x=2\n<b>&: <script>x</script> | 2 # <i>"))
    assert "<script" not in svg
    assert "<b>" not in svg
    ET.fromstring(svg)


# ----------------------------------------------------------------------------------------- the text


@every_block
@pytest.mark.parametrize("width", [36, 76, 120])
def test_the_text_fits_the_terminal_and_has_every_cell(name, width):
    block = parse_devices_block(EVERY[name])
    text = devices_text(block, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for row in block.rows:
        assert all(held.text in words for cell in row.cells for held in cell)
        assert row.name in words
    for step in block.steps:
        assert str(step) in words


def test_a_wide_terminal_shows_a_table():
    assert devices_text(parse_devices_block(RING), 80).splitlines() == [
        "x=3 each block has one shade",
        "                 device 0   device 1   device 2",
        "before  P('x') │ a        │ b        │ c        │",
        "                 ↓ ppermute over x ↓ (0→1, 1→2, 2→0)",
        "after  P('x')  │ c        │ a        │ b        │",
    ]


def test_a_narrow_terminal_shows_a_list():
    assert devices_text(parse_devices_block("mesh x=2\na P(): 1 ; 2"), 18).splitlines() == [
        "a  P()",
        "  device 0: 1 ╱,",
        "    2 ╱",
        "  device 1: 1 ╱,",
        "    2 ╱",
        "╱ replica: other",
        "devices have the",
        "same block",
    ]


def test_the_terminal_has_the_colors_of_the_page():
    text = statement_rich(f"```devices\n{RING}```", 80)
    shade = axis_shade(0, 2, 3)
    styles = {str(span.style) for span in text.spans}
    assert any(shade.light in style for style in styles)
    assert f"--{shade.name}:{shade.dark};" in devices_svg(parse_devices_block(RING))


# ---------------------------------------------------------------------------------------- the pages


@pytest.mark.parametrize("slug", CATALOGUE.slugs)
def test_every_statement_has_a_picture_in_the_browser_and_in_the_terminal(slug):
    page = CATALOGUE.load_problem(slug).page
    idea = parse_page(page).find_section("The idea")
    assert idea.first_block("devices", "layout") is not None
    html = "".join(map(str, render_statement(page, "/p/{n}.svg").blocks))
    n_pictures = len(render_statement(page, "/p/{n}.svg").pictures)
    assert html.count("<img ") == n_pictures > 0
    # A block that cannot be read would be shown as its source.
    assert "mesh data=4\n" not in statement_text(page)
    assert "-&gt; psum over" not in html


def test_the_page_describes_the_picture_in_words():
    html = str(render_statement(f"# T\n\n```devices\n{PSUM}```\n", "/p/{n}.svg").blocks[0])
    assert '<figure class="devices-picture"><a href="/p/1.svg"' in html
    assert "device 3 holds 33 (one per device). Then psum over data. total, P(): every" in html


def test_a_block_that_cannot_be_read_is_shown_as_it_is():
    text = "```devices\nmesh x=2\na P(): 1 | 2\n```"
    assert "<pre><code>mesh x=2\na P(): 1 | 2" in str(
        render_statement(f"# T\n\n{text}\n", "").blocks[0]
    )
    assert "    a P(): 1 | 2" in statement_text(text)
