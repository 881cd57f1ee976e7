"""The story of the layout explorer: type, drag, use the keyboard, compare two layouts, share it."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from browser.conftest import NARROW, SCREENS, WIDE

STATE = "/layout?mesh=data=2,model=4&array=bf16[4096,16384]&spec=None,model"


FOCUSED = """() => {
  const focused = document.activeElement;
  return focused.dataset.axis || focused.id || focused.tagName;
}"""


def open_explorer(open_visit, path=STATE, **options):
    visit = open_visit(**options)
    page = visit.open(path)
    page.locator(".picture canvas").first.wait_for()
    page.evaluate("document.fonts.ready")
    return visit, page


def summary(page):
    return page.locator(".summary").inner_text()


def picture(page, number):
    """Return what a canvas shows: 0 is the array, 1 the mesh."""
    return page.locator(".picture canvas").nth(number).evaluate("canvas => canvas.toDataURL()")


def wait_for_url(page, name, value):
    page.wait_for_function(
        "([name, value]) => new URLSearchParams(location.search).get(name) === value",
        arg=[name, value],
    )


def test_typing_changes_the_pictures_without_a_request(open_visit):
    visit, page = open_explorer(open_visit)
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    before = picture(page, 0), picture(page, 1)
    page.fill("#spec", "data, model")
    assert summary(page) == "Each of 8 devices holds bf16[2048, 4096], 16.8 MB; no copies."
    assert picture(page, 0) != before[0]
    assert picture(page, 1) != before[1]
    page.fill("#mesh", "data=16,model=32")
    assert "Each of 512 devices holds bf16[256, 512]" in summary(page)
    # A browser loads the icon of a page when it has time for it.
    assert [url for url in requests if "/static/mark.svg" not in url] == []
    visit.check()


def test_a_wrong_text_shows_its_position_and_keeps_the_last_picture(open_visit):
    visit, page = open_explorer(open_visit)
    before = picture(page, 0)
    page.fill("#mesh", "data=2,model=")
    error = page.locator("#mesh-error")
    assert "The size of mesh axis 'model' was expected here." in error.inner_text()
    assert error.locator("pre").inner_text() == "data=2,model=\n             ^"
    assert picture(page, 0) == before
    assert page.locator("#mesh").get_attribute("aria-invalid") == "true"
    page.fill("#mesh", "data=2,model=4")
    assert page.locator("#mesh-error").count() == 0
    visit.check()


def drag(page, start, end):
    first, last = start.bounding_box(), end.bounding_box()
    page.mouse.move(first["x"] + first["width"] / 2, first["y"] + first["height"] / 2)
    page.mouse.down()
    page.mouse.move(last["x"] + last["width"] / 2, last["y"] + last["height"] / 2, steps=8)
    page.mouse.up()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_dragging_an_axis_onto_a_dimension_shards_it(open_visit, viewport):
    visit, page = open_explorer(open_visit, viewport=viewport)
    board = page.locator(".stage .spec-board")
    drag(page, board.locator('[data-axis="data"]'), board.locator('[data-dim="0"]'))
    assert page.input_value("#spec") == "data, model"
    assert "no copies" in summary(page)
    if viewport == WIDE:
        visit.take_screenshot("layout-dragged")
    drag(page, board.locator('[data-axis="model"]'), board.locator(".tray"))
    assert page.input_value("#spec") == "data"
    assert page.locator(".drag-ghost").count() == 0
    visit.check()


def test_a_finger_drags_as_a_mouse_does(open_visit, browser, lab_url):
    context = browser.new_context(viewport=NARROW, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(lab_url + STATE)
    page.locator(".picture canvas").first.wait_for()
    chip = page.locator('.stage [data-axis="data"]').bounding_box()
    slot = page.locator('.stage [data-dim="0"]').bounding_box()
    session = context.new_cdp_session(page)

    def touch(kind, x=None, y=None):
        points = [] if x is None else [{"x": x, "y": y}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    x, y = chip["x"] + chip["width"] / 2, chip["y"] + chip["height"] / 2
    to_x, to_y = slot["x"] + slot["width"] / 2, slot["y"] + slot["height"] / 2
    touch("touchStart", x, y)
    for step in range(1, 9):
        touch("touchMove", x + (to_x - x) * step / 8, y + (to_y - y) * step / 8)
    touch("touchEnd")
    page.wait_for_function("() => document.querySelector('#spec').value === 'data, model'")
    context.close()


def test_the_keyboard_alone_moves_an_axis(open_visit):
    visit, page = open_explorer(open_visit)
    chip = page.locator('.stage [data-axis="data"]')
    chip.focus()
    page.keyboard.press("ArrowRight")
    assert page.input_value("#spec") == "data, model"
    page.keyboard.press("ArrowRight")
    assert page.input_value("#spec") == "None, (model, data)"
    page.keyboard.press("ArrowUp")
    assert page.input_value("#spec") == "None, (data, model)"
    assert page.evaluate("document.activeElement.dataset.axis") == "data"
    visit.check()


def test_every_control_is_reached_with_tab(open_visit):
    _, page = open_explorer(open_visit)
    names = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        names.add(page.evaluate(FOCUSED))
    assert {"data", "model", "CANVAS", "array", "mesh", "spec", "example"} <= names


def test_a_device_and_its_shard_are_shown_together(open_visit):
    visit, page = open_explorer(open_visit)
    before = picture(page, 0)
    mesh = page.locator(".picture canvas").nth(1)
    mesh.focus()
    page.keyboard.press("End")
    pointed = page.locator(".pointed")
    assert "Device 7 (data=1, model=3) holds [:, 12288:16384]" in pointed.inner_text()
    assert "This shard is replicated on devices 3, 7." in pointed.inner_text()
    assert picture(page, 0) != before
    box = page.locator(".picture canvas").nth(0).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.6)
    assert re.match(r"Shard \d, \[:, \d+:\d+\], is on devices", pointed.inner_text())
    visit.check()


def test_two_layouts_show_the_collectives_between(open_visit):
    visit, page = open_explorer(open_visit)
    page.get_by_role("button", name="Reshard to a layout B").click()
    assert page.locator(".step-kind").all_inner_texts() == ["all_gather"]
    page.fill("#to", "model")
    page.locator(".step-kind", has_text="all_to_all").wait_for()
    assert page.locator(".step-cost").inner_text() == "25.2 MB"
    assert page.locator(".thumbnail").count() == 2
    wait_for_url(page, "to", "model")
    visit.check()


def test_the_url_has_the_state_and_survives_a_reload(open_visit):
    visit, page = open_explorer(open_visit, "/layout")
    page.fill("#mesh", "x=8")
    page.fill("#array", "f32[64, 32, 16]")
    page.fill("#spec", "None, x")
    wait_for_url(page, "spec", "None, x")
    assert parse_qs(urlsplit(page.url).query)["array"] == ["f32[64, 32, 16]"]
    text = summary(page)
    page.reload()
    page.locator(".picture canvas").first.wait_for()
    assert page.input_value("#mesh") == "x=8"
    assert summary(page) == text
    visit.check()


def test_the_code_and_the_sliders_follow(open_visit):
    visit, page = open_explorer(open_visit)
    slider = page.get_by_label("Size of mesh axis model, as a power of two")
    slider.fill("3")
    assert page.input_value("#mesh") == "data=2,model=8"
    page.get_by_role("button", name="÷2: halve dimension 0").click()
    assert page.input_value("#array") == "bf16[2048, 16384]"
    code = page.locator(".python-code pre").inner_text()
    assert "jax.make_mesh((2, 8), ('data', 'model'))" in code
    assert "NamedSharding(mesh, P(None, 'model'))" in code
    visit.check()


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("rank-1", "mesh=x=512&array=f32[65536]&spec=x"),
        ("rank-3", "mesh=data=4,model=2&array=bf16[32,2048,4096]&spec=data,None,model"),
        ("rank-4", "mesh=a=2,b=2,c=4&array=f32[8,8,16,16]&spec=a,b,c"),
        (
            "512-devices",
            "mesh=fsdp=64,tensor=8&array=bf16[8192,28672]&spec=fsdp,tensor&to=tensor,fsdp",
        ),
        ("scalar", "mesh=x=4&array=f32[]&spec="),
        ("invalid", "mesh=data==&array=f33[3]&spec=q"),
        ("2-billion-devices", "mesh=x=2147483647&array=f32[2147483647]&spec=x"),
    ],
)
@pytest.mark.parametrize(("viewport", "scheme"), SCREENS)
def test_every_kind_of_layout_fits_and_is_accessible(open_visit, name, query, scheme, viewport):
    visit, page = open_explorer(open_visit, f"/layout?{query}", scheme=scheme, viewport=viewport)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert visit.find_accessibility_faults() == []
    size = "wide" if viewport == WIDE else "narrow"
    visit.take_screenshot(f"layout-{name}-{size}-{scheme}")
    visit.check()


def test_without_scripts_the_same_url_shows_the_same_layout(open_visit):
    visit = open_visit(scripts=False)
    page = visit.open(STATE + "&to=data")
    assert page.get_by_text("each device holds [4096, 4096], 33.6 MB").is_visible()
    assert page.locator("img[alt*='device 3 holds']").is_visible()
    page.fill("#spec", "data,model")
    page.get_by_role("button", name="Show the layout").click()
    assert page.get_by_text("each device holds [2048, 4096], 16.8 MB").is_visible()
    visit.check()
