"""Picture of a layout: cells, labels, captions and the text alternative."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab._text.indices import devices_text, slice_text
from shardlab._text.units import bytes_text
from shardlab.render.palette import axis_shade
from shardlab.render.picture import GridLimits, Paint, visible_positions
from shardlab.sharding.layout import layout
from shardlab.sharding.layout_picture import (
    device_values_picture,
    layout_picture,
    shard_paint,
    visible_dimensions,
)
from shardlab.sharding.layout_render import page_picture
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec


def labels(grid):
    return [[cell.lines for cell in row] for row in grid.cells]


def test_each_shard_shows_its_devices_and_each_device_its_shard():
    array, mesh = layout_picture(layout((8, 6), "model", "data=2,model=2")).grids
    assert labels(array) == [[("#0", "devices 0, 2")], [("#1", "devices 1, 3")]]
    assert labels(mesh) == [
        [("device 0", "#0 [0:4, :]"), ("device 1", "#1 [4:8, :]")],
        [("device 2", "#0 [0:4, :]"), ("device 3", "#1 [4:8, :]")],
    ]
    assert (array.row_labels, array.column_labels) == (("0:4", "4:8"), ("0:6",))
    assert (mesh.row_labels, mesh.column_labels) == (("data=0", "data=1"), ("model=0", "model=1"))


def test_a_device_has_the_paint_of_its_shard():
    array, mesh = layout_picture(layout((8, 6), "x,y", "y=3,x=2")).grids
    by_device = {cell.lines[1]: cell.paint for row in array.cells for cell in row}
    for row in mesh.cells:
        for cell in row:
            assert by_device[cell.lines[0]] == cell.paint


def test_the_paint_is_a_shade_of_each_mesh_axis_that_shards():
    grid = layout_picture(layout((8, 6), "None,y", "x=2,y=3")).grids[1]
    for x, row in enumerate(grid.cells):
        for y, cell in enumerate(row):
            assert cell.paint == Paint((axis_shade(1, y, 3),), "replica"), x
    grid = layout_picture(layout((8, 6), "x,y", "x=2,y=3")).grids[1]
    for x, row in enumerate(grid.cells):
        for y, cell in enumerate(row):
            assert cell.paint == Paint((axis_shade(0, x, 2), axis_shade(1, y, 3)))


def test_a_mesh_axis_has_the_same_color_however_the_array_is_sharded():
    mesh = "x=2,y=4"
    paints = [
        shard_paint(array, array.shard_coordinates((1, 2)))
        for array in (layout((8, 8), spec, mesh) for spec in ("x,y", "y,x", "(x,y)", "None,(y,x)"))
    ]
    assert {paint.colors for paint in paints} == {(axis_shade(0, 1, 2), axis_shade(1, 2, 4))}


def test_partial_sums_have_their_own_texture():
    mesh = Mesh({"x": 2, "y": 2}, axis_types=("Explicit", "Explicit"))
    array = layout((8, 6), Spec("x", unreduced={"y"}), mesh)
    assert shard_paint(array, (0, 0)).texture == "partial"
    assert "y=2 partial sums" in array.text()
    assert "Σ partial sum" in array.text()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("example", [((4096, 4096), "a,b", "a=16,b=32"), ((4096,), "x", "x=512")])
def test_no_two_of_512_shards_have_the_same_label_and_color(example, theme):
    for grid in page_picture(layout(*example)).grids:
        assert not grid.is_summary
        cells = [cell for row in grid.cells for cell in row]
        pairs = {(cell.lines, *(getattr(c, theme) for c in cell.paint.colors)) for cell in cells}
        assert len(pairs) == len(cells) == 512
        assert len({cell.lines for cell in cells}) == 512
    array = layout((4096, 4096), "a,b", "a=16,b=32")
    cells = [cell for row in page_picture(array).grids[0].cells for cell in row]
    assert len({tuple(getattr(c, theme) for c in cell.paint.colors) for cell in cells}) == 512


def test_three_dimensions_are_a_block_with_the_front_the_top_and_the_right_side():
    block = layout_picture(layout((8, 6, 4), "x,y,z", "x=2,y=3,z=2")).block
    assert block.axes[0] == "dim 0: 8, 2 shards over x"
    assert block.labels[1] == ("0:2", "2:4", "4:6")
    assert len(block.cells) == 12 - 2  # the shards behind the front, below the top, at the left
    assert block.cells[1, 0, 1].lines == ("#7", "device 7")
    assert layout_picture(layout((8, 6), "x", "x=2")).block is None
    assert layout_picture(layout((512, 6, 4), "x", "x=512")).block is None


def test_the_edges_name_the_visible_dimensions_and_the_caption_the_others():
    array_layout = layout((64, 128, 32, 8), "a,b,c", "a=2,b=4,c=2")
    assert visible_dimensions(array_layout) == (1, 2)
    grid, mesh = layout_picture(array_layout).grids
    assert (grid.row_axis, grid.column_axis) == (
        "dim 1: 128, 4 shards over b",
        "dim 2: 32, 2 shards over c",
    )
    assert grid.caption == (
        "dim 0: 64, 2 shards over a: only its first shard, 0:32, is drawn; "
        "dim 3: 8, unsharded, not drawn"
    )
    assert (mesh.row_axis, mesh.column_axis) == ("a × b", "c")


@pytest.mark.parametrize(
    ("shape", "spec", "dims"),
    [
        ((), "", ()),
        ((8,), "", (0,)),
        ((8, 6), "", (0, 1)),
        ((4, 8, 6), "", (1, 2)),
        ((4, 8, 6), "x", (0, 2)),
        ((4, 8, 6, 6), "x,None,None,y", (0, 3)),
    ],
)
def test_sharded_dimensions_are_visible_first(shape, spec, dims):
    assert visible_dimensions(layout(shape, spec, "x=2,y=3")) == dims


def test_a_scalar_is_one_cell():
    array, _ = layout_picture(layout((), "", "x=4")).grids
    assert labels(array) == [[("#0", "devices 0-3")]]
    assert array.caption == "a scalar: one element, not sharded"


def test_four_thousand_devices_are_abridged_with_dots():
    array, mesh = layout_picture(layout((4096, 4096), "a,b", "a=64,b=64")).grids
    for grid in (array, mesh):
        assert grid.is_summary
        assert len(grid.cells) == 5
        assert [cell.lines[0] for cell in grid.cells[3]] == ["⋮", "⋮", "⋮", "⋱", "⋮"]
        assert grid.caption.endswith("dots stand for those in between")
    assert mesh.cells[4][4].lines == ("device 4095", "#4095 [4032:4096, 4032:4096]")


def test_a_mesh_of_a_billion_devices_is_drawn_without_listing_it():
    array, mesh = layout_picture(layout((2**20, 8), "a", "a=1048576,b=1024")).grids
    assert array.cells[-1][0].lines == ("#1048575", "devices 1073740800, 1073740801, … (1,024)")
    assert mesh.cells[-1][-1].lines[0] == "device 1073741823"
    replicated = layout_picture(layout((8,), "", "a=1048576,b=1024")).grids[0]
    assert replicated.cells[0][0].lines == ("#0", "all 1,073,741,824 devices")
    (row,) = layout_picture(layout((8,), "", "a=2147483647")).grids[0].cells
    assert row[0].lines == ("#0", "all 2,147,483,647 devices")


def test_devices_in_their_own_order_are_drawn_in_mesh_order():
    mesh = Mesh({"x": 3}, device_ids=(2, 0, 1))
    grid = layout_picture(layout((6,), "x", mesh)).grids[1]
    assert labels(grid) == [
        [("device 2", "#0 [0:2]"), ("device 0", "#1 [2:4]"), ("device 1", "#2 [4:6]")]
    ]


def test_a_compact_picture_has_numbers_and_a_legend():
    array, mesh = layout_picture(layout((8,), "y", "x=2,y=2"), GridLimits(detail="compact")).grids
    assert labels(array) == [[("#0: 0,2",), ("#1: 1,3",)]]
    assert labels(mesh)[0] == [("0: #0",), ("1: #1",)]
    assert array.caption.endswith("in each box, shard: devices")
    assert mesh.caption.endswith("in each box, device: shard")


def test_device_values_show_the_text_of_each_device():
    array_layout = layout((4,), "x", "x=2")
    picture = device_values_picture(
        array_layout, {0: "[0. 1.]\n[4. 5.]", 1: "[2. 3.]"}, title="After psum", caption="c"
    )
    (grid,) = picture.grids
    assert picture.title == "After psum"
    assert labels(grid) == [[("device 0", "[0. 1.]", "[4. 5.]"), ("device 1", "[2. 3.]")]]
    assert picture.alternative == "device 0: [0. 1.] [4. 5.]; device 1: [2. 3.]"
    assert grid.caption == "c"


def test_the_text_alternative_describes_the_picture():
    text = layout_picture(layout((8, 6), "model", "data=2,model=2", "bf16")).alternative
    assert text == (
        "bfloat16[8, 6]  P('model')  on mesh data=2,model=2: dimension 0 has 2 shards over "
        "model; each device holds [4, 6], 48 bytes; 2 shards, each replicated on 2 devices; "
        "total 192 bytes on all devices; full array 96 bytes; "
        "device 0 holds [0:4, :]; device 1 holds [4:8, :]; device 2 holds [0:4, :]; "
        "device 3 holds [4:8, :]."
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 70), max_size=4),
    st.lists(st.integers(0, 3), max_size=5),
    st.permutations([0, 1, 2, 3, 4]),
)
def test_any_rank_and_any_mesh_has_a_picture_of_bounded_size(sizes, factors, order):
    mesh = {f"m{i}": size for i, size in enumerate(sizes)}
    entries = [() for _ in factors]
    for name, dim in zip(mesh, order, strict=False):
        if dim < len(factors):
            entries[dim] += (name,)
    shape = []
    for factor, names in zip(factors, entries, strict=True):
        n_shards = 1
        for name in names:
            n_shards *= mesh[name]
        shape.append(factor * n_shards)
    array_layout = layout(shape, tuple(entries), mesh)
    for grid in layout_picture(array_layout).grids:
        assert len(grid.cells) == len(grid.row_labels) <= 16
        assert all(len(row) == len(grid.column_labels) <= 16 for row in grid.cells)
    assert max(map(len, array_layout.text(100).splitlines()[5:])) < 200


def test_visible_positions_abridge_more_than_the_limit():
    assert visible_positions(16) == list(range(16))
    assert visible_positions(17) == [0, 1, 2, -1, 16]


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (1536, "1.5 kB"),
        (10**9 - 32, "1.0 GB"),
        (2**30, "1.1 GB"),
        (2**80, "1,208,925.8 EB"),
    ],
)
def test_bytes_are_printed_in_decimal_units(n_bytes, text):
    assert bytes_text(n_bytes) == text


def test_devices_are_printed_as_ids_or_ranges():
    assert devices_text([7], 1) == "device 7"
    assert devices_text([0, 4, 8, 12], 4) == "devices 0, 4, 8, 12"
    assert devices_text(range(8, 16), 8) == "devices 8-15"
    assert devices_text(range(0, 40, 4), 10) == "devices 0, 4, … (10)"
    assert devices_text(range(0, 40, 4), 10, short=True) == "0,…"
    assert slice_text((slice(0, 8), slice(2, 4)), (8, 8)) == "[:, 2:4]"
