"""The layout explorer in Chromium: drag a mesh axis, type, share the address."""

from __future__ import annotations

from playwright.sync_api import expect

START = "/layout?array=bf16[4096,16384]&mesh=data=2,model=4&spec=None,model"


def test_dragging_a_mesh_axis_onto_a_dimension_shards_it(open_visit):
    visit = open_visit()
    page = visit.open(START)
    summary = page.get_by_text("Each of 8 devices holds")
    expect(summary).to_contain_text("bf16[4096, 4096]")
    axis = page.get_by_role("button", name="data").first.bounding_box()
    target = page.get_by_text("not sharded", exact=True).first.bounding_box()
    page.mouse.move(axis["x"] + 10, axis["y"] + 10)
    page.mouse.down()
    page.mouse.move(target["x"] + 10, target["y"] + 10, steps=5)
    page.mouse.up()
    expect(summary).to_contain_text("bf16[2048, 4096]")
    expect(summary).to_contain_text("no copies")
    visit.take_screenshot("layout-dragged")
    address = page.url
    page.goto(address)
    expect(page.get_by_text("Each of 8 devices holds")).to_contain_text("bf16[2048, 4096]")
    visit.check()
